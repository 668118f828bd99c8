"""CPU priority of an actor against the other processes of its machine.

With scheduler autogroups (Linux desktop and server default) ``nice`` counts only inside a session,
so the island gets a session of its own and the nice value is set on that session's group. A Ray
worker shares its session with the driver and cannot leave it by ``setsid`` alone, because it leads
its process group: it first joins the group of its parent, then founds the session.
"""

import errno
import os
import time
from pathlib import Path, PurePosixPath

_AUTOGROUP = Path("/proc/self/autogroup")
_ENABLED = Path("/proc/sys/kernel/sched_autogroup_enabled")
_FIRST_CGROUP_NAMESPACE = "cgroup:[4026531835]"  # the kernel's constant for the initial one
_RETRIES, _RETRY_S = 30, 0.02
_INSTRUMENT_RANK = 2  # above a merge window's real-time burners, which have 1


class Priority:
    """Nice value of this process's own scheduler group; ``warning`` says what did not work."""

    def __init__(self, nice: int, *, own_group: bool, warning: str | None) -> None:
        self.own_group = own_group
        self.warning = warning
        self._nice = nice
        self._now = nice

    def raised(self) -> str | None:
        """To nice 0, for a merge; returns a warning or None."""
        return self._set(0)

    def lowered(self) -> str | None:
        """Back to the nice value asked for; returns a warning or None."""
        return self._set(self._nice)

    def _set(self, nice: int) -> str | None:
        if not self.own_group or nice == self._now:
            return None
        self._now = nice
        return _write_autogroup(nice)


def take_priority(nice: int) -> Priority:
    """Move this process into its own scheduler group at ``nice``; never raises, always tells."""
    blocked = _no_autogroup() or _found_session()
    if blocked is None:
        failed = _write_autogroup(nice) if nice else None
        return Priority(nice, own_group=failed is None, warning=failed or _confined(nice))
    if nice == 0:
        return Priority(0, own_group=False, warning=None)
    return Priority(nice, own_group=False, warning=f"{blocked}; {_nice_threads(nice)}")


def take_instrument_priority() -> str | None:
    """For what measures or ticks: real-time round robin on every thread; a warning where refused.

    Such a process uses about one hundredth of a core, but waits tens of milliseconds for it behind
    a busy server, and a late client is measured as a slow server. Its own scheduler group alone did
    not help. Needs root or CAP_SYS_NICE.
    """
    group = take_priority(0).warning
    try:
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(_INSTRUMENT_RANK))
    except OSError as error:
        refused = f"no real-time priority ({error.strerror}): may run late on a busy machine"
        return refused if group is None else f"{refused}; {group}"
    return group


def _no_autogroup() -> str | None:
    try:
        enabled = _ENABLED.read_text().strip() == "1"
    except OSError:
        return "this kernel has no scheduler autogroups"
    if not enabled:
        return "scheduler autogroups are switched off (sched_autogroup_enabled=0)"
    return None


def _found_session() -> str | None:
    """Make this process lead its own session; None when it does."""
    if os.getsid(0) == os.getpid():
        return None
    try:
        if os.getpgid(0) == os.getpid():
            os.setpgid(0, os.getpgid(os.getppid()))
        os.setsid()
    except OSError as error:
        return f"no session of its own ({error.strerror})"
    return None


def _write_autogroup(nice: int) -> str | None:
    """Set the group's nice value; all users but root share ten changes a second: it may wait."""
    for _ in range(_RETRIES):
        try:
            _AUTOGROUP.write_text(str(nice))
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return f"autogroup nice {nice} refused ({error.strerror})"
            time.sleep(_RETRY_S)
        else:
            return None
    return f"autogroup nice {nice} refused ({_RETRIES} tries: resource busy)"


def _confined(nice: int) -> str | None:
    """Autogroups do nothing for tasks in a CPU cgroup: there plain nice is what counts."""
    if nice == 0:
        return None
    try:
        if Path("/proc/self/ns/cgroup").readlink().name != _FIRST_CGROUP_NAMESPACE:
            where = "inside a container, where autogroups may have no effect"
        elif (path := _cpu_cgroup()) != "/":
            where = f"in CPU cgroup {path}, where autogroups have no effect"
        else:
            return None
    except OSError as error:
        where = f"in an unknown cgroup ({error.strerror})"
    return f"this process runs {where}; {_nice_threads(nice)}"


def _cpu_cgroup() -> str:
    """Nearest cgroup above this process that shares out CPU; "/" when that is the root."""
    unified = PurePosixPath("/")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return path  # version 1
        if not controllers:
            unified = PurePosixPath(path)
    for group in (unified, *unified.parents):
        if Path(f"/sys/fs/cgroup{group}/cpu.weight").exists():  # the root has none
            return str(group)
    return "/"


def _nice_threads(nice: int) -> str:
    """Plain nice on every thread (it is per thread on Linux); says so for the record."""
    try:
        for thread in Path("/proc/self/task").iterdir():
            if os.getpriority(os.PRIO_PROCESS, int(thread.name)) < nice:
                os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
    except OSError as error:
        return f"plain nice {nice} failed too ({error.strerror}): it competes at full priority"
    return f"plain nice {nice} is set on its threads, also during merges"
