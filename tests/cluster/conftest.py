"""Fixtures of the tests that run whole studies."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.studies import Lull, our_processes


@pytest.fixture
def lull(tmp_path: Path) -> Iterator[Lull]:
    made = Lull(tmp_path)
    yield made
    made.close()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test no process of a study is left (given some seconds to end)."""
    before = {p.pid for p in psutil.process_iter()}
    yield
    deadline_s = time.monotonic() + 20.0
    while (left := our_processes(before)) and time.monotonic() < deadline_s:
        time.sleep(0.25)
    assert left == []
