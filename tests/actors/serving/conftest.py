"""Process trees to guard, and mock servers to ask."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from actors.config import SidecarsConfig

LIMIT_S = 20.0

# A tree as bad as can be: a server, a child, a grandchild that left the session and ignores
# SIGTERM, and a daemon whose parent is gone. Each writes its pid once it holds the shared memory.
TREE = """
import mmap, os, signal, sys, threading

def hold(name):
    made = os.open(f"/dev/shm/{name}.tmp", os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(made, 4096)
    held = mmap.mmap(made, 4096)
    os.close(made)
    # as glibc does with semaphores: mapped under one name, found under another
    os.link(f"/dev/shm/{name}.tmp", f"/dev/shm/{name}")
    os.unlink(f"/dev/shm/{name}.tmp")
    return held

def live(*, stubborn):
    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else signal.SIG_DFL)
    os.write(1, f"{os.getpid()}\\n".encode())
    while True:
        signal.pause()

memory = hold(sys.argv[1])
stubborn = sys.argv[2] == "stubborn"
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        live(stubborn=True)
    live(stubborn=False)
if (between := os.fork()) == 0:
    if os.fork() == 0:
        os.setsid()
        live(stubborn=True)
    os._exit(0)
os.waitpid(between, 0)
live(stubborn=stubborn)
"""
TREE_SIZE = 4


class Watch:
    """Processes that are to end; by pidfd, so that neither zombies nor reused ids deceive."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self._fds = [os.pidfd_open(pid) for pid in pids]

    def all_gone(self, limit_s: float = LIMIT_S) -> bool:
        return all(select.select([fd], [], [], limit_s)[0] for fd in self._fds)

    def any_gone(self) -> bool:
        return bool(select.select(self._fds, [], [], 0)[0])

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


class Tree:
    """Starts commands that become the bad tree; clears up whatever a failed test leaves."""

    def __init__(self, folder: Path) -> None:
        self.memory = f"lull-test-{uuid4().hex}"
        self._script = folder / "tree.py"
        self._script.write_text(TREE)
        self._watches: list[Watch] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def command(self, *, stubborn: bool = False) -> list[str]:
        manner = "stubborn" if stubborn else "obedient"
        return [sys.executable, "-I", "-S", str(self._script), self.memory, manner]

    def start(self, command: list[str]) -> tuple[subprocess.Popen[bytes], Watch]:
        """Run `command`, wait until the tree behind it is whole; stdin is the owner's pipe."""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._started.append(process)
        assert process.stdout is not None
        watch = Watch([int(process.stdout.readline()) for _ in range(TREE_SIZE)])
        self._watches.append(watch)
        return process, watch

    @property
    def memory_path(self) -> Path:
        return Path("/dev/shm") / self.memory

    def clear(self) -> None:
        for watch in self._watches:
            for pid in watch.pids:
                _kill(pid, watch)
            watch.close()
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self.memory_path.unlink(missing_ok=True)


def _kill(pid: int, watch: Watch) -> None:
    if not watch.all_gone(0):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            return


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path)
    yield made
    made.clear()


@pytest.fixture
def watch() -> Iterator[Callable[[list[int]], Watch]]:
    """Watches processes, without reaping any."""
    made: list[Watch] = []

    def start(pids: list[int]) -> Watch:
        made.append(Watch(pids))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def sidecars() -> Callable[..., SidecarsConfig]:
    """A config with an engine of these settings."""

    def make(count: int = 1, **engine: Any) -> SidecarsConfig:
        return SidecarsConfig.model_validate_json(json.dumps({"count": count, "engine": engine}))

    return make
