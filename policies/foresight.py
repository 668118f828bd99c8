"""Optimal stopping on what is expected to arrive: levels of a forecast instead of the load itself.

The forecast is linear in means of the arrivals over many half-lives, learned from the past windows.
What is in flight is seen exactly when a merge may start, and is chance while it has to be waited
for; time costs what it is worth to the rounds that are left (no price of the cadence to set).
"""

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from policies.config import StoppingConfig
from policies.corridor import Corridor
from policies.frame import Frame, forecast, too_little_data, unknown
from policies.history import Floats, History, Past
from policies.linear import power, product, solved
from policies.observation import Decision, Sample, Seen

HALF_LIVES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
NODES = 5  # equal parts of the law of what is in flight
# Prices of one tick, in mean costs of a merge: from free to where nobody waits.
PRICES = (0.0, *(0.002 * 2000.0 ** (i / 13) for i in range(14)))
RIDGE = 1e-3  # of each feature's own square sum: settles what the past leaves open
LEAST_WINDOWS = 2 * (1 + 2 * (len(HALF_LIVES_S) + 1))  # two for each number that is fitted

Features = tuple[float, ...]


class Means:
    """Means of the arrivals over all half-lives and what is in flight, one row a tick."""

    def __init__(self, *, tick_s: float, memory_ticks: int) -> None:
        self._keeps = tuple(math.exp2(-tick_s / h) for h in HALF_LIVES_S)
        self._width = len(HALF_LIVES_S) + 1
        self._memory = memory_ticks
        self._means: Features | None = None
        self._rows = array("d")
        self._tick: int | None = None
        self.now: Features | None = None  # means and in flight; None: not known at this tick

    def fold(self, sample: Sample, *, rate: float | None, over_ticks: int) -> None:
        """One tick: ``rate`` arrivals a tick over the last ``over_ticks``, None where unknown."""
        if self._tick is not None:
            missed = min(max(0, sample.tick - self._tick - 1), self._memory)
            self._rows.extend([math.nan] * (missed * self._width))
        self._tick = sample.tick
        if rate is not None:
            means = self._means or (rate,) * len(self._keeps)
            keeps = self._keeps if over_ticks == 1 else [k**over_ticks for k in self._keeps]
            self._means = tuple(
                [k * m + (1.0 - k) * rate for k, m in zip(keeps, means, strict=True)]
            )
        if rate is None or sample.in_flight is None or self._means is None:
            self.now = None
            self._rows.extend([math.nan] * self._width)
        else:
            self.now = (*self._means, float(sample.in_flight))
            self._rows.extend(self.now)
        if len(self._rows) >= 2 * self._memory * self._width:
            del self._rows[: -self._memory * self._width]

    def rows(self, number: int) -> Floats:
        """The last ``number`` ticks, [tick, feature]; NaN where unknown."""
        return np.array(self._rows[-number * self._width :]).reshape(-1, self._width)


def design(rows: Floats) -> Floats:
    """What the forecast is linear in: 1, the features, their roots. [tick, 1 + 2 features]"""
    return np.hstack([np.ones((len(rows), 1)), rows, np.sqrt(rows)])


def expected(weights: Features, features: Features) -> float:
    """The forecast at one tick: the same as ``product(design(rows), weights)``."""
    number = len(features)
    total = weights[0]
    for i, value in enumerate(features, 1):
        total += weights[i] * value + weights[number + i] * math.sqrt(value)
    return total


def least_squares(rows: Floats, wanted: Floats, held: Floats) -> Floats:
    """Weighted ridge regression; the constant is not shrunk."""
    columns = design(rows)
    pulled = columns.T * held
    products = product(pulled, columns)
    squares = np.diag(products).copy()
    ridge = RIDGE * squares + 1e-9 * squares.max()
    ridge[0] = 0.0
    return solved(products + np.diag(ridge), product(pulled, wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is left after the next merge."""

    left: int | None  # merges; None: no budget
    ticks: int  # from the last end to the horizon; without a budget: the target gap


def rest_of(seen: Seen, *, horizon_ticks: int) -> Rest:
    if seen.budget == 0:
        return Rest(left=None, ticks=seen.target_gap_ticks)
    return Rest(left=seen.budget - seen.merges_done - 1, ticks=horizon_ticks - seen.last_end_tick)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Levels of the forecast: how they move, what arrives from each, what is in flight at each."""

    weights: Features  # of the forecast
    edges: tuple[float, ...]
    moves: bytes  # float64 [level, level]
    new: bytes  # float64 [level], mean of what arrives in a window
    in_flight: bytes  # float64 [level, node]
    mean_cost: float
    rounds: bytes  # float64 [price], least E[cost + price x gap] of a round

    def __hash__(self) -> int:
        return hash(self.moves)  # bytes remember their hash

    def arrays(self) -> tuple[Floats, Floats, Floats]:
        """moves, new, in_flight."""
        new = np.frombuffer(self.new)
        moves = np.frombuffer(self.moves).reshape(len(new), len(new))
        return moves, new, np.frombuffer(self.in_flight).reshape(len(new), NODES)


def nodes(in_flight: Floats, level: npt.NDArray[np.int64], number: int) -> Floats:
    """Midpoints of NODES equal parts of what is in flight, [level, node]; an empty one as all."""
    share = (np.arange(NODES) + 0.5) / NODES
    order = np.lexsort((in_flight, level))
    ends = np.searchsorted(level[order], np.arange(number + 1))
    found = np.tile(np.quantile(in_flight, share), (number, 1))
    for i, (a, b) in enumerate(pairwise(ends.tolist())):
        if b > a:
            found[i] = in_flight[order[a + (share * (b - a)).astype(np.int64)]]
    return found


def fit_chain(
    past: Past, rows: Floats, *, bins: int, half_life_ticks: float, corridor: Corridor
) -> Chain | None:
    """The chain of the known ticks, the latest weighing most; None with too few known windows."""
    cost = past.window_costs(corridor.width_ticks)
    size = len(cost)
    known: npt.NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    whole = known[:size] & np.isfinite(cost)
    if whole.sum() < LEAST_WINDOWS:
        return None
    weight = np.exp2((np.arange(len(rows)) - len(rows)) / half_life_ticks)
    held = weight[:size][whole]
    new = cost[whole] - past.in_flight[:size][whole]
    weights = least_squares(rows[:size][whole], new, held)

    predicted = product(design(rows[known]), weights)
    edges = np.unique(np.quantile(predicted, np.arange(1, bins) / bins))
    number = len(edges) + 1
    level = np.full(len(rows), -1)
    level[known] = np.searchsorted(edges, predicted, side="left")

    both = known[1:] & known[:-1]
    pair = (level[:-1] * number + level[1:])[both]
    counted = np.bincount(pair, weights=weight[1:][both], minlength=number * number)
    kept = counted.reshape(number, number) + 1e-6 * np.eye(number)
    moves = kept / kept.sum(axis=1, keepdims=True)

    prior = 1e-6 * held.max()  # a level without a window is like any
    at = level[:size][whole]
    total = np.bincount(at, weights=held * new, minlength=number) + prior * new.mean()
    arriving = total / (np.bincount(at, weights=held, minlength=number) + prior)
    waiting = nodes(past.in_flight[known], level[known], number)
    mean = float(np.average(cost[whole], weights=held)) or 1.0
    rounds = best_rounds(
        moves,
        arriving[:, None] + waiting,
        prices=mean * np.array(PRICES),
        floor=corridor.floor_ticks,
        ceiling=corridor.ceiling_ticks,
    )
    return Chain(
        weights=tuple(weights.tolist()),
        edges=tuple(edges.tolist()),
        moves=moves.tobytes(),
        new=arriving.tobytes(),
        in_flight=waiting.tobytes(),
        mean_cost=mean,
        rounds=rounds.tobytes(),
    )


def best_rounds(
    moves: Floats, costs: Floats, *, prices: Floats, floor: int, ceiling: int
) -> Floats:
    """phi(price) = least E[cost + price x gap] of one round from a stationary start, [price].

    phi is concave, and f(gap) = max over prices of phi(price) - price x gap is the least mean cost
    of a round whose mean gap is at most that.
    """
    now = costs[:, :, None] + np.zeros(len(prices))  # [level, node, price]
    value = now.mean(axis=1) + ceiling * prices
    for gap in range(ceiling - 1, floor - 1, -1):
        best = np.minimum(now, (product(moves, value) - gap * prices)[:, None, :])
        value = np.add.reduce(best, axis=1) / NODES + gap * prices
    stationary = power(moves, 1 << 12)[:1]
    return np.asarray(product(stationary, value)[0])


def rest_costs(chain: Chain, gaps: npt.ArrayLike, *, corridor: Corridor, rest: Rest) -> Floats:
    """Cost of the rounds after a merge at each gap: left x f(gap that is left for each).

    Without a budget time costs the slope of f at the target gap.
    """
    gaps = np.asarray(gaps, dtype=np.float64)
    prices, rounds = chain.mean_cost * np.array(PRICES), np.frombuffer(chain.rounds)
    if rest.left is None:
        price = prices[(rounds - prices * rest.ticks).argmax()]
        return np.asarray(price * gaps)
    if rest.left <= 0:
        return np.zeros(len(gaps))
    even = (rest.ticks - gaps - corridor.width_ticks) / rest.left - corridor.width_ticks
    even = np.clip(even, corridor.floor_ticks, corridor.ceiling_ticks)
    return np.asarray(rest.left * (rounds - prices * even[:, None]).max(axis=1))


Table = tuple[tuple[float, ...], ...]  # [gap][level]


@lru_cache(maxsize=64)
def plan(chain: Chain, *, corridor: Corridor, last_gap: int, rest: Rest) -> tuple[Table, Table]:
    """Cost of merging now but for what is in flight, and of waiting, for gaps 0..last_gap.

    now_g = new + after_g, later_g = E min(in flight + now_{g+1}, later_{g+1}); at the last gap
    there is no later.
    """
    moves, new, in_flight = chain.arrays()
    after = rest_costs(chain, np.arange(last_gap + 1), corridor=corridor, rest=rest)
    costs = new[:, None] + in_flight  # [level, node]
    later = np.full((last_gap + 1, len(new)), np.inf)
    even, extra = np.full(NODES, 1 / NODES), after.tolist()
    for gap in range(last_gap - 1, min(corridor.floor_ticks, last_gap) - 1, -1):
        best = np.minimum(costs, (later[gap + 1] - extra[gap + 1])[:, None])
        later[gap] = product(moves, product(best, even)) + extra[gap + 1]
    now = new + after[:, None]
    return tuple(map(tuple, now.tolist())), tuple(map(tuple, later.tolist()))


class Foresight:
    """Learns in observe, on a schedule; decide looks its tick and level up in the plan."""

    def __init__(self, config: StoppingConfig, frame: Frame) -> None:
        self._config = config
        self._frame = frame
        memory = frame.ticks(config.memory_s)
        self._half_life_ticks = config.memory_half_life_s / frame.tick_s
        self._history = History(
            half_life_ticks=config.half_life_s / frame.tick_s, memory_ticks=memory
        )
        self._means = Means(tick_s=frame.tick_s, memory_ticks=memory)
        least = LEAST_WINDOWS + frame.corridor.width_ticks
        self._needed = max(frame.ticks(config.least_data_s), least)
        self._refit_ticks = frame.ticks(config.refit_s)
        self._fitted_tick = -math.inf
        self._chain: Chain | None = None

    def observe(self, sample: Sample) -> None:
        """Fold the counts in; learn forecast and chain anew every ``refit_s``."""
        history = self._history
        history.fold(sample)
        self._means.fold(sample, rate=history.rate, over_ticks=history.over_ticks)
        if sample.tick - self._fitted_tick < self._refit_ticks or history.known < self._needed:
            return
        past = history.past()
        chain = fit_chain(
            past,
            self._means.rows(len(past.signal)),
            bins=self._config.bins,
            half_life_ticks=self._half_life_ticks,
            corridor=self._frame.corridor,
        )
        if chain is not None:
            self._chain, self._fitted_tick = chain, sample.tick

    def decide(self, seen: Seen) -> Decision:
        """Merge when what is in flight and expected costs at most the best later stop."""
        chain, features, signal = self._chain, self._means.now, self._history.signal
        if chain is None:
            return too_little_data(seen, known=self._history.known, needed=self._needed)
        if features is None or signal is None:
            return unknown((("signal", None),))
        corridor = self._frame.corridor
        now, later = plan(
            chain,
            corridor=corridor,
            last_gap=max(seen.latest_tick, seen.tick) - seen.last_end_tick,
            rest=rest_of(seen, horizon_ticks=corridor.horizon_ticks),
        )
        gap = seen.tick - seen.last_end_tick
        new = expected(chain.weights, features)
        level = bisect_left(chain.edges, new)
        return forecast(
            now=now[gap][level] + features[-1],
            later=later[gap][level],
            terms=(("signal", signal), ("expected_new", new), ("level", float(level))),
        )
