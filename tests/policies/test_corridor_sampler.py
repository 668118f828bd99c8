"""Draws are uniform over the feasible schedules: exactly in the bits, and by chi-square."""

from collections import Counter
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from policies import corridor_kernels as kernels
from policies.corridor import Corridor
from policies.corridor_count import between
from policies.corridor_law import SlackLaw

stats = pytest.importorskip("scipy.stats")

BruteForce = list[tuple[Corridor, dict[int, npt.NDArray[np.int64]]]]

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


@pytest.mark.slow
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


class Script:
    """Stands in for a Generator: these 64-bit words, one after another."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.more: list[int] = []  # asked for where a word leaves two cells possible

    def bytes(self, size: int) -> bytes:
        if self.words:
            assert size == 8 * len(self.words)
            words, self.words = self.words, []
        else:
            words = [self.more.pop(0) for _ in range(size // 8)]
        return b"".join(word.to_bytes(8, "little") for word in words)


def script_at_boundaries(
    schedules: npt.NDArray[np.int64], rng: np.random.Generator
) -> tuple[Script, list[int]]:
    """Words at the very edge between two starts, last merge first, and the schedule they spell."""
    script, starts = Script(), []
    left = schedules
    for merge in range(schedules.shape[1] - 1, -1, -1):
        cells, sizes = np.unique(left[:, merge], return_counts=True)
        total = len(left)
        k = int(rng.integers(len(cells)))
        edge = int(sizes[:k].sum()) << 64  # the lower edge of cell k, times total
        word = -(-edge // total)  # the first word all inside it
        if k and rng.random() < 0.7:
            word -= 1
            if edge % total == 0:
                k -= 1  # the last word of the cell before
            elif rng.random() < 0.5:
                script.more.append(0)
                k -= 1
            else:
                script.more.append(2**64 - 1)
        script.words.append(word)
        starts.append(int(cells[k]))
        left = left[left[:, merge] == cells[k]]
    return script, starts[::-1]


@pytest.mark.slow
def test_words_at_every_edge_fall_to_the_side_that_whole_numbers_say(
    brute_force: BruteForce,
) -> None:
    """2**-64 to either side of an edge, and astride it, where more bits must decide."""
    rng = np.random.default_rng(3)
    cases = astride = 0
    for corridor, by_budget in brute_force:
        for budget, schedules in by_budget.items():
            for _ in range(3):
                script, expected = script_at_boundaries(schedules, rng)
                astride += len(script.more)
                drawn = corridor.sample(budget, size=1, rng=script)  # type: ignore[arg-type]
                assert drawn[0].tolist() == expected, (corridor, budget)
                assert not script.more
                cases += 1
    assert cases > 1500
    assert astride > 500


@pytest.mark.slow
def test_p_values_over_all_small_corridors_are_uniform(brute_force: BruteForce) -> None:
    rng = np.random.default_rng(11)
    p_values = []
    for corridor, by_budget in brute_force:
        for budget, schedules in by_budget.items():
            if 5 <= len(schedules) <= 400:
                drawn = corridor.sample(budget, size=20 * len(schedules), rng=rng)
                assert all(map(corridor.contains, drawn[:20]))
                p_values.append(chi_square_p(corridor, budget, drawn))
    assert len(p_values) >= 500
    assert stats.kstest(p_values, "uniform").pvalue > 0.001


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_table_filled_in_parts_draws_uniformly_too(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr("policies.corridor_law.TABLE_BYTES", 0)
    corridor, budget = CORRIDORS[1:4][place]
    drawn = corridor.sample(
        budget, size=20 * corridor.count(budget), rng=np.random.default_rng(place)
    )
    assert chi_square_p(corridor, budget, drawn) > 0.001


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


@pytest.mark.parametrize("budget", [8, 12, 25])
def test_choices_in_doubles_are_those_in_whole_numbers(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    corridor = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=600)
    fast = corridor.sample(budget, size=60, rng=np.random.default_rng(9))
    never_sure = np.ones(budget + 1)
    monkeypatch.setattr("policies.corridor_law.SlackLaw.error_bounds", lambda _law: never_sure)
    slow = corridor.sample(budget, size=60, rng=np.random.default_rng(9))
    assert (slow == fast).all()


@pytest.mark.parametrize("top", [40, 1200, 2300])  # of 2400: slack near the floor and amid
def test_the_rounding_bound_holds_in_every_part_of_a_row(top: int) -> None:
    """Weights of row 100 over the heaviest one, against whole numbers."""
    law = SlackLaw(100, 24, max(0, top - 60), top, first=0, step=1, sign=1)
    rows = np.zeros((101, top + 1))
    rows[0, 0] = 1.0
    kernels.sum_rows(rows, 0, law.lo, law.hi, law.powers, law.reach, law.scale)
    peak = int(rows[100].argmax())
    ratio = Fraction(float(law.powers[1]))
    ways = between(100, peak, peak, reach=24)
    worst = 0.0
    for y in range(law.lo[100], top + 1, 7):
        exact = between(100, y, y, reach=24) * ratio ** (y - peak) / ways
        found = Fraction(float(rows[100, y])) / Fraction(float(rows[100, peak]))
        worst = max(worst, abs(float(found / exact - 1)))
    assert worst < 2 * law.error_bounds()[100]
    assert worst < 1e-12  # the bound itself is some 1e-12
