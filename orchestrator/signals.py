"""Ctrl-C and SIGTERM: a graceful end of the arm first, an immediate one when asked again."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM."""


class Signals:
    """A signal ends an arm gracefully, never cuts a clean-up short, and elsewhere raises at once.

    ``graceful``: the first signal is only noted; a second one raises. ``held``: none raises.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self.graceful = False
        self.held = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        first, self.asked = self.asked is None, signal.Signals(number).name
        if not self.held and not (self.graceful and first):
            raise Interrupted(self.asked)

    def take(self) -> None:
        """Become the handler; again after Ray has set its own."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self)

    @contextlib.contextmanager
    def installed(self) -> Iterator["Signals"]:
        old = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
        self.take()
        try:
            yield self
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Around what sets handlers of its own, as ray.init does: those from before stand again."""
    old = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
