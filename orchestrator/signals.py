"""Ctrl-C and SIGTERM: a graceful end of the arm first, an immediate one when asked again."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM."""


class Signals:
    """First Ctrl-C or SIGTERM inside an arm: end it gracefully. Elsewhere, or a second: at once."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self.graceful = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.asked is None and self.graceful:
            self.asked = name
            return
        self.asked = name
        raise Interrupted(name)

    @contextlib.contextmanager
    def installed(self) -> Iterator["Signals"]:
        old = {n: signal.signal(n, self) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
