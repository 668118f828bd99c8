"""Synthetic load that fills a merge window: owner of N burner processes.

Each burner has its own session, hence its own scheduler group at nice 0: a burner inside a
de-prioritised island would get next to no CPU. What ordinary processes get beside a server that
spins between its threads differs from window to window (measured: 28 to 51 % of two cores in equal
windows, with latencies up to 3 times as long or not at all), so a study may give each burner a
fixed share of a core, taken at real-time priority.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from actors.config import FillConfig

_START_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 10.0  # after the end of the burn
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


class FillFailed(RuntimeError):
    """A burner died or did not answer."""


class Burners:
    """``begin(until_s)`` sets them off, ``collect()`` waits and gives the CPU seconds they got."""

    def __init__(self, config: FillConfig, *, island: int) -> None:
        self._config = config
        self._island = island
        self._processes: list[subprocess.Popen[bytes]] = []
        self._until_s: float | None = None
        self.warning: str | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    def start(self) -> None:
        """Have all burners up and waiting; dead ones are replaced."""
        if self._config.kind == "none":
            return
        self._until_s = None
        if self._all_alive():
            return
        self.close()
        self._processes = [self._spawn(burner) for burner in range(self._config.threads)]
        until_s = time.monotonic() + _START_TIMEOUT_S
        replies = [self._read(process, until_s=until_s) for process in self._processes]
        self.warning = self._refused(replies)

    def _refused(self, replies: list[dict[str, Any]]) -> str | None:
        """What of their priority only root may give."""
        if self._config.core_fraction is not None and not all(r["real_time"] for r in replies):
            return (
                f"island {self._island}: burners got no real-time priority (needs root or "
                "CAP_SYS_NICE), so what they take of a core varies from window to window"
            )
        nice = max(r["nice"] for r in replies)
        if nice > 0 and self._config.core_fraction is None:
            return (
                f"island {self._island}: burners run at nice {nice}, only root may lower it; "
                "without scheduler autogroups they get less CPU than a server at nice 0"
            )
        return None

    def begin(self, until_s: float) -> None:
        """Burn until the monotonic time ``until_s``; returns at once."""
        if self._config.kind == "none":
            return
        if not self._all_alive():
            raise FillFailed(
                f"island {self._island}: a burner is gone (exit codes "
                f"{[p.poll() for p in self._processes]}); the merge window cannot be filled"
            )
        self._until_s = until_s
        share = self._config.core_fraction or 1.0
        command = f"burn {until_s!r} {self._config.matrix_size} {share!r}\n".encode()
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(command)
                process.stdin.flush()
            except OSError as error:
                raise FillFailed(self._death(process)) from error

    def collect(self) -> float:
        """Wait for the burn to end; CPU seconds that all burners got together."""
        if self._until_s is None:
            return 0.0
        until_s, self._until_s = self._until_s + _ANSWER_TIMEOUT_S, None
        try:
            answers = [self._read(process, until_s=until_s) for process in self._processes]
        except FillFailed:
            self.close()  # a late answer would be taken for the next one
            raise
        return sum(float(answer["cpu_s"]) for answer in answers)

    def kill(self) -> None:
        """End every burner now; a ``collect`` that waits in another thread raises."""
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """End every burner and give its pipes back."""
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # it is dead already
                    process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._processes = []
        self._until_s = None

    def _all_alive(self) -> bool:
        alive = [process.poll() is None for process in self._processes]
        return len(alive) == self._config.threads and all(alive)

    def _core(self, burner: int) -> list[str]:
        """The burners of all islands go round the cores; none for ordinary processes."""
        if self._config.core_fraction is None:
            return []
        cores = sorted(os.sched_getaffinity(0))
        return [str(cores[(self._island * self._config.threads + burner) % len(cores)])]

    def _spawn(self, burner: int) -> subprocess.Popen[bytes]:
        # Our own checkout on the path and -P: works in any working folder, which cannot shadow it.
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "actors.island.burner", str(os.getpid())),
                *self._core(burner),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,
        )

    def _read(self, process: subprocess.Popen[bytes], *, until_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        wait_s = max(0.0, until_s - time.monotonic())
        # Each command has one line of answer, so nothing is left in the reader's buffer.
        if not select.select([process.stdout], [], [], wait_s)[0]:
            raise FillFailed(
                f"island {self._island}: burner {process.pid} did not answer in time; the machine "
                "is overloaded or the process is stopped"
            )
        line = process.stdout.readline()
        if not line:
            raise FillFailed(self._death(process))
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _death(self, process: subprocess.Popen[bytes]) -> str:
        return (
            f"island {self._island}: burner {process.pid} is gone (exit {process.poll()}); "
            "the merge window was not filled"
        )
