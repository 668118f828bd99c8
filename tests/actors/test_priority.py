"""The island's own scheduler group, from the position of a Ray worker: leader of its process group
in somebody else's session."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
needs_autogroup = pytest.mark.skipif(
    not AUTOGROUP.exists() or AUTOGROUP.read_text().strip() != "1",
    reason="this kernel has scheduler autogroups switched off",
)

TAKE = """
import json, os
from pathlib import Path
from actors.priority import take_priority
before = {"sid": os.getsid(0), "pgid": os.getpgid(0)}
priority = take_priority(15)
group = lambda: Path("/proc/self/autogroup").read_text().split()
nices = [group()[-1]]
for change in (priority.raised, priority.lowered):
    assert change() is None
    nices.append(group()[-1])
parent = Path(f"/proc/{os.getppid()}/autogroup").read_text()
print(json.dumps({"pid": os.getpid(), "before": before, "sid": os.getsid(0),
    "pgid": os.getpgid(0), "own": priority.own_group, "warning": priority.warning,
    "nices": nices, "group": group(), "parent": parent}))
"""

WITHOUT = """
import os
from pathlib import Path
import actors.priority as priority
priority._ENABLED = Path("/nonexistent")
made = priority.take_priority(7)
threads = [int(t.name) for t in Path("/proc/self/task").iterdir()]
assert all(os.getpriority(os.PRIO_PROCESS, t) >= 7 for t in threads)
assert not made.own_group
assert made.raised() is None
print(made.warning)
"""

SPIN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[2])})
end_s = float(sys.argv[1])
before_s = time.process_time()
while time.monotonic() < end_s:
    pass
print(time.process_time() - before_s)
"""


def run_as_group_leader(checkout: Path, code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=checkout,
        process_group=0,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_autogroup
def test_a_group_leader_gets_its_own_session_and_only_its_own_nice() -> None:
    checkout = Path(__file__).resolve().parents[2]
    told: dict[str, Any] = json.loads(run_as_group_leader(checkout, TAKE))
    assert told["before"]["pgid"] == told["pid"] != told["before"]["sid"]
    assert told["sid"] == told["pgid"] == told["pid"]
    assert told["own"] is True
    assert told["nices"] == ["15", "0", "15"]
    # The session it came from, with the driver in it, keeps its group and its priority. A process
    # that nobody gave a session since boot is in the root group, for which the kernel says nothing.
    assert told["group"][0] not in told["parent"].split()
    assert told["parent"] == Path("/proc/self/autogroup").read_text()


def test_without_autogroups_plain_nice_is_set_and_the_warning_says_so(checkout: Path) -> None:
    warning = run_as_group_leader(checkout, WITHOUT)
    assert "no scheduler autogroups" in warning
    assert "plain nice 7" in warning


@needs_autogroup
@pytest.mark.slow
def test_a_competitor_on_the_same_core_keeps_nearly_all_of_it(checkout: Path) -> None:
    """Two busy processes on one core: the de-prioritised one gets the weight of nice 15, 3 %."""
    core = str(min(os.sched_getaffinity(0)))
    end_s = str(time.monotonic() + 3.0)
    low = "from actors.priority import take_priority; take_priority(15)\n"
    commands = [[sys.executable, "-c", code, end_s, core] for code in (low + SPIN, SPIN)]
    processes = [
        subprocess.Popen(
            command, cwd=checkout, stdout=subprocess.PIPE, text=True, start_new_session=own
        )
        for command, own in zip(commands, (False, True), strict=True)
    ]
    island_s, competitor_s = (float(p.communicate()[0]) for p in processes)
    assert island_s < 0.25 * competitor_s


INSTRUMENT = """
import json, os, threading
from pathlib import Path
from actors.priority import take_instrument_priority
waiting = threading.Event()
threading.Thread(target=waiting.wait).start()  # exists before, like Ray's own threads
warning = take_instrument_priority()
tasks = [int(t.name) for t in Path("/proc/self/task").iterdir()]
later = []
thread = threading.Thread(target=lambda: later.append(os.sched_getscheduler(0)))
thread.start()
thread.join()
policies = [os.sched_getscheduler(t) for t in tasks]
waiting.set()
print(json.dumps({"warning": warning, "policies": policies + later, "rr": os.SCHED_RR}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="real-time priority needs root")
def test_an_instrument_runs_all_its_threads_in_real_time(checkout: Path) -> None:
    told = json.loads(run_as_group_leader(checkout, INSTRUMENT))
    assert told["warning"] is None or "real-time" not in told["warning"]
    assert len(told["policies"]) == 3
    assert set(told["policies"]) == {told["rr"]}


def test_a_refused_real_time_priority_is_told(checkout: Path) -> None:
    refuse = """
import os
def refuse(*_):
    raise PermissionError(1, "Operation not permitted")
os.sched_setscheduler = refuse
"""
    told = json.loads(run_as_group_leader(checkout, refuse + INSTRUMENT))
    assert "no real-time priority (Operation not permitted)" in told["warning"]
