"""What came after the most similar past: nearest neighbours as scenarios of the ticks ahead.

Merging now is compared with the better of two ways of waiting, both causal: the best fixed delay,
and the stopping plan (policies/stopping.py) played on every scenario.
"""

import math
from array import array
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from policies.config import AnalogConfig
from policies.frame import Frame, forecast, too_little_data, unknown
from policies.history import Floats, History
from policies.observation import Decision, Sample, Seen
from policies.stopping import Levels, fit_levels, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Past contexts with a whole future: their features, and what merges cost after them."""

    features: npt.NDArray[np.float32]  # [context, block]
    starts: npt.NDArray[np.int64]  # [context], row of costs and levels
    costs: Floats  # [row, ticks ahead]
    level: npt.NDArray[np.int64]  # [row, ticks ahead]
    levels: Levels

    def nearest(self, features: npt.NDArray[np.float32], number: int) -> npt.NDArray[np.int64]:
        """Rows of the ``number`` contexts with the least squared distance."""
        apart = self.features - features
        distance = np.einsum("ij,ij->i", apart, apart)
        return self.starts[np.argpartition(distance, number - 1)[:number]]


@lru_cache(maxsize=64)
def stops(levels: Levels, *, last_gap: int, aim: float, w_cadence: float) -> npt.NDArray[np.bool_]:
    """Whether the stopping plan merges, [gap][bin]."""
    now, later = plan(levels, last_gap=last_gap, aim=aim, w_cadence=w_cadence)
    return np.array(now) <= np.array(later)


class Recent:
    """Running sums of the signal, the last known value held over holes: means of any block."""

    def __init__(self, *, memory_ticks: int, context_ticks: int) -> None:
        self._memory = memory_ticks
        self._sums = array("d", [0.0])
        self._last: float | None = None
        # Blocks of ticks back, each twice as long as the one before: 1, 1, 2, 4, ...
        self.edges = [0, 1]
        while self.edges[-1] < context_ticks:
            self.edges.append(min(2 * self.edges[-1], context_ticks))

    def fold(self, signal: float | None) -> None:
        """One tick."""
        self._last = signal if signal is not None else self._last
        self._sums.append(self._sums[-1] + (self._last or 0.0))
        if len(self._sums) > 2 * self._memory:
            del self._sums[: -self._memory - 1]

    def now(self) -> npt.NDArray[np.float32]:
        """Features of the latest tick: square roots of block means, for counts vary with them."""
        sums, edges = self._sums, self.edges
        end = len(sums) - 1
        means = [
            (sums[max(0, end - a)] - sums[max(0, end - b)]) / (b - a) for a, b in pairwise(edges)
        ]
        return np.array([math.sqrt(max(0.0, m)) for m in means], dtype=np.float32)

    def all(self, number: int) -> npt.NDArray[np.float32]:
        """Features of the last ``number`` ticks, [tick, block]; NaN where the memory begins."""
        sums, edges = np.array(self._sums), self.edges
        back = np.arange(len(sums) - number, len(sums))[:, None] - np.array(edges)  # [tick, edge]
        at = np.where(back >= 0, sums[np.maximum(back, 0)], np.nan)
        means = (at[:, :-1] - at[:, 1:]) / np.diff(edges)
        roots: Floats = np.sqrt(np.maximum(means, 0.0))
        return roots.astype(np.float32)


class Analog:
    """Learns in observe, on a schedule; decide looks its context up among the past ones."""

    def __init__(self, config: AnalogConfig, frame: Frame) -> None:
        self._config = config
        self._frame = frame
        memory = frame.ticks(config.memory_s)
        context = frame.ticks(config.context_s)
        self._history = History(
            half_life_ticks=config.half_life_s / frame.tick_s, memory_ticks=memory
        )
        self._recent = Recent(memory_ticks=memory, context_ticks=context)
        self._ahead = frame.corridor.ceiling_ticks + 1
        whole = context + self._ahead + frame.corridor.width_ticks + config.neighbours
        self._needed = max(frame.ticks(config.least_data_s), whole)
        self._refit_ticks = frame.ticks(config.refit_s)
        self._fitted_tick = -math.inf
        self._library: Library | None = None

    def observe(self, sample: Sample) -> None:
        """Fold the counts in; gather the contexts anew every ``refit_s``."""
        self._history.fold(sample)
        self._recent.fold(self._history.signal)
        if sample.tick - self._fitted_tick < self._refit_ticks:
            return
        if self._history.known >= self._needed:
            self._gather(sample.tick)

    def _gather(self, tick: int) -> None:
        past, width = self._history.past(), self._frame.corridor.width_ticks
        cost = past.window_costs(width)
        if len(cost) < self._ahead:
            return
        costs = sliding_window_view(cost, self._ahead)
        features = self._recent.all(len(past.signal))[: len(costs)]
        whole = np.isfinite(costs).all(axis=1) & np.isfinite(features).all(axis=1)
        whole &= sliding_window_view(np.isfinite(past.signal), self._ahead)[: len(costs)].all(
            axis=1
        )
        if whole.sum() < self._config.neighbours:
            return  # holes nearly everywhere: what there was before stays
        levels = fit_levels(
            past,
            bins=self._config.bins,
            width_ticks=width,
            half_life_ticks=self._config.memory_half_life_s / self._frame.tick_s,
        )
        level = np.searchsorted(np.array(levels.edges), past.signal, side="left")
        self._fitted_tick = tick
        self._library = Library(
            features=features[whole],
            starts=np.flatnonzero(whole),
            costs=cost,
            level=level,
            levels=levels,
        )

    def decide(self, seen: Seen) -> Decision:
        """Merge when the scenarios' mean cost now is at most that of waiting."""
        library, signal = self._library, self._history.signal
        if library is None:
            return too_little_data(seen, known=self._history.known, needed=self._needed)
        if signal is None:
            return unknown((("signal", None),))
        now, fixed, played = self._outlook(seen, library)
        return forecast(
            now=now,
            later=min(fixed, played),
            terms=(("signal", signal), ("cost_fixed_delay", fixed), ("cost_played", played)),
        )

    def _outlook(self, seen: Seen, library: Library) -> tuple[float, float, float]:
        """Mean cost over the scenarios: now, after the best fixed delay, under the plan."""
        gap = seen.tick - seen.last_end_tick
        ahead = min(max(seen.latest_tick - seen.tick, 0), self._ahead - 1)
        aim, levels = self._frame.paced_gap(seen), library.levels
        near = library.nearest(self._recent.now(), self._config.neighbours)
        off = (np.arange(gap, gap + ahead + 1) - aim) / aim
        price = self._config.w_cadence * levels.mean_cost * np.square(off)
        costs = sliding_window_view(library.costs, ahead + 1)[near] + price  # [scenario, delay]
        means = costs.mean(axis=0)
        if ahead == 0:
            return float(means[0]), math.inf, math.inf
        stop = stops(levels, last_gap=gap + ahead, aim=aim, w_cadence=self._config.w_cadence)
        level = sliding_window_view(library.level, ahead + 1)[near, 1:]
        chosen = stop[np.arange(gap + 1, gap + ahead + 1), level].argmax(axis=1) + 1
        played = costs[np.arange(len(near)), chosen].mean()
        return float(means[0]), float(means[1:].min()), float(played)
