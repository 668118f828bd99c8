"""The corridor in ticks: which merge schedules are feasible, how many, and uniform draws of them.

Exact throughout: counts are whole numbers of any size, and draws have no rounding bias.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from policies.config import CorridorConfig
from policies.ticks import ticks_down, ticks_nearest, ticks_up, whole_ticks


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
        if bounds is None:
            return 0
        rows = _prefix_rows(budget, reach=self._reach, top=bounds[1])
        (last,) = deque(rows, maxlen=1)
        return last[-1] - _at(last, bounds[0] - 1)

    def contains(self, starts: Iterable[int]) -> bool:
        """Whether these start ticks are a feasible schedule (of at least one merge)."""
        ticks = [int(t) for t in starts]
        if not ticks:
            return False
        ends = [0, *(t + self.width_ticks for t in ticks)]
        gaps = [start - end for start, end in zip(ticks, ends[:-1], strict=True)]
        return (
            all(self.floor_ticks <= gap <= self.ceiling_ticks for gap in gaps)
            and ends[-1] <= self.horizon_ticks
            and ends[-1] + self.ceiling_ticks > self.horizon_ticks - self.width_ticks
        )

    def sample(self, budget: int, *, size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """``size`` independent schedules, exactly uniform over the feasible ones of ``budget``."""
        low, top = self.require(budget)
        table = _table(budget, reach=self._reach, top=top)
        total = table[-1][-1] - _at(table[-1], low - 1)
        schedules = [self._schedule(_below(total, rng=rng), table, low) for _ in range(size)]
        return np.array(schedules, dtype=np.int64).reshape(size, budget)  # [size, budget]

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

    def _schedule(self, rank: int, table: tuple[list[int], ...], slack_low: int) -> list[int]:
        """The feasible schedule of number ``rank``: a bijection from 0..count(budget)-1."""
        budget = len(table) - 1
        starts = []
        rank += _at(table[budget], slack_low - 1)
        for i in range(budget, 0, -1):
            slack = bisect_right(table[i], rank)
            starts.append(self.floor_ticks + (i - 1) * self._period + slack)
            # Now the rank among the schedules with this y_i, counted from y_{i-1} = 0.
            rank += _at(table[i - 1], slack - self._reach - 1) - _at(table[i], slack - 1)
        return starts[::-1]


def _prefix_rows(budget: int, *, reach: int, top: int) -> Iterator[list[int]]:
    """Rows i = 0..B; entry y of row i counts the x_1..x_i in 0..reach with a sum of at most y."""
    row = [1] * (top + 1)
    yield row
    for _ in range(budget):
        row = list(accumulate(row[y] - _at(row, y - reach - 1) for y in range(top + 1)))
        yield row


@lru_cache(maxsize=4)  # few, for long horizons make them large
def _table(budget: int, *, reach: int, top: int) -> tuple[list[int], ...]:
    return tuple(_prefix_rows(budget, reach=reach, top=top))


def _at(row: list[int], index: int) -> int:
    """Entry of a prefix row, 0 below its start."""
    return row[index] if index >= 0 else 0


def _below(limit: int, *, rng: np.random.Generator) -> int:
    """Uniform in 0..limit-1 for a limit of any size: random bits, drawn again when too large."""
    bits = (limit - 1).bit_length()
    size = (bits + 7) // 8
    while True:
        value = int.from_bytes(rng.bytes(size), "little") >> (8 * size - bits)
        if value < limit:
            return value


def _advice(budgets: list[int]) -> str:
    if not budgets:
        return "no budget is feasible: lengthen the horizon or widen the corridor"
    breaks = [0, *(i for i, (a, b) in enumerate(pairwise(budgets), 1) if b > a + 1), len(budgets)]
    runs = [(budgets[a], budgets[b - 1]) for a, b in pairwise(breaks)]
    named = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)
    return f"feasible budgets: {named}"


def corridor_from_steps(
    config: CorridorConfig,
    *,
    step_interval_s: float,
    tick_s: float,
    window_s: float,
    horizon_s: float,
) -> Corridor:
    """The study's corridor in ticks (floor up, ceiling down), checked to hold its budget."""
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
    corridor.require(config.budget_merges)
    return corridor


def target_gap_ticks(config: CorridorConfig, *, step_interval_s: float, tick_s: float) -> int:
    """End-to-start gap of the target cadence: the nearest tick inside the corridor.

    Inner steps pause during a merge, so ``target_steps`` all fall into the gap.
    """
    floor = ticks_up(config.floor_steps, step_interval_s=step_interval_s, tick_s=tick_s)
    ceiling = ticks_down(config.ceiling_steps, step_interval_s=step_interval_s, tick_s=tick_s)
    nearest = ticks_nearest(config.target_steps, step_interval_s=step_interval_s, tick_s=tick_s)
    return min(max(nearest, floor), ceiling)
