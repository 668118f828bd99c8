"""The corridor in ticks: which merge schedules are feasible, how many, and uniform draws of them.

Exact: counts are whole numbers of any size, draws have no rounding bias, the oracle is the optimum,
mean and variance of a cost under uniform placement come from the whole law, not from draws.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from policies.config import CorridorConfig
from policies.corridor_count import between
from policies.ticks import ticks_down, ticks_nearest, ticks_up, whole_ticks

if TYPE_CHECKING:
    from policies.corridor_law import SlackLaw


@dataclass(frozen=True, slots=True)
class Corridor:
    """Floor h_min, ceiling h_max, width W and horizon T, all in ticks.

    Starts s_1 < ... < s_B are feasible when s_1 and every gap s_{i+1} - (s_i + W) lie in
    [h_min, h_max], s_B + W <= T, and no further merge could have been forced:
    s_B + W + h_max > T - W.

    With slack x_i = gap_i - h_min in 0..R, R = h_max - h_min, and running sums
    y_i = x_1 + ... + x_i, s_i = h_min + (i - 1)(W + h_min) + y_i: only the sums matter.
    """

    floor_ticks: int
    ceiling_ticks: int
    width_ticks: int
    horizon_ticks: int

    def __post_init__(self) -> None:
        least = {"floor_ticks": 0, "ceiling_ticks": 1, "width_ticks": 1, "horizon_ticks": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ValueError(f"{name}={value!r} is no whole number of at least {low}")
        if self.floor_ticks > self.ceiling_ticks:
            raise ValueError(
                f"floor_ticks={self.floor_ticks} is above ceiling_ticks={self.ceiling_ticks}; "
                "lower the floor or raise the ceiling"
            )

    def budgets(self) -> list[int]:
        """Every budget with at least one feasible schedule, in rising order."""
        most = (self.horizon_ticks - self.width_ticks - self.floor_ticks) // self._period + 1
        return [b for b in range(1, most + 1) if self._slack_range(b) is not None]

    def count(self, budget: int) -> int:
        """How many feasible schedules have exactly ``budget`` merges."""
        bounds = self._slack_range(budget)
        return 0 if bounds is None else between(budget, *bounds, reach=self._reach)

    def contains(self, starts: Iterable[int]) -> bool:
        """Whether these start ticks are a feasible schedule (of at least one merge)."""
        given = list(starts)
        ticks = [int(t) for t in given]
        if not ticks or ticks != given:
            return False
        ends = [0, *(t + self.width_ticks for t in ticks)]
        gaps = [start - end for start, end in zip(ticks, ends[:-1], strict=True)]
        return (
            all(self.floor_ticks <= gap <= self.ceiling_ticks for gap in gaps)
            and ends[-1] <= self.horizon_ticks
            and ends[-1] + self.ceiling_ticks > self.horizon_ticks - self.width_ticks
        )

    def sample(self, budget: int, *, size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """``size`` independent schedules, exactly uniform over the feasible ones of ``budget``.

        Long horizons too, in bounded memory: see SlackLaw.sample for why no rounding enters.
        """
        return _law(self, budget).sample(size=size, rng=rng)  # [size, budget]

    def best(self, cost: npt.ArrayLike, budget: int) -> tuple[float, tuple[int, ...]]:
        """The oracle: least total cost of ``budget`` merges, and starts that reach it.

        cost[t] is the cost of a merge that starts at tick t.
        """
        law, prices = _law(self, budget), self._cost(cost)
        starts = tuple(law.best(prices).tolist())
        return float(sum(prices[t] for t in starts)), starts

    def best_any_count(
        self, cost: npt.ArrayLike, *, price_per_merge: float = 0.0
    ) -> tuple[float, tuple[int, ...]]:
        """The oracle over schedules of every feasible budget, each merge paying the price too."""
        from policies import corridor_kernels as kernels

        if not math.isfinite(price_per_merge):
            raise ValueError(f"price_per_merge={price_per_merge} is not finite; give a number")
        prices = self._cost(cost) + price_per_merge
        totals = np.full(len(prices), np.inf)
        before = np.full(len(prices), -2, dtype=np.int64)
        kernels.chain_minima(
            prices, self.floor_ticks, self.ceiling_ticks, self.width_ticks, totals, before
        )
        first, last = self._last_start_range
        first = max(first, 0)
        if last < first or not np.isfinite(totals[first : last + 1]).any():
            raise ValueError(f"no schedule fits {self}; {_advice(self.budgets())}")
        starts = [first + int(totals[first : last + 1].argmin())]
        while before[starts[-1]] >= 0:
            starts.append(int(before[starts[-1]]))
        return float(totals[starts[0]]), tuple(starts[::-1])

    def moments(self, cost: npt.ArrayLike, budget: int) -> tuple[float, float]:
        """Mean and variance of the total cost of ``budget`` merges placed uniformly."""
        return _law(self, budget).moments(self._cost(cost))

    def start_marginals(self, budget: int) -> npt.NDArray[np.float64]:
        """Expected number of merges that start at each tick 0..T, placed uniformly (read-only).

        They sum to ``budget``; their dot product with a cost is its mean.
        """
        return kept_marginals(self, budget)

    def next_range(
        self, *, merges_done: int, last_end_tick: int, budget: int
    ) -> tuple[int, int] | None:
        """Ticks in which the next merge must start so that exactly ``budget`` stay feasible.

        With r merges left after a start at t: t - last_end_tick in [h_min, h_max],
        t + r(W + h_min) <= T - W and t + r(W + h_max) >= T - 2W - h_max + 1.
        None when the budget is spent, or when no start can keep it any more.
        """
        if merges_done >= budget:
            return None
        left = budget - merges_done - 1
        first, last = self._last_start_range
        earliest = max(
            last_end_tick + self.floor_ticks,
            first - left * (self.width_ticks + self.ceiling_ticks),
        )
        latest = min(last_end_tick + self.ceiling_ticks, last - left * self._period)
        return (earliest, latest) if earliest <= latest else None

    def require(self, budget: int) -> tuple[int, int]:
        """Range of the total slack; ValueError naming the feasible budgets when it is empty."""
        bounds = self._slack_range(budget)
        if bounds is None:
            raise ValueError(
                f"budget_merges={budget} does not fit into horizon_ticks={self.horizon_ticks} "
                f"with merges of {self.width_ticks} ticks and gaps of {self.floor_ticks} to "
                f"{self.ceiling_ticks} ticks; {_advice(self.budgets())}"
            )
        return bounds

    @property
    def _period(self) -> int:
        return self.width_ticks + self.floor_ticks

    @property
    def _reach(self) -> int:
        return self.ceiling_ticks - self.floor_ticks

    @property
    def _last_start_range(self) -> tuple[int, int]:
        """First and last tick at which the last merge may start."""
        last = self.horizon_ticks - self.width_ticks
        return last - self.width_ticks - self.ceiling_ticks + 1, last

    def _slack_range(self, budget: int) -> tuple[int, int] | None:
        """Least and most total slack y_B; None when the budget is infeasible."""
        if budget < 1:
            return None
        first, last = self._last_start_range
        packed = self.floor_ticks + (budget - 1) * self._period
        low, high = max(0, first - packed), min(last - packed, budget * self._reach)
        return (low, high) if low <= high else None

    def _cost(self, cost: npt.ArrayLike) -> npt.NDArray[np.float64]:
        prices = np.ascontiguousarray(cost, dtype=np.float64)
        if prices.shape != (self.horizon_ticks + 1,):
            raise ValueError(
                f"cost has shape {prices.shape}; give one number for each tick 0 to "
                f"horizon_ticks={self.horizon_ticks}, that is ({self.horizon_ticks + 1},)"
            )
        if not np.isfinite(prices).all():
            tick = int(np.isfinite(prices).argmin())
            raise ValueError(f"cost[{tick}]={prices[tick]} is not finite; give a number")
        return prices


@lru_cache(maxsize=16)
def _law(corridor: Corridor, budget: int) -> "SlackLaw":
    """The uniform law over schedules, in slack below the ceiling where that is the smaller sum."""
    from policies.corridor_law import SlackLaw  # numba loads here, not with every wrapper

    low, top = corridor.require(budget)
    floor, ceiling, width = corridor.floor_ticks, corridor.ceiling_ticks, corridor.width_ticks
    reach = ceiling - floor
    if low + top <= budget * reach:
        return SlackLaw(budget, reach, low, top, first=floor, step=width + floor, sign=1)
    low, top = budget * reach - top, budget * reach - low
    return SlackLaw(budget, reach, low, top, first=ceiling, step=width + ceiling, sign=-1)


@lru_cache(maxsize=16)
def kept_marginals(corridor: Corridor, budget: int) -> npt.NDArray[np.float64]:
    """Kept, for a control's mean is asked for again and again."""
    marginals = _law(corridor, budget).start_marginals(horizon_ticks=corridor.horizon_ticks)
    marginals.flags.writeable = False
    return marginals


def _advice(budgets: list[int]) -> str:
    if not budgets:
        return "no budget is feasible: lengthen the horizon or widen the corridor"
    breaks = [0, *(i for i, (a, b) in enumerate(pairwise(budgets), 1) if b > a + 1), len(budgets)]
    runs = [(budgets[a], budgets[b - 1]) for a, b in pairwise(breaks)]
    named = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)
    return f"feasible budgets: {named}"


@lru_cache(maxsize=64)
def corridor_from_steps(
    config: CorridorConfig,
    *,
    step_interval_s: float,
    tick_s: float,
    window_s: float,
    horizon_s: float,
) -> Corridor:
    """The study's corridor in ticks (floor up, ceiling down), checked to hold its budget.

    Without a budget it has to hold one merge.
    """
    floor = ticks_up(config.floor_steps, step_interval_s=step_interval_s, tick_s=tick_s)
    ceiling = ticks_down(config.ceiling_steps, step_interval_s=step_interval_s, tick_s=tick_s)
    if floor > ceiling or ceiling < 1:
        raise ValueError(
            f"corridor: floor_steps={config.floor_steps} to ceiling_steps={config.ceiling_steps} "
            f"at step_interval_s={step_interval_s} leave no whole tick of tick_s={tick_s} "
            f"(floor {floor}, ceiling {ceiling} ticks); widen the corridor or lower tick_s"
        )
    corridor = Corridor(
        floor_ticks=floor,
        ceiling_ticks=ceiling,
        width_ticks=whole_ticks(window_s, tick_s=tick_s, what="window_s"),
        horizon_ticks=whole_ticks(horizon_s, tick_s=tick_s, what="horizon_s"),
    )
    if config.budget_merges is not None:
        corridor.require(config.budget_merges)
    elif floor + corridor.width_ticks > corridor.horizon_ticks:
        raise ValueError(
            f"corridor: a merge of {corridor.width_ticks} ticks after floor_steps="
            f"{config.floor_steps} ({floor} ticks) does not end by horizon_s={horizon_s:g}; raise "
            "horizon_s or lower floor_steps"
        )
    return corridor


@lru_cache(maxsize=64)
def target_gap_ticks(config: CorridorConfig, *, step_interval_s: float, tick_s: float) -> int:
    """End-to-start gap of the target cadence: the nearest tick inside the corridor.

    Inner steps pause during a merge, so ``target_steps`` all fall into the gap.
    """
    floor = ticks_up(config.floor_steps, step_interval_s=step_interval_s, tick_s=tick_s)
    ceiling = ticks_down(config.ceiling_steps, step_interval_s=step_interval_s, tick_s=tick_s)
    nearest = ticks_nearest(config.target_steps, step_interval_s=step_interval_s, tick_s=tick_s)
    return min(max(nearest, floor), ceiling)
