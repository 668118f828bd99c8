"""Writing beside training: one at a time, in order, and no error is lost."""

import threading

import pytest

from actors.island.writer import Writer, WriterStuck


def test_submit_returns_before_the_file_is_written_and_wait_after() -> None:
    writer, may_end, done = Writer(limit_s=10.0), threading.Event(), threading.Event()

    def write() -> None:
        assert may_end.wait(10)
        done.set()

    writer.submit(write)
    assert not done.is_set()
    may_end.set()
    writer.wait()
    assert done.is_set()
    writer.wait()  # nothing is under way


def test_the_next_waits_for_the_one_before() -> None:
    writer, may_end = Writer(limit_s=10.0), threading.Event()
    order: list[str] = []

    def first() -> None:
        assert may_end.wait(10)
        order.append("first")

    writer.submit(first)
    waiter = threading.Thread(target=lambda: writer.submit(lambda: order.append("second")))
    waiter.start()
    assert order == []
    may_end.set()
    waiter.join(10)
    writer.wait()
    assert order == ["first", "second"]


def test_an_error_is_raised_once_to_whoever_comes_next() -> None:
    writer = Writer(limit_s=10.0)
    written: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError("of the first")

    writer.submit(fail)
    with pytest.raises(ZeroDivisionError, match="of the first"):
        writer.submit(lambda: written.append("second"))
    writer.submit(lambda: written.append("third"))
    writer.wait()
    assert written == ["third"]  # who was told of the error decides whether to try again


def test_a_disk_that_hangs_is_told_of_in_time() -> None:
    writer, may_end = Writer(limit_s=0.01), threading.Event()
    writer.submit(lambda: may_end.wait(10))
    with pytest.raises(WriterStuck, match=r"within 0\.01 s"):
        writer.wait()
    may_end.set()
