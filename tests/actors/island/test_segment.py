"""Shared memory that is opened by name: the same numbers, no name left behind, clear refusals."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import psutil
import torch

from actors.island.segment import NotShared, Segment, check_shared, memory_can_be_shared

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not memory_can_be_shared(), reason="Linux only"),
]


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def made() -> Iterator[Segment]:
    one = Segment.create(1000, label="test")
    yield one
    one.close()


def test_who_opens_it_sees_the_same_numbers_both_ways(made: Segment) -> None:
    assert made.vector.shape == (1000,)
    assert made.vector.dtype == torch.float32
    assert not made.vector.any()
    assert made.vector.data_ptr() % 64 == 0
    other = Segment.open(made.name).vector
    assert other.data_ptr() != made.vector.data_ptr()
    made.vector[7] = 1.5
    other[999] = -2.0
    assert other[7].item() == 1.5
    assert made.vector[999].item() == -2.0


def test_who_has_it_keeps_it_when_it_is_closed_and_nobody_else_gets_it(made: Segment) -> None:
    made.vector.fill_(3.0)
    other = Segment.open(made.name).vector
    made.close()
    made.close()  # twice is once
    assert (other == 3.0).all()
    with pytest.raises(NotShared):
        Segment.open(made.name)


def test_a_number_that_was_given_to_another_file_is_not_taken_for_it(made: Segment) -> None:
    other = Segment.create(1000, label="other")
    try:
        for wrong in (
            replace(made.name, token="00" * 16),
            replace(made.name, numbers=999),
            replace(made.name, fd=other.name.fd),
        ):
            with pytest.raises(NotShared, match="is not the memory that was named"):
                check_shared(wrong)
        check_shared(made.name)
    finally:
        other.close()


def test_a_pipe_and_a_process_that_is_gone_are_not_shared(made: Segment) -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(NotShared):
            Segment.open(replace(made.name, fd=reading))
    finally:
        os.close(reading)
        os.close(writing)
    with pytest.raises(NotShared, match="shared memory of process 4194305"):
        Segment.open(replace(made.name, pid=2**22 + 1))  # above the largest that Linux gives


def test_looking_does_not_leave_files_open(made: Segment) -> None:
    before = open_files()
    for _ in range(5):
        check_shared(made.name)
        with pytest.raises(NotShared):
            check_shared(replace(made.name, numbers=1))
        Segment.open(made.name)
    assert open_files() == before


def test_memory_that_is_not_there_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000))
    with pytest.raises(MemoryError, match=r"no 44096 bytes .* for banks: 10000 are free; choose a"):
        Segment.create(10_000, label="banks")


def test_memory_that_the_kernel_refuses_is_named_and_nothing_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = open_files()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(MemoryError, match=r"merge.transport: network"):
        Segment.create(10_000, label="banks")
    assert open_files() == before
