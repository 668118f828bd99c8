"""Optimal stopping on a Markov chain of load levels: merge when waiting is not expected to pay.

Levels are quantile bins of the signal (policies/history.py). What moves between bins and what a
merge costs from each are learned from the past; backward induction over the ticks that are left.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from policies.config import StoppingConfig
from policies.frame import Frame, forecast, too_little_data, unknown
from policies.history import Floats, History, Past
from policies.linear import product
from policies.observation import Decision, Sample, Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The chain: bin edges, transition probabilities, mean cost of a merge from each bin."""

    edges: tuple[float, ...]
    moves: bytes  # float64 [bin, bin]; bytes, so that a plan can be looked up by content
    costs: bytes  # float64 [bin]
    mean_cost: float

    def __hash__(self) -> int:
        return hash(self.moves)  # bytes remember their hash: a look-up costs no pass over them


def fit_levels(past: Past, *, bins: int, width_ticks: int, half_life_ticks: float) -> Levels:
    """The chain of the known ticks of ``past``, the latest weighing most.

    Equal edges become one: where half of the ticks are idle, idle is one level.
    """
    signal = past.signal
    known = np.isfinite(signal)
    quantiles = np.quantile(signal[known], np.arange(1, bins) / bins)
    edges = np.unique(quantiles)
    n = len(edges) + 1
    level = np.searchsorted(edges, signal, side="left")
    weight = np.exp2((np.arange(len(signal)) - len(signal)) / half_life_ticks)

    both = known[1:] & known[:-1]
    pair = (level[:-1] * n + level[1:])[both]
    counted = np.bincount(pair, weights=weight[1:][both], minlength=n * n).reshape(n, n)
    kept = counted + 1e-6 * np.eye(n)  # a level that was never left is one that stays
    moves = kept / kept.sum(axis=1, keepdims=True)

    cost = past.window_costs(width_ticks)
    seen = known[: len(cost)] & np.isfinite(cost)
    held, at = weight[: len(cost)][seen], level[: len(cost)][seen]
    mean = float(np.average(cost[seen], weights=held))
    # One average window's worth of weight: a level without a window costs what any does.
    prior = 1e-6 * held.max()
    total = np.bincount(at, weights=held * cost[seen], minlength=n) + prior * mean
    costs = total / (np.bincount(at, weights=held, minlength=n) + prior)
    return Levels(
        edges=tuple(edges.tolist()),
        moves=moves.tobytes(),
        costs=costs.tobytes(),
        mean_cost=mean if mean > 0 else 1.0,  # no traffic at all: the cadence alone counts
    )


Table = tuple[tuple[float, ...], ...]  # [gap][bin]


@lru_cache(maxsize=64)
def plan(levels: Levels, *, last_gap: int, aim: float, w_cadence: float) -> tuple[Table, Table]:
    """Cost of merging now, and least expected cost of merging later, for gaps 0..last_gap.

    now_g = cost + w mean_cost ((g - aim) / aim)^2
    later_g = E min(now_{g+1}, later_{g+1}); at the last gap there is no later.
    The value of the next round is the same wherever this one ends (renewal), so it drops out;
    the penalty carries the cadence.
    """
    cost: Floats = np.frombuffer(levels.costs)
    moves = np.frombuffer(levels.moves).reshape(len(cost), len(cost))
    off = (np.arange(last_gap + 1) - aim) / aim
    now = cost + w_cadence * levels.mean_cost * np.square(off)[:, None]
    later: Floats = np.full_like(now, np.inf)
    for gap in range(last_gap - 1, -1, -1):
        later[gap] = product(moves, np.minimum(now[gap + 1], later[gap + 1]))
    return _table(now), _table(later)


def _table(values: Floats) -> Table:
    return tuple(tuple(row) for row in values.tolist())


class Stopping:
    """Learns in observe, on a schedule; decide looks its tick and level up in the plan."""

    def __init__(self, config: StoppingConfig, frame: Frame) -> None:
        self._config = config
        self._frame = frame
        memory = frame.ticks(config.memory_s)
        self._half_life_ticks = config.memory_half_life_s / frame.tick_s
        self._history = History(
            half_life_ticks=config.half_life_s / frame.tick_s, memory_ticks=memory
        )
        self._needed = max(frame.ticks(config.least_data_s), frame.corridor.width_ticks + 2)
        self._refit_ticks = frame.ticks(config.refit_s)
        self._fitted_tick = -math.inf
        self.levels: Levels | None = None  # None until there is enough data

    def observe(self, sample: Sample) -> None:
        """Fold the counts in; learn the chain anew every ``refit_s``."""
        self._history.fold(sample)
        if sample.tick - self._fitted_tick >= self._refit_ticks:
            self._refit(sample.tick)

    def _refit(self, tick: int) -> None:
        if self._history.known < self._needed:
            return
        past, width = self._history.past(), self._frame.corridor.width_ticks
        cost = past.window_costs(width)
        if not np.isfinite(cost + past.signal[: len(cost)]).any():
            return  # holes everywhere: not one window is known whole
        self._fitted_tick = tick
        self.levels = fit_levels(
            past,
            bins=self._config.bins,
            width_ticks=width,
            half_life_ticks=self._half_life_ticks,
        )

    def decide(self, seen: Seen) -> Decision:
        """Merge when the level's cost now is at most the expected cost of the best later stop."""
        levels, signal = self.levels, self._history.signal
        if levels is None:
            return too_little_data(seen, known=self._history.known, needed=self._needed)
        if signal is None:
            return unknown((("signal", None),))
        now, later = self.values(seen, levels)
        gap = seen.tick - seen.last_end_tick
        level = bisect_left(levels.edges, signal)
        return forecast(
            now=now[gap][level],
            later=later[gap][level],
            terms=(("signal", signal), ("level", float(level))),
        )

    def values(self, seen: Seen, levels: Levels) -> tuple[Table, Table]:
        """Costs now and later for every gap up to the latest."""
        return plan(
            levels,
            last_gap=max(seen.latest_tick, seen.tick) - seen.last_end_tick,
            aim=self._frame.paced_gap(seen),
            w_cadence=self._config.w_cadence,
        )
