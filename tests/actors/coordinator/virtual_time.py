"""An event loop whose clock jumps to the next moment at which something is due: no test waits."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumps(selectors.DefaultSelector):
    """Where a real one would sleep, time passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if timeout is None and not events:
            raise AssertionError("everybody waits, and nothing will ever happen: a hang")
        if timeout is not None and timeout > 0:
            self.now_s += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now_s

    def stand_still(self, seconds: float) -> None:
        """As if this process had been stopped for so long."""
        self._jumps.now_s += seconds


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time; a hang is an AssertionError."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario)
