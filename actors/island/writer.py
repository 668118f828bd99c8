"""One file at a time is written in a thread of its own, so that training need not wait for a disk.

What went wrong there is raised to whoever submits or waits next: no checkpoint is lost in silence.
"""

import threading
from collections.abc import Callable


class WriterStuck(RuntimeError):
    """A checkpoint was not written in time."""


class Writer:
    """``submit`` waits for the one before; ``limit_s`` bounds each wait."""

    def __init__(self, *, limit_s: float) -> None:
        self._limit_s = limit_s
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, write: Callable[[], object]) -> None:
        """Begin ``write``; raises what went wrong with the one before."""
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(write,), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is under way; raises what went wrong."""
        thread = self._thread
        if thread is not None:
            thread.join(self._limit_s)
            if thread.is_alive():
                raise WriterStuck(f"a checkpoint was not written within {self._limit_s:g} s")
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - kept, and raised by wait()
            self._error = error
