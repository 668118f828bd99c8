"""Faults that a study plans for an island: it kills or freezes itself at a named point.

Real signals at an exact place, which no outside process could hit. Each happens once in a run: a
mark in the run's folder tells an island that is started anew.
"""

import os
import signal
import subprocess
from pathlib import Path

from actors.config import PlannedFault, PlannedPhase


class PlannedFaults:
    """The faults of one island."""

    def __init__(self, faults: tuple[PlannedFault, ...], *, island: int) -> None:
        self._planned = {i: f for i, f in enumerate(faults) if f.island == island}
        self._left = dict(self._planned)
        self._folder: Path | None = None

    def begin(self, folder: Path | None) -> None:
        """A run; marks stand in ``folder``, without one a new process does every fault again."""
        self._left = dict(self._planned)
        self._folder = folder

    def reached(
        self, at: PlannedPhase, *, round_: int | None = None, step: int | None = None
    ) -> None:
        """The island stands at this point; returns unless it is killed here."""
        for number, fault in list(self._left.items()):
            if (fault.at, fault.round, fault.step) == (at, round_, step):
                del self._left[number]
                if self._first_time(number):
                    _do(fault)

    def _first_time(self, number: int) -> bool:
        if self._folder is None:
            return True
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            (self._folder / f"planned-fault-{number}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _do(fault: PlannedFault) -> None:
    pid = os.getpid()
    if fault.do == "kill":
        os.kill(pid, signal.SIGKILL)
    else:
        # Who is stopped cannot wake itself.
        subprocess.Popen(
            ["/bin/sh", "-c", f"sleep {fault.freeze_s}; kill -CONT {pid}"], start_new_session=True
        )
        os.kill(pid, signal.SIGSTOP)
