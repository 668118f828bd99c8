"""Burners: they burn when told, and never outlive the one who told them."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.config import FillConfig
from actors.island.fill import Burners, FillFailed

pytestmark = pytest.mark.slow  # whole processes, which start and end in their own time

OWNER = """
import os, sys, time
from actors.config import FillConfig
from actors.island.fill import Burners
burners = Burners(FillConfig(kind="matmul", threads=2, matrix_size=64), island=0)
burners.start()
burners.begin(time.monotonic() + 600)
os.write(1, " ".join(map(str, burners.pids)).encode() + b"\\n")
time.sleep(600)
"""


@pytest.fixture
def burners() -> Iterator[Burners]:
    owner = Burners(FillConfig(kind="matmul", threads=2, matrix_size=64), island=0)
    owner.start()
    yield owner
    owner.close()


def ends(pid: int, *, within_s: float) -> bool:
    """Whether the process ends in time, by its pidfd; True when it is gone already."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)


def test_burners_use_cpu_until_the_end_and_can_be_used_again(burners: Burners) -> None:
    for _ in range(2):
        began_s = time.monotonic()
        burners.begin(began_s + 0.2)
        cpu_s = burners.collect()
        assert time.monotonic() - began_s >= 0.2
        assert 0.01 < cpu_s <= 2 * (time.monotonic() - began_s)


def test_burners_are_sessions_of_their_own_at_nice_zero_when_allowed(burners: Burners) -> None:
    for pid in burners.pids:
        assert os.getsid(pid) == pid
        assert (os.getpriority(os.PRIO_PROCESS, pid) == 0) or burners.warning


def test_a_share_of_a_core_is_taken_and_no_more() -> None:
    owner = Burners(
        FillConfig(kind="matmul", threads=1, matrix_size=64, core_fraction=0.2), island=1
    )
    try:
        owner.start()
        (pid,) = owner.pids
        assert len(os.sched_getaffinity(pid)) == 1
        assert (os.sched_getscheduler(pid) == os.SCHED_RR) == (owner.warning is None)
        owner.begin(time.monotonic() + 1.0)
        # Never more than its share; less only where it could not get real time.
        assert (0.15 if owner.warning is None else 0.0) < owner.collect() < 0.25
    finally:
        owner.close()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_burners_of_all_islands_go_round_the_cores() -> None:
    config = FillConfig(kind="matmul", threads=1, matrix_size=64, core_fraction=0.1)
    owners = [Burners(config, island=island) for island in (0, 1)]
    try:
        for owner in owners:
            owner.start()
        cores = [os.sched_getaffinity(pid) for owner in owners for pid in owner.pids]
        assert cores[0].isdisjoint(cores[1]) or len(os.sched_getaffinity(0)) == 1
    finally:
        for owner in owners:
            owner.close()


def test_burners_without_the_right_to_real_time_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Burners(FillConfig(kind="matmul", core_fraction=0.1), island=3)
    replies = [{"nice": 0, "real_time": False}]
    monkeypatch.setattr(owner, "_spawn", lambda burner: None)
    monkeypatch.setattr(owner, "_read", lambda process, until_s: replies[0])
    owner.start()
    assert owner.warning is not None
    assert "island 3: burners got no real-time priority" in owner.warning


def test_start_again_keeps_living_burners(burners: Burners) -> None:
    before = burners.pids
    burners.start()
    assert burners.pids == before


def test_stdin_closing_ends_a_burner_in_the_middle_of_a_burn(burners: Burners) -> None:
    pids = burners.pids
    burners.begin(time.monotonic() + 600)
    burners.close()
    assert all(ends(pid, within_s=0.0) for pid in pids)


def test_a_dead_burner_is_loud_and_replaced_at_the_next_start(burners: Burners) -> None:
    victim = burners.pids[0]
    burners.begin(time.monotonic() + 600)
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(FillFailed, match=str(victim)):
        burners.collect()
    with pytest.raises(FillFailed, match="cannot be filled"):
        burners.begin(time.monotonic() + 600)
    burners.start()
    assert victim not in burners.pids
    burners.begin(time.monotonic() + 0.05)
    assert burners.collect() > 0


def test_kill_from_another_thread_ends_a_collect(burners: Burners) -> None:
    burners.begin(time.monotonic() + 600)
    burners.kill()
    with pytest.raises(FillFailed, match="is gone"):
        burners.collect()


def test_burners_die_with_a_sigkilled_owner(checkout: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=checkout, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        owner.kill()
        assert len(pids) == 2
        assert all(ends(pid, within_s=5.0) for pid in pids)


def test_a_burner_notices_a_lost_parent_although_its_stdin_stays_open(checkout: Path) -> None:
    """The write end of its stdin is held by us, so only the parent's pid can tell."""
    read_end, write_end = os.pipe()
    middle = (
        "import os, subprocess, sys; "
        "p = subprocess.Popen([sys.executable, 'actors/island/burner.py', str(os.getpid())], "
        "stdin=0, stdout=subprocess.PIPE); "
        "p.stdout.readline(); os.write(1, str(p.pid).encode()); os._exit(0)"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", middle],
            cwd=checkout,
            stdin=read_end,
            capture_output=True,
            check=True,
        )
        assert ends(int(done.stdout), within_s=5.0)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_an_unknown_command_ends_the_burner_with_an_error(checkout: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "actors.island.burner"],
        cwd=checkout,
        input=b"dance\n",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"dance" in done.stderr


def test_no_fill_starts_nothing() -> None:
    owner = Burners(FillConfig(kind="none", threads=0), island=0)
    owner.start()
    owner.begin(time.monotonic() + 600)
    assert owner.pids == ()
    assert owner.collect() == 0.0
