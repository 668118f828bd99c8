"""Counts of the last ticks, one value a tick, NaN where unknown; and the signal made of them.

Signal = exponentially weighted mean of arrivals per tick + requests in flight.
"""

import math
from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policies.observation import Sample

Floats = npt.NDArray[np.float64]
_UNKNOWN = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The last ticks as arrays, oldest first; the last entry is ``last_tick``."""

    last_tick: int
    arrivals: Floats  # [tick]
    in_flight: Floats  # [tick]
    signal: Floats  # [tick]

    def window_costs(self, width_ticks: int) -> Floats:
        """Cost of a merge that starts at entry i: in flight there + arrivals of i+1..i+W.

        [tick - W]; NaN where any of these is unknown. (A sample at tick t counts what came
        before t, so what arrives in the window is reported one tick later.)
        """
        gone = np.isnan(self.arrivals)
        sums = np.cumsum(np.where(gone, 0.0, self.arrivals))
        gaps = np.cumsum(gone)
        cost: Floats = self.in_flight[:-width_ticks] + sums[width_ticks:] - sums[:-width_ticks]
        cost[gaps[width_ticks:] != gaps[:-width_ticks]] = np.nan
        return cost


class History:
    """Keeps the last ``memory_ticks`` to twice as many; a missing tick or count is NaN."""

    def __init__(self, *, half_life_ticks: float, memory_ticks: int) -> None:
        self._keep = math.exp2(-1.0 / half_life_ticks)
        self._memory = memory_ticks
        self._arrivals, self._in_flight, self._signal = array("d"), array("d"), array("d")
        self._level: float | None = None
        self._tick: int | None = None
        self._counted_tick = 0
        self.known = 0  # ticks with a known signal, over all time
        self.signal: float | None = None  # at the latest tick
        self.rate: float | None = None  # arrivals a tick of the latest tick's count, if it has one
        self.over_ticks = 1  # ticks that this count covers

    def fold(self, sample: Sample) -> None:
        """One tick. A count after unknown ones is their mean per tick, and decays as long."""
        tick, count = sample.tick, sample.arrivals
        if self._tick is None:
            self._counted_tick = tick - 1
        elif tick - self._tick != 1:
            self._skip(tick - self._tick - 1)
        self._tick = tick
        arrivals = _UNKNOWN
        self.rate = None
        if count is not None:
            ticks = max(1, tick - self._counted_tick)
            self._counted_tick = tick
            self.rate = arrivals = count / ticks
            self.over_ticks = ticks
            keep = self._keep if ticks == 1 else self._keep**ticks
            level = self._level
            self._level = arrivals if level is None else keep * level + (1.0 - keep) * arrivals
        waiting = sample.in_flight
        if count is None or waiting is None or self._level is None:
            self.signal = None
            self._signal.append(_UNKNOWN)
        else:
            self.signal = signal = self._level + waiting
            self._signal.append(signal)
            self.known += 1
        self._arrivals.append(arrivals)
        self._in_flight.append(_UNKNOWN if waiting is None else waiting)
        if len(self._signal) >= 2 * self._memory:
            for column in (self._arrivals, self._in_flight, self._signal):
                del column[: -self._memory]

    def past(self) -> Past:
        """A copy of what is kept; at least one tick must have been folded in."""
        assert self._tick is not None, "nothing was folded in"
        columns = (self._arrivals, self._in_flight, self._signal)
        arrivals, in_flight, signal = (np.array(c[-self._memory :]) for c in columns)
        return Past(last_tick=self._tick, arrivals=arrivals, in_flight=in_flight, signal=signal)

    def _skip(self, ticks: int) -> None:
        """Ticks without a sample are unknown ones."""
        for column in (self._arrivals, self._in_flight, self._signal):
            column.extend([_UNKNOWN] * min(max(0, ticks), self._memory))
