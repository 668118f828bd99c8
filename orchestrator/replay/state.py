"""What a server of the plant keeps between two calls of the compiled loop, and what it shows.

Shared by the open loop (plant.py) and the closed one (closed_server.py).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.replay import kernel
from orchestrator.replay.config import PlantConfig

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LATEST_S = 1e9  # a clock beyond this could no longer tell two steps apart
NO_TURN_S = np.empty((2, 0, 0))
NO_TURN_TOKENS = np.empty((2, 0, 0), np.int64)
NO_TURNS = np.empty(0, np.int64)
NO_STAYS_US = np.empty((3, 0))
NO_PACES = np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """When each request had its first and its last token; NaN where that was not reached."""

    first_token_at_s: Floats  # [request]
    done_at_s: Floats  # [request]


class ServerState:
    """Clock, queue, batch and windows of one server; pauses wherever it is told to.

    Not for use on its own: `Server` and `ClosedServer` fill the queue.
    """

    def __init__(
        self, plant: PlantConfig, *, times: Floats, asked: Ints, known: int, paces: Floats
    ) -> None:
        self._times, self._asked = times, asked
        law = (
            plant.step_base_s,
            plant.step_per_seq_s,
            plant.prefill_per_token_s,
            plant.merge_step_s,
            plant.pace_slot_s,
        )
        self._law = np.array(law)
        self._clock = np.array([0.0, 0.0, 1.0, 0.0, 1.0])
        self._paces = _checked_paces(paces)
        self._counts = np.zeros(11, np.int64)
        self._counts[kernel.SLOTS] = plant.slots
        self._counts[kernel.KNOWN] = known
        self._heap = np.empty((2, plant.slots), np.int64)
        self._windows = np.empty((3, 32))
        self._after_s = plant.after_window_s
        self._turn_s, self._turn_tokens, self._turns = NO_TURN_S, NO_TURN_TOKENS, NO_TURNS
        self._stays_us = NO_STAYS_US
        self._until_s = -math.inf
        self._window_end_s = -math.inf

    def advance(self, until_s: float) -> None:
        """Carry out all that happens before ``until_s``.

        Windows must be added before they are reached. ValueError where time would run backwards.
        """
        if not until_s >= self._until_s:
            raise ValueError(
                f"until_s={until_s} lies before {self._until_s}, where the server already is; "
                "time only goes forward"
            )
        while self._run(until_s) == kernel.TURNS_USED_UP:
            self._draw_turns()
        self._until_s = until_s

    def add_window(self, start_s: float, end_s: float, factor: float) -> None:
        """A merge window [start_s, end_s) in which steps take ``factor`` times as long.

        Windows come in order and do not overlap; one may begin where another ends. ValueError for
        one that is empty, out of order, or begins before the last ``until_s``.
        """
        self.add_windows(np.array([[start_s, end_s]]), np.array([factor]))

    def add_windows(self, windows: Floats, factors: Floats) -> None:
        """The same for several: windows [window, (start_s, end_s)], factors [window]."""
        windows, factors = np.asarray(windows, np.float64), np.asarray(factors, np.float64)
        known = max(self._window_end_s, self._until_s)
        check_windows(windows, factors, from_s=known)
        count, more = int(self._counts[kernel.WINDOWS]), len(factors)
        if more == 0:
            return
        if count + more > self._windows.shape[1]:
            self._windows = np.hstack([self._windows, np.empty((3, count + 2 * more))])
        new = self._windows[:, count : count + more]
        new[kernel.START], new[kernel.SLOW] = windows[:, 0], factors
        new[kernel.END] = windows[:, 1] + self._after_s
        if self._after_s > 0.0:  # what follows a window gives way to the next one
            first = max(count - 1, 0)
            ends = self._windows[kernel.END, first : count + more - 1]
            starts = self._windows[kernel.START, first + 1 : count + more]
            np.minimum(ends, starts, out=ends)
        self._counts[kernel.WINDOWS] = count + more
        self._window_end_s = float(windows[-1, 1])

    @property
    def scheduled_so_far(self) -> int:
        """Requests scheduled before the last ``until_s``."""
        return int(np.count_nonzero(self._known_at_s() < self._until_s))

    @property
    def in_flight(self) -> int:
        """Requests scheduled, and not done, before the last ``until_s``."""
        return self.scheduled_so_far - self.done_so_far

    @property
    def done_so_far(self) -> int:
        """Requests done before the last ``until_s``."""
        return int(self._counts[kernel.DONE])

    @property
    def running(self) -> int:
        """Sequences in the step that is under way at the last ``until_s``."""
        return int(self._counts[kernel.RUNNING])

    @property
    def waiting(self) -> int:
        """Requests that reached the queue before the last ``until_s`` and are in no step yet."""
        admitted, known = self._counts[kernel.ADMITTED], self._counts[kernel.KNOWN]
        queue = self._times[kernel.ENTER, admitted:known]
        return int(np.searchsorted(queue, self._until_s))

    def served(self) -> Served:
        """First and last tokens so far, by request."""
        known = int(self._counts[kernel.KNOWN])
        return Served(
            first_token_at_s=self._times[kernel.FIRST, :known].copy(),
            done_at_s=self._times[kernel.LAST, :known].copy(),
        )

    def _known_at_s(self) -> Floats:
        return self._times[kernel.AT, : self._counts[kernel.KNOWN]]

    def _draw_turns(self) -> None:
        raise AssertionError("an open loop has no turns")

    def _run(self, until_s: float) -> int:
        return kernel.run_until(
            until_s,
            self._law,
            self._clock,
            self._counts,
            self._times,
            self._asked,
            self._heap,
            self._windows,
            self._paces,
            self._turn_s,
            self._turn_tokens,
            self._turns,
            self._stays_us,
        )


def _checked_paces(paces: Floats) -> Floats:
    """A copy; ValueError for one that no server can keep."""
    paces = np.array(paces, dtype=np.float64)
    for i in np.flatnonzero(~((paces > 0.0) & np.isfinite(paces)))[:1]:
        raise ValueError(f"paces[{i}]={paces[i]}; give a finite number above 0")
    return paces


def check_windows(windows: Floats, factors: Floats, *, from_s: float) -> None:
    """ValueError unless these are windows in order, none before ``from_s``, with their factors."""
    if windows.size == 0 and factors.size == 0:
        return
    if windows.ndim != 2 or windows.shape[1] != 2 or factors.shape != windows.shape[:1]:
        raise ValueError(
            f"windows of shape {windows.shape} with factors of shape {factors.shape}; "
            "give [n, 2] (start_s, end_s) and [n]"
        )
    starts, ends = windows[:, 0], windows[:, 1]
    before = np.concatenate([[from_s], ends[:-1]])
    for i in np.flatnonzero(~((starts < ends) & (ends <= LATEST_S) & (starts >= 0.0)))[:1]:
        raise ValueError(
            f"window {i} is [{starts[i]}, {ends[i]}) s; give 0 <= start < end <= {LATEST_S:g}"
        )
    for i in np.flatnonzero(starts < before)[:1]:
        raise ValueError(
            f"window {i} starts at {starts[i]} s, before {before[i]} s (the end of the window "
            "before it, or where the server already is); give windows in order, before they begin"
        )
    for i in np.flatnonzero(~((factors >= 1.0) & np.isfinite(factors)))[:1]:
        raise ValueError(f"factors[{i}]={factors[i]}; give a finite number of at least 1")
