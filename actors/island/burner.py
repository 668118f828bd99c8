"""One-thread matrix-multiply load, in a process of its own so that it competes like a stranger.

Commands are lines on stdin, ``burn <monotonic_end_s> <size> <core_fraction>``; each is answered by
one line of JSON with the CPU seconds really got. It ends at once when stdin closes or its parent is
gone, also in the middle of a burn. Imports only numpy and the standard library: it starts quickly.
"""

import json
import os
import select
import sys
import time

import numpy as np

_STDIN, _STDOUT = 0, 1
_CHECK_FLOP = 20_000_000  # multiply in slices of about 1 ms, so that an end is noticed quickly
_PERIOD_S = 0.02  # a share of a core is taken in each: shorter than any request takes
_RANK = 1  # real-time round robin, below what measures


class ParentGone(Exception):
    """Stdin closed, or the process that started us no longer exists."""


class Commands:
    """Lines from stdin, and whether anyone still holds the other end."""

    def __init__(self, *, parent_pid: int) -> None:
        self._parent_pid = parent_pid
        self._pending = b""

    def next_line(self) -> str:
        while b"\n" not in self._pending:
            self.check(wait_s=1.0)
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def check(self, *, wait_s: float = 0.0) -> None:
        if select.select([_STDIN], [], [], wait_s)[0]:
            got = os.read(_STDIN, 65536)
            if not got:
                raise ParentGone
            self._pending += got
        # The pipe alone is not enough: another child of the parent may hold a copy of its end.
        if os.getppid() != self._parent_pid:
            raise ParentGone


def burn(until_s: float, size: int, commands: Commands, *, core_fraction: float = 1.0) -> float:
    """Multiply until the monotonic time ``until_s``; returns the CPU seconds used.

    Of each period ``core_fraction`` is computed and the rest slept.
    """
    cpu_before_s = time.process_time()
    rng = np.random.default_rng(0)
    left = rng.random((size, size), dtype=np.float32)
    right = rng.random((size, size), dtype=np.float32)
    rows = max(1, min(size, _CHECK_FLOP // (2 * size * size)))
    out = np.empty((rows, size), dtype=np.float32)
    while (now_s := time.monotonic()) < until_s:
        end_s = min(now_s + _PERIOD_S, until_s)
        cpu_end_s = time.process_time() + core_fraction * (end_s - now_s)
        while time.process_time() < cpu_end_s and time.monotonic() < end_s:
            np.matmul(left[:rows], right, out=out)
        commands.check()
        if core_fraction < 1.0:
            time.sleep(max(0.0, end_s - time.monotonic()))
    return time.process_time() - cpu_before_s


def _answer(reply: dict[str, float]) -> None:
    os.write(_STDOUT, json.dumps(reply).encode() + b"\n")


def _plain_nice() -> int:
    """Back to nice 0 (Ray starts its workers at 15, and a child inherits it); what it became."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    except PermissionError:
        pass  # only root may; the answer tells the parent
    return os.getpriority(os.PRIO_PROCESS, 0)


def _real_time(core: int) -> bool:
    """On one core, ahead of every ordinary process; False where only root may."""
    os.sched_setaffinity(0, {core})
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_RANK))
    except PermissionError:
        return False
    return True


def main(arguments: list[str]) -> int:
    """Arguments: pid of the parent, and the core to be on in real time, if any."""
    commands = Commands(parent_pid=int(arguments[0]) if arguments else os.getppid())
    try:
        nice = _plain_nice()
        real_time = len(arguments) > 1 and _real_time(int(arguments[1]))
        _answer({"nice": nice, "real_time": real_time})
        while True:
            line = commands.next_line()
            match line.split():
                case ["burn", until_s, size, share]:
                    spent_s = burn(float(until_s), int(size), commands, core_fraction=float(share))
                    _answer({"cpu_s": spent_s})
                case _:
                    sys.stderr.write(
                        f"burner: {line!r} is no 'burn <monotonic_end_s> <size> <core_fraction>'\n"
                    )
                    return 2
    except (ParentGone, BrokenPipeError):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
