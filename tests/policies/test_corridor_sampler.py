"""Draws are uniform over the feasible schedules: exactly in the bits, and by chi-square."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from policies.corridor import Corridor

stats = pytest.importorskip("scipy.stats")

CORRIDORS = [
    (Corridor(floor_ticks=1, ceiling_ticks=4, width_ticks=2, horizon_ticks=15), 3),
    (Corridor(floor_ticks=0, ceiling_ticks=3, width_ticks=1, horizon_ticks=10), 4),
    (Corridor(floor_ticks=2, ceiling_ticks=8, width_ticks=3, horizon_ticks=20), 2),
    (Corridor(floor_ticks=2, ceiling_ticks=5, width_ticks=1, horizon_ticks=25), 5),
    (Corridor(floor_ticks=3, ceiling_ticks=9, width_ticks=4, horizon_ticks=36), 3),
]


def chi_square_p(corridor: Corridor, budget: int, drawn: npt.NDArray[np.int64]) -> float:
    """p of the draws under uniformity over all feasible schedules, absent ones counted."""
    counts = Counter(map(tuple, drawn.tolist()))
    observed = [*counts.values(), *[0] * (corridor.count(budget) - len(counts))]
    return float(stats.chisquare(observed).pvalue)


def one_by_one(
    corridor: Corridor, budget: int, *, size: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """The tempting wrong sampler: each start uniform over the range that is still feasible."""
    rows = []
    for _ in range(size):
        starts: list[int] = []
        end = 0
        for done in range(budget):
            bounds = corridor.next_range(merges_done=done, last_end_tick=end, budget=budget)
            assert bounds is not None
            starts.append(int(rng.integers(bounds[0], bounds[1] + 1)))
            end = starts[-1] + corridor.width_ticks
        rows.append(starts)
    return np.array(rows)


def test_draws_pass_the_chi_square_test_pooled_over_corridors() -> None:
    p_values = []
    for i, (corridor, budget) in enumerate(CORRIDORS):
        size = 10 * corridor.count(budget)
        for repeat in range(8):
            rng = np.random.default_rng([i, repeat])
            drawn = corridor.sample(budget, size=size, rng=rng)
            p_values.append(chi_square_p(corridor, budget, drawn))
    assert stats.combine_pvalues(p_values).pvalue > 0.001  # not too uneven
    assert stats.combine_pvalues([1 - p for p in p_values]).pvalue > 0.001  # nor too even


def test_the_same_test_rejects_drawing_one_start_after_another() -> None:
    p_values = []
    for i, (corridor, budget) in enumerate(CORRIDORS):
        rng = np.random.default_rng(i)
        drawn = one_by_one(corridor, budget, size=10 * corridor.count(budget), rng=rng)
        p_values.append(max(chi_square_p(corridor, budget, drawn), 1e-300))  # 0 has no logarithm
    assert stats.combine_pvalues(p_values).pvalue < 1e-9


def test_first_start_follows_its_exact_law_where_counts_pass_64_bits() -> None:
    corridor = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=600)
    budget, size = 12, 6000
    drawn = corridor.sample(budget, size=size, rng=np.random.default_rng(5))
    total = corridor.count(budget)
    expected, observed = [], []
    for t in range(16, 65):
        rest = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=592 - t)
        expected.append(size * (rest.count(budget - 1) / total))
        observed.append(int((drawn[:, 0] == t).sum()))
    assert sum(observed) == size
    assert stats.chisquare(observed, expected, sum_check=False).pvalue > 0.001


class EveryByte:
    """Stands in for a Generator: all 256 bytes, each once."""

    def __init__(self) -> None:
        self.left = list(range(256))

    def bytes(self, size: int) -> bytes:
        assert size == 1
        return bytes([self.left.pop(0)])


def test_over_all_random_bytes_every_schedule_comes_equally_often() -> None:
    """Bits that spell a rank too large are drawn again, so nothing is favoured."""
    corridor, budget = CORRIDORS[0]
    total = corridor.count(budget)
    assert total & (total - 1), "a power of two would never draw again"
    repeats = 1 << (8 - (total - 1).bit_length())
    rng = EveryByte()
    drawn = corridor.sample(budget, size=total * repeats, rng=rng)  # type: ignore[arg-type]
    counts = Counter(map(tuple, drawn.tolist()))
    assert len(counts) == total
    assert set(counts.values()) == {repeats}
    # What is left would have been drawn again, all of it.
    with pytest.raises(IndexError):
        corridor.sample(budget, size=1, rng=rng)  # type: ignore[arg-type]


def test_draws_repeat_with_the_seed_and_have_the_stated_shape() -> None:
    corridor = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=600)
    first = corridor.sample(12, size=50, rng=np.random.default_rng(7))
    again = corridor.sample(12, size=50, rng=np.random.default_rng(7))
    other = corridor.sample(12, size=50, rng=np.random.default_rng(8))
    assert first.shape == (50, 12)
    assert first.dtype == np.int64
    assert (first == again).all()
    assert (first != other).any()
    assert all(corridor.contains(row) for row in first)
    assert corridor.sample(12, size=0, rng=np.random.default_rng(7)).shape == (0, 12)


def test_the_only_feasible_schedule_is_drawn_without_chance() -> None:
    corridor = Corridor(floor_ticks=5, ceiling_ticks=5, width_ticks=1, horizon_ticks=12)
    drawn = corridor.sample(2, size=3, rng=np.random.default_rng(0))
    assert drawn.tolist() == [[5, 11]] * 3
