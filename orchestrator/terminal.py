"""What `lull run` shows while a study runs: one live line on a terminal, plain lines elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

PLAIN_EVERY_S = 10.0  # between progress lines where the output is no terminal


class TerminalReporter:
    """Reporter for a rich console."""

    def __init__(self, console: Console, *, engine: str) -> None:
        self._console = console
        self._label = " [simulated server: engine=mock]" if engine == "mock" else ""
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._arm = ""
        self._said_at_s = 0.0

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)

    def arm_started(self, arm: str, seed: int, index: int, total: int) -> None:
        self._arm = f"[{index + 1}/{total}] seed {seed} {arm}{self._label}"
        self._said_at_s = time.monotonic()
        if not self._console.is_terminal:
            self.say(f"{self._arm}: started")
            return
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task(self._arm, total=1.0, state="")

    def arm_progress(self, now_s: float, horizon_s: float, merges: int, finished: int) -> None:
        state = (
            f"{max(0.0, now_s):.0f}/{horizon_s:.0f} s, {merges} merges, {finished} requests done"
        )
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=now_s / horizon_s, state=state)
        elif time.monotonic() - self._said_at_s >= PLAIN_EVERY_S:
            self._said_at_s = time.monotonic()
            self.say(f"{self._arm}: {state}")

    def arm_finished(self, status: str, why: str | None) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        self.say(f"{self._arm}: {status}" + (f" ({why})" if why else ""))


class QuietReporter:
    """For --json: nothing but the final object goes out."""

    def say(self, line: str) -> None: ...

    def arm_started(self, arm: str, seed: int, index: int, total: int) -> None: ...

    def arm_progress(self, now_s: float, horizon_s: float, merges: int, finished: int) -> None: ...

    def arm_finished(self, status: str, why: str | None) -> None: ...
