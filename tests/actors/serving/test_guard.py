"""Whatever ends the owner, the server or a guard: no process of the tree and no memory remains."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.serving.guard import guarded, server_pid

pytestmark = pytest.mark.slow  # whole processes, which start and end in their own time

OWNER = """
import json, subprocess, sys
guard = subprocess.Popen(json.loads(sys.argv[1]), stdin=subprocess.PIPE, start_new_session=True)
sys.stderr.write(f"{guard.pid}\\n")
guard.wait()
"""


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    made = tmp_path / "scratch"
    made.mkdir()
    (made / "socket").touch()
    return made


@pytest.fixture
def guarded_tree(tree: Any, scratch: Path) -> Any:
    def start(*, stubborn: bool = False, grace_s: float = 0.1) -> Any:
        return tree.start(
            guarded(tree.command(stubborn=stubborn), grace_s=grace_s, scratch=scratch)
        )

    return start


def one_guard(command: list[str], *, grace_s: float = 0.1) -> list[str]:
    return [sys.executable, "-m", "actors.serving.guard", "--grace-s", str(grace_s), "--", *command]


@pytest.mark.parametrize("stubborn", [False, True])
def test_end_of_file_ends_the_tree_its_memory_and_its_scratch_folder(
    tree: Any, guarded_tree: Any, scratch: Path, stubborn: bool
) -> None:
    guard, watch = guarded_tree(stubborn=stubborn)
    assert tree.memory_path.exists()
    guard.stdin.close()
    code = guard.wait(20)
    assert watch.all_gone()
    assert not tree.memory_path.exists()
    assert not scratch.exists()
    assert code == 128 + (signal.SIGKILL if stubborn else signal.SIGTERM)


def test_sigterm_ends_the_tree(tree: Any, guarded_tree: Any) -> None:
    guard, watch = guarded_tree()
    guard.terminate()
    assert guard.wait(20) == 128 + signal.SIGTERM
    assert watch.all_gone()
    assert not tree.memory_path.exists()


def test_an_owner_that_is_sigkilled_takes_the_tree_with_it(tree: Any, scratch: Path) -> None:
    command = guarded(tree.command(stubborn=True), grace_s=0.1, scratch=scratch)
    owner, watch = tree.start([sys.executable, "-c", OWNER, json.dumps(command)])
    with_guards = [p.pid for p in psutil.Process(owner.pid).children(recursive=True)]
    assert set(watch.pids) < set(with_guards)
    everything = type(watch)(with_guards)
    owner.kill()
    assert everything.all_gone()
    everything.close()
    assert not tree.memory_path.exists()


def test_a_server_that_dies_leaves_no_orphan_and_its_code_is_passed_on(
    tree: Any, guarded_tree: Any
) -> None:
    guard, watch = guarded_tree()
    server = server_pid(guard.pid)
    assert server is not None
    assert server in watch.pids
    os.kill(server, signal.SIGKILL)
    assert guard.wait(20) == 128 + signal.SIGKILL
    assert watch.all_gone()
    assert not tree.memory_path.exists()


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_a_guard_that_is_sigkilled_is_replaced_by_the_other(
    tree: Any, guarded_tree: Any, which: str
) -> None:
    guard, watch = guarded_tree(stubborn=True)
    inner = psutil.Process(guard.pid).children()[0]
    guards = type(watch)([guard.pid, inner.pid])
    (guard if which == "outer" else inner).kill()
    assert watch.all_gone()
    assert guards.all_gone()  # the survivor removes the memory after the last process
    guards.close()
    assert not tree.memory_path.exists()


def test_a_server_that_heeds_sigterm_ends_even_when_every_guard_is_sigkilled(tree: Any) -> None:
    guard, watch = tree.start(one_guard(tree.command()))
    server = psutil.Process(guard.pid).children()[0].pid
    only_server = type(watch)([pid for pid in watch.pids if pid == server])
    guard.kill()
    assert only_server.all_gone()
    only_server.close()


@pytest.mark.parametrize(
    ("command", "code"),
    [(["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -KILL $$"], 137)],
)
def test_the_exit_code_is_the_servers(command: list[str], code: int, scratch: Path) -> None:
    guard = subprocess.Popen(guarded(command, grace_s=1.0, scratch=scratch), stdin=subprocess.PIPE)
    with guard:
        assert guard.wait(20) == code


def test_a_command_that_does_not_exist_is_named() -> None:
    ended = subprocess.Popen(
        one_guard(["/no/such/server"]), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with ended:
        assert ended.wait(20) == 127
        assert ended.stderr is not None
        assert "cannot start /no/such/server" in ended.stderr.read()


def test_memory_that_others_use_or_that_the_tree_never_used_stays(
    tree: Any, guarded_tree: Any
) -> None:
    stranger = Path("/dev/shm") / f"{tree.memory}-stranger"
    stranger.touch()
    try:
        guard, watch = guarded_tree(stubborn=True)
        with tree.memory_path.open("rb"):
            guard.stdin.close()
            guard.wait(20)
            assert watch.all_gone()
            assert tree.memory_path.exists()
        assert stranger.exists()
    finally:
        stranger.unlink()
