"""Fixtures of the tests that run whole studies."""

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.studies import MARK, Lull, our_processes


@pytest.fixture
def lull(tmp_path: Path) -> Iterator[Lull]:
    made = Lull(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True, scope="session")
def _marked() -> Iterator[None]:
    os.environ[MARK] = uuid.uuid4().hex
    yield
    del os.environ[MARK]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test no process of a study is left (given some seconds to end)."""
    before = {p.pid for p in our_processes()}
    yield
    deadline_s = time.monotonic() + 60.0
    while True:
        left = [p for p in our_processes() if p.pid not in before]
        if not left or time.monotonic() > deadline_s:
            break
        time.sleep(0.25)
    assert left == []
