"""One-thread matrix-multiply load, in a process of its own so that it competes like a stranger.

Commands are lines on stdin, ``burn <monotonic_end_s> <size>``; each is answered by one line of
JSON with the CPU seconds really got. It ends at once when stdin closes or its parent is gone,
also in the middle of a burn. Imports only numpy and the standard library, so it starts quickly.
"""

import json
import os
import select
import sys
import time

import numpy as np

_STDIN, _STDOUT = 0, 1
_CHECK_FLOP = 200_000_000  # multiply in slices of about 10 ms, so that an end is noticed quickly


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


def burn(until_s: float, size: int, commands: Commands) -> float:
    """Multiply until the monotonic time ``until_s``; returns the CPU seconds used."""
    cpu_before_s = time.process_time()
    rng = np.random.default_rng(0)
    left = rng.random((size, size), dtype=np.float32)
    right = rng.random((size, size), dtype=np.float32)
    rows = max(1, min(size, _CHECK_FLOP // (2 * size * size)))
    out = np.empty((rows, size), dtype=np.float32)
    while time.monotonic() < until_s:
        np.matmul(left[:rows], right, out=out)
        commands.check()
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


def main(arguments: list[str]) -> int:
    commands = Commands(parent_pid=int(arguments[0]) if arguments else os.getppid())
    try:
        _answer({"nice": _plain_nice()})
        while True:
            line = commands.next_line()
            match line.split():
                case ["burn", until_s, size]:
                    _answer({"cpu_s": burn(float(until_s), int(size), commands)})
                case _:
                    sys.stderr.write(f"burner: {line!r} is no 'burn <monotonic_end_s> <size>'\n")
                    return 2
    except (ParentGone, BrokenPipeError):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
