"""The least expected cost that any causal policy can reach at a fixed budget on an on/off law.

Law: the state s is off or on for exponential times (rates of leaving q_off, q_on), arrivals are
Poisson at rate r_s, a request stays in flight for 1.5 ticks. The decider knows the law and, at each
tick t, the state s_t and every arrival so far. Of these matter for what comes, because s is Markov
and arrivals are Poisson given s: s_t, n = arrivals in (t - 1.5, t] (in flight now) and
a = arrivals in (t - 0.5, t] (still in flight at t + 1). A policy that sees counts alone knows less,
so the optimum bounds its expected cost from below.

A merge from t costs n + E[arrivals in (t, t + W] | s_t]. With k = q_off + q_on, stationary share of
on p = q_off / k and mean rate m = (1 - p) r_off + p r_on, P(on at t + u | s) = p + (1{s = on} - p)
e^(-k u), hence in closed form

    new_s = m W + (r_s - m) (1 - e^(-k W)) / k        as r_s - m = (r_on - r_off)(1{s = on} - p).

Backward over merges left b, ticks and gaps, V_0 = 0 and e the end of the last merge:

    later_{b,e}(t, s, a) = E min(n' + new_{s'} + E[V_{b-1}(t + 1 + W, s_{t+1+W}) | s'],
                                 later_{b,e}(t + 1, s', a'))
    V_b(e, s) = later_{b,e}(e, s, .)

the first term of the minimum only for t + 1 in Corridor.next_range, which keeps the budget. Over a
tick c requests arrive in the first half and a' in the second: n' = a + c + a'. The joint law of
(count, state) over half a tick is exact: exp(h [D0 D1; 0 D0 D1; ...]) with D0 = Q - diag(r) and
D1 = diag(r) (Neuts 1979, the versatile Markovian point process), counts cut where P < 1e-9.
The floor is at least 2 ticks, so a at the end of a merge is forgotten before the next decision.

The same with less to count or to know: on new requests alone n has no weight, and the optimum is a
bound again. A decider that sees the state alone pays E[n | s] for n: the chain is reversible, so
that is new_s with 1.5 ticks for W. It is no bound for a policy that sees what is in flight.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import linalg, stats

from policies.corridor import Corridor

Floats = npt.NDArray[np.float64]
HALF_TICK, SERVICE_TICKS = 0.5, 1.5


class Sees(StrEnum):
    """Which cost counts, and what the optimum knows."""

    ALL = "full, sees arrivals"
    NEW = "new"
    STATE = "full, sees the state alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOffLaw:
    """Mean times in ticks, arrival rates per tick."""

    off_ticks: float
    on_ticks: float
    low: float
    high: float

    @property
    def leaving(self) -> Floats:
        return np.array([1 / self.off_ticks, 1 / self.on_ticks])

    @property
    def rates(self) -> Floats:
        return np.array([self.low, self.high])

    @property
    def stationary(self) -> Floats:
        """[off, on]"""
        return np.array([self.off_ticks, self.on_ticks]) / (self.off_ticks + self.on_ticks)

    def generator(self) -> Floats:
        off, on = self.leaving
        return np.array([[-off, off], [on, -on]])

    def moves(self, ticks: float) -> Floats:
        """P(state after ``ticks`` | state), [from, to]."""
        return np.asarray(linalg.expm(self.generator() * ticks))

    def arriving(self, ticks: float) -> Floats:
        """Expected arrivals of that time after a tick, or before it, by the state at the tick."""
        k = float(self.leaving.sum())
        mean = float(self.stationary @ self.rates)
        excess = (self.rates - mean) * -math.expm1(-k * ticks) / k
        return np.asarray(mean * ticks + excess)

    def half_tick(self) -> Floats:
        """P(count, state after half a tick | state), [from, to, count]."""
        most = int(stats.poisson.isf(1e-9, HALF_TICK * max(self.low, self.high))) + 1
        d1 = np.diag(self.rates)
        d0 = self.generator() - d1
        blocks = np.kron(np.eye(most + 1), d0) + np.kron(np.eye(most + 1, k=1), d1)
        first = linalg.expm(HALF_TICK * blocks)[:2].reshape(2, most + 1, 2)
        joint = np.asarray(first.transpose(0, 2, 1))
        return joint / joint.sum(axis=(1, 2), keepdims=True)


def random_cost(law: OnOffLaw, *, budget: int, width_ticks: int, sees: Sees = Sees.ALL) -> float:
    """Expected cost of any placement that does not look, from a stationary start."""
    counted_ticks = width_ticks + (0.0 if sees is Sees.NEW else SERVICE_TICKS)
    return budget * float(law.stationary @ law.rates) * counted_ticks


@lru_cache(maxsize=8)  # a page asks for the same ones again
def least_cost(law: OnOffLaw, corridor: Corridor, budget: int, *, sees: Sees = Sees.ALL) -> float:
    """The optimum's expected cost, from a stationary start at tick 0."""
    if corridor.floor_ticks < 2:
        raise ValueError(
            f"floor_ticks={corridor.floor_ticks} is below 2: what is in flight at the end of a "
            "merge would matter; raise the floor"
        )
    corridor.require(budget)
    half, new = law.half_tick(), law.arriving(corridor.width_ticks)
    if sees is not Sees.ALL:
        half = law.moves(HALF_TICK)[:, :, None]  # no count: nothing is in flight
    if sees is Sees.STATE:
        new = new + law.arriving(SERVICE_TICKS)
    across = law.moves(corridor.width_ticks)
    value = np.zeros((corridor.horizon_ticks + 1, 2))  # V_0, [end, state]
    for left in range(1, budget + 1):
        now = np.full((corridor.horizon_ticks + 1, 2), np.inf)  # without n, [start, state]
        last = corridor.horizon_ticks - corridor.width_ticks
        now[: last + 1] = new + value[corridor.width_ticks :] @ across.T
        value = _round(corridor, half, now, done=budget - left, budget=budget)
    return float(law.stationary @ value[0])


def _round(corridor: Corridor, half: Floats, now: Floats, *, done: int, budget: int) -> Floats:
    """V_b from the cost of a start: one stopping problem for each end of the merge before."""
    ends = np.arange(1 if done == 0 else corridor.horizon_ticks + 1)
    ranges = [
        corridor.next_range(merges_done=done, last_end_tick=int(e), budget=budget) for e in ends
    ]
    open_ = np.array([e for e, bounds in zip(ends, ranges, strict=True) if bounds is not None])
    bounds = np.array([bounds for bounds in ranges if bounds is not None])
    most = half.shape[2] - 1
    later = np.full((len(open_), 2, most + 1), np.inf)  # [end, state, a]
    for gap in range(corridor.ceiling_ticks, 0, -1):
        tick = open_ + gap
        may = (tick >= bounds[:, 0]) & (tick <= bounds[:, 1])
        cost = np.where(may[:, None], now[np.minimum(tick, len(now) - 1)], np.inf)
        later = _tick_before(half, cost, later)
    value = np.full((corridor.horizon_ticks + 1, 2), np.inf)
    value[open_] = later[:, :, 0]
    return value


def _tick_before(half: Floats, cost: Floats, later: Floats) -> Floats:
    """later at t from the costs [end, state] and later [end, state, a] at t + 1."""
    most = half.shape[2] - 1
    carried = np.arange(2 * most + 1)  # a + c
    if np.isfinite(cost).any():
        waiting = carried[:, None] + np.arange(most + 1)  # n' = a + c + a', [a + c, a']
        best = np.minimum(cost[:, :, None, None] + waiting, later[:, :, None, :])
        middle = np.einsum("mta,etka->emk", half, best, optimize=True)  # [end, middle, a + c]
    else:  # no start at t + 1: what is in flight does not matter
        middle = np.einsum("mta,eta->em", half, later)[:, :, None].repeat(len(carried), axis=2)
    before = np.empty_like(later)
    for a in range(most + 1):
        before[:, :, a] = np.einsum("smc,emc->es", half, middle[:, :, a : a + most + 1])
    return before
