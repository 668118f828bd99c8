"""Paced inner steps in a thread of their own, which can be paused at a step boundary.

Step k starts at its due time. A step that starts late is counted and moves the later ones back:
there are no catch-up bursts. An error in the thread is kept and raised to whoever asks next.
"""

import threading
from collections.abc import Callable

from actors.clock import Clock

_JITTER_FRACTION = 0.1  # of the interval: a start within it is on time and keeps the grid


class LoopStuck(RuntimeError):
    """An inner step did not end in time."""


class Pacer:
    """Due times on one clock; two starts are never closer than 0.9 intervals."""

    def __init__(self, *, interval_s: float, first_s: float) -> None:
        self._interval_s = interval_s
        self.due_s = first_s
        self.late_steps = 0

    def started(self, at_s: float) -> None:
        """A step starts at ``at_s``, not before ``due_s``."""
        if self._interval_s == 0:
            return
        if at_s - self.due_s > _JITTER_FRACTION * self._interval_s:
            self.late_steps += 1
            self.due_s = at_s
        self.due_s += self._interval_s

    def restart(self, *, at_s: float) -> None:
        """After a pause: the next step is due at ``at_s``."""
        self.due_s = at_s


class PacedLoop:
    """Calls ``step`` at the pacer's due times until stopped."""

    def __init__(self, step: Callable[[], None], *, pacer: Pacer, clock: Clock, name: str) -> None:
        self._step = step
        self._pacer = pacer
        self._clock = clock
        self._name = name
        self._changed = threading.Condition()
        self._wanted_paused = False
        self._parked = False
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def late_steps(self) -> int:
        return self._pacer.late_steps

    def start(self) -> None:
        self._thread.start()

    def pause(self, *, timeout_s: float) -> None:
        """Return when no step runs and none will start before ``resume``."""
        with self._changed:
            self._wanted_paused = True
            self._changed.notify_all()
            halted = self._changed.wait_for(self._halted, timeout=timeout_s)
        self.check()
        if not halted:
            raise LoopStuck(f"{self._name}: the inner step has not ended within {timeout_s:g} s")

    def resume(self, *, at_s: float | None) -> None:
        """Go on; the next step is due at ``at_s``, or when it would have been without a pause."""
        with self._changed:
            if at_s is not None:
                self._pacer.restart(at_s=at_s)
            self._wanted_paused = False
            self._parked = False  # or a wait_for that comes at once would take it for halted
            self._changed.notify_all()

    def wait_for(self, reached: Callable[[], bool], *, timeout_s: float) -> None:
        """Return when ``reached()`` holds after a step; it is asked again after each."""
        with self._changed:
            self._changed.wait_for(lambda: reached() or self._halted(), timeout=timeout_s)
            done = reached()
        self.check()
        if not done:
            raise LoopStuck(f"{self._name}: not as many inner steps within {timeout_s:g} s")

    def stop(self, *, timeout_s: float) -> None:
        """End after the running step; raises nothing that happened inside (see ``check``)."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise LoopStuck(f"{self._name}: the inner step has not ended within {timeout_s:g} s")

    def check(self) -> None:
        """Raise what ended the thread, if something did."""
        if self._error is not None:
            raise self._error

    def _halted(self) -> bool:
        return self._parked or self._stopping or not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._wait_for_turn():
                self._step()
                with self._changed:
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - kept, and raised by check()
            self._error = error
        finally:
            with self._changed:
                self._stopping = True
                self._changed.notify_all()

    def _wait_for_turn(self) -> bool:
        with self._changed:
            while not self._stopping:
                if self._wanted_paused:
                    self._parked = True
                    self._changed.notify_all()
                    self._changed.wait()
                    continue
                self._parked = False
                now_s = self._clock.now_s()
                if now_s >= self._pacer.due_s:
                    self._pacer.started(now_s)
                    return True
                self._changed.wait(self._pacer.due_s - now_s)
            return False
