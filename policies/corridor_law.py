"""The dynamic programme over (merge, slack sum) of one corridor and budget: everything but counts.

Rows are probabilities: w_i(y) = P(x_1 + ... + x_i = y) for independent slacks with
P(x) ~ ratio**x on 0..R. That is (number of ways to y) x ratio**y x a constant of the row, so the
uniform law over schedules is w x ratio**-y, and with the ratio for which the typical schedule has
the total slack wanted no weight that matters overflows or vanishes, whatever the budget.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from policies import corridor_kernels as kernels
from policies.corridor_count import between

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TABLE_BYTES = 1 << 26  # a larger table is held as one row in so many, and filled again in parts
_ROUNDING = 2.0**-53


@dataclass(frozen=True, slots=True, eq=False)
class SlackLaw:
    """Merge i with slack sum y starts at first + (i - 1) * step + sign * y.

    y sums the slack above the floor (sign 1) or below the ceiling (sign -1), whichever is less in
    all; its total lies in low..top.
    """

    budget: int
    reach: int
    low: int
    top: int
    first: int
    step: int
    sign: int
    lo: Ints = field(init=False)  # [row 0..budget]: the range of y that can still end in low..top
    hi: Ints = field(init=False)
    powers: Floats = field(init=False)  # ratio**k
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        rows = np.arange(self.budget + 1, dtype=np.int64)
        lo = np.maximum(0, self.low - (self.budget - rows) * self.reach)
        hi = np.minimum(self.top, rows * self.reach)
        ratio = _ratio(min(self.top / self.budget, self.reach / 2), reach=self.reach)
        powers = np.full(max(self.reach + 1, self.top - self.low) + 1, ratio)
        powers[0] = 1.0
        powers = np.multiply.accumulate(powers)
        powers[powers < kernels.TINY] = 0.0
        object.__setattr__(self, "lo", lo)
        object.__setattr__(self, "hi", hi)
        object.__setattr__(self, "powers", powers)
        object.__setattr__(self, "scale", float(1.0 / powers[: self.reach + 1].sum()))

    def sample(self, *, size: int, rng: np.random.Generator) -> Ints:
        """Starts of ``size`` independent uniform schedules, drawn from the last merge to the first.

        Exactly uniform: y_i is the inverse of its cumulative law at a uniform real of which 64
        bits are drawn. A choice in doubles counts only where the bits known and a proven bound of
        the rounding (error_bounds) leave one cell possible. Elsewhere, which is seldom (none in 8
        million choices on a day of ticks), whole numbers decide, with more bits until they do.
        """
        drawn = np.empty((size, self.budget), dtype=np.int64)
        at = np.full(size, self.budget, dtype=np.int64)  # row of the next choice
        below = np.full(size, self.top, dtype=np.int64)  # y of the row after
        errors = self.error_bounds()
        for row, rows in self._blocks(self._fill_sums, origin=1.0):
            last = row + len(rows) - 1
            words = _words(size * (last - row), rng=rng).reshape(size, last - row)

            def choose_on(
                rows: Floats = rows, row: int = row, words: npt.NDArray[np.uint64] = words
            ) -> int:
                return kernels.draw_rows(
                    rows, row, self.lo, self.hi, self.powers, self.reach, errors, words, at,
                    below, drawn, self.sign,
                )  # fmt: skip

            while choose_on():
                for draw in np.flatnonzero(at > row):
                    i = int(at[draw])
                    word = int(words[draw, last - i])
                    y = self._choose(i, int(below[draw]), word=word, rng=rng)
                    drawn[draw, i - 1] = below[draw] = y
                    at[draw] = i - 1
        return self.first + np.arange(self.budget) * self.step + self.sign * drawn

    def best(self, cost: Floats) -> Ints:
        """Starts with the least total cost; of equal ones the earliest last start, and so on."""
        chosen = np.empty(self.budget, dtype=np.int64)
        low, high = self.low, self.top

        def fill(rows: Floats, row: int) -> None:
            map_ = (self.first, self.step, self.sign)
            kernels.min_rows(rows, row, self.lo, self.hi, self.reach, cost, *map_)

        for row, rows in self._blocks(fill, origin=0.0):
            for i in range(row + len(rows) - 1, row, -1):
                low, high = max(low, int(self.lo[i])), min(high, int(self.hi[i]))
                if self.sign > 0:
                    y = low + int(rows[i - row, low : high + 1].argmin())
                else:
                    y = high - int(rows[i - row, low : high + 1][::-1].argmin())
                chosen[i - 1] = y
                low, high = y - self.reach, y
        return self.first + np.arange(self.budget) * self.step + self.sign * chosen

    def moments(self, cost: Floats) -> tuple[float, float]:
        """Mean and variance of the total cost, each merge's cost centred before it is squared."""
        centres = self._centres(cost)
        unit = float(np.abs(cost).max()) or 1.0
        sums = np.zeros((2, 3, self.top + 1))
        sums[0, 0, 0] = 1.0
        kernels.moment_rows(
            sums, self.lo, self.hi, self.powers, self.reach, self.scale, cost / unit,
            centres / unit, self.first, self.step, self.sign,
        )  # fmt: skip
        weight, once, twice = (
            math.fsum(s * self._last_powers()) for s in sums[self.budget % 2, :, self.low :]
        )
        mean = once / weight
        variance = max(0.0, twice / weight - mean * mean)
        return math.fsum(centres[1:]) + mean * unit, variance * unit * unit

    def start_marginals(self, *, horizon_ticks: int) -> Floats:
        """P(a merge starts at t), by weights from the front times weights from the back."""
        marginals = np.zeros(horizon_ticks + 1)
        back = np.zeros((2, self.top + 1))
        back[0, : self.top - self.low + 1] = self._last_powers()[::-1]
        now, total = 0, 0.0
        for row, rows in self._blocks(self._fill_sums, origin=1.0):
            if not total:
                total = math.fsum(rows[-1, self.low :] * self._last_powers())
            now = kernels.marginal_rows(
                rows, row, self.lo, self.hi, self.powers, self.reach, self.scale, back, now,
                total, marginals, self.first, self.step, self.sign,
            )  # fmt: skip
        return marginals

    def error_bounds(self) -> Floats:
        """Bound of the relative error of a cumulative weight, by row: every rounding counted.

        A step of a row rounds at most 4 (reach + 4) times on the way to any entry (two for each
        of reach + 1 steps of a prefix or suffix, and as much for powers), a cumulative weight
        4 times more for each entry. All terms are positive, so these errors only add.
        """
        widest = max(self.reach, self.top - self.low) + 1
        steps = np.arange(self.budget + 1) * 4.0 * (self.reach + 4) + 4.0 * widest + 64.0
        errors: Floats = np.multiply(steps, 1.1 * _ROUNDING, dtype=np.float64)
        errors[errors > 0.01] = 1.0  # whole numbers decide all
        return errors

    def _blocks(
        self, fill: Callable[[Floats, int], None], *, origin: float
    ) -> Iterator[tuple[int, Floats]]:
        """Rows in parts from the last to the first: (number of its first row, rows).

        A part's first row is the last row of the part before it. The whole table where it is
        small; else one row in about sqrt(budget) is kept and each part filled again from it.
        """
        width = self.top + 1
        whole = (self.budget + 1) * width * 8 <= TABLE_BYTES
        span = self.budget if whole else math.isqrt(self.budget) + 1
        firsts = range(0, self.budget, span)
        kept = np.empty((len(firsts), width))
        kept[0, 0] = origin  # y_0 = 0 always
        rows = np.empty((span + 1, width))
        for part, row in enumerate(firsts):
            rows[0] = kept[part]
            fill(rows[: min(span, self.budget - row) + 1], row)
            if part + 1 < len(firsts):
                kept[part + 1] = rows[span]
        for part, row in reversed(list(enumerate(firsts))):
            some = rows[: min(span, self.budget - row) + 1]
            if part + 1 < len(firsts):
                rows[0] = kept[part]
                fill(some, row)
            yield row, some

    def _fill_sums(self, rows: Floats, row: int) -> None:
        kernels.sum_rows(rows, row, self.lo, self.hi, self.powers, self.reach, self.scale)

    def _last_powers(self) -> Floats:
        """What turns w_B(y) into the law of the total slack, for y = low..top."""
        return self.powers[: self.top - self.low + 1][::-1]

    def _choose(self, row: int, below: int, *, word: int, rng: np.random.Generator) -> int:
        """The same choice in whole numbers: the cell with all of [word, word + 1) / 2**bits."""
        a, b = int(self.lo[row]), int(self.hi[row])
        if row < self.budget:
            a, b = max(a, below - self.reach), min(b, below)

        def upto(cell: int) -> int:
            low, high = (a, a + cell) if self.sign > 0 else (b - cell, b)
            return between(row, low, high, reach=self.reach)

        bits, total = 64, upto(b - a)
        while True:
            cell = bisect_right(range(b - a), word * total, key=lambda c: upto(c) << bits)
            if cell == b - a or upto(cell) << bits >= (word + 1) * total:
                return a + cell if self.sign > 0 else b - cell
            word = word << 64 | int(_words(1, rng=rng)[0])
            bits += 64

    def _centres(self, cost: Floats) -> Floats:
        """About the mean cost of merge i, [0, 1..B]: near is enough, it only keeps digits."""
        rows = np.arange(self.budget + 1)
        y = rows * (self.low + self.top) / (2 * self.budget)
        half = self.reach * np.sqrt((rows * (self.budget - rows) / self.budget + 1) / 12)
        y_from = np.clip(np.floor(y - half), self.lo, self.hi).astype(np.int64)
        y_to = np.clip(np.ceil(y + half), self.lo, self.hi).astype(np.int64)
        at = self.first + (rows - 1) * self.step
        ends = np.sort(np.stack([at + self.sign * y_from, at + self.sign * y_to]), axis=0)
        sums = np.concatenate([[0.0], np.cumsum(cost)])
        a, b = ends[:, 1:]
        centres: Floats = np.zeros(self.budget + 1, dtype=np.float64)
        np.divide(sums[b + 1] - sums[a], b + 1 - a, out=centres[1:])
        return centres


def _words(number: int, *, rng: np.random.Generator) -> npt.NDArray[np.uint64]:
    return np.frombuffer(rng.bytes(8 * number), dtype="<u8").astype(np.uint64)


def _ratio(mean: float, *, reach: int) -> float:
    """The ratio of P(x) ~ ratio**x on 0..reach with about this mean, at most half of reach."""
    if mean >= 0.499 * reach:
        return 1.0
    least, most = 0.0, 40.0
    for _ in range(40):  # bisection over -log(ratio); any ratio gives the same law
        rate = (least + most) / 2
        beyond = (reach + 1) * rate
        found = 1 / math.expm1(rate) - ((reach + 1) / math.expm1(beyond) if beyond < 700 else 0.0)
        least, most = (rate, most) if found > mean else (least, rate)
    return math.exp(-most)
