"""The corridor against brute force: counts, membership, budgets and the range of the next start."""

from collections.abc import Callable
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from policies.corridor import Corridor

Schedule = tuple[int, ...]
RandomCorridors = Callable[..., list[Corridor]]
IsFeasible = Callable[[Corridor, Schedule], bool]
BruteForce = list[tuple[Corridor, dict[int, npt.NDArray[np.int64]]]]


def test_counts_and_budgets_agree_with_brute_force(brute_force: BruteForce) -> None:
    assert len(brute_force) >= 500
    for corridor, by_budget in brute_force:
        assert corridor.budgets() == sorted(by_budget), corridor
        for budget in range(0, corridor.horizon_ticks + 2):
            expected = len(by_budget.get(budget, ()))
            assert corridor.count(budget) == expected, (corridor, budget)


def test_contains_is_the_definition_on_every_subset_of_ticks(
    random_corridors: RandomCorridors, is_feasible: IsFeasible
) -> None:
    accepted = 0
    for corridor in random_corridors(60, most_horizon=11, least_horizon=4, seed=2):
        ticks = range(corridor.horizon_ticks + 1)
        for budget in range(1, 5):
            for starts in combinations(ticks, budget):
                expected = is_feasible(corridor, starts)
                assert corridor.contains(starts) == expected, (corridor, starts)
                accepted += expected
    assert accepted > 200


def test_contains_refuses_no_merges_and_takes_numpy_rows() -> None:
    corridor = Corridor(floor_ticks=1, ceiling_ticks=3, width_ticks=2, horizon_ticks=9)
    assert not corridor.contains(())
    assert corridor.contains(np.array([1, 4, 7]))


def test_next_range_is_exactly_the_set_of_starts_that_keep_the_budget(
    random_corridors: RandomCorridors,
) -> None:
    hit = missed = 0
    for corridor in random_corridors(120, most_horizon=20, least_horizon=3, seed=3):
        width, ceiling, horizon = (
            corridor.width_ticks,
            corridor.ceiling_ticks,
            corridor.horizon_ticks,
        )
        for budget in corridor.budgets():

            @cache
            def starts(
                done: int, end: int, budget: int = budget, corridor: Corridor = corridor
            ) -> frozenset[int]:
                gaps = range(corridor.floor_ticks, ceiling + 1)  # noqa: B023 - called here only
                return frozenset(
                    end + gap
                    for gap in gaps
                    if end + gap + width <= horizon  # noqa: B023
                    and (
                        starts(done + 1, end + gap + width)  # noqa: B023
                        if done + 1 < budget
                        else end + gap + width + ceiling > horizon - width  # noqa: B023
                    )
                )

            for done in range(budget):
                for end in range(horizon + 1):
                    expected = starts(done, end)
                    found = corridor.next_range(merges_done=done, last_end_tick=end, budget=budget)
                    if found is None:
                        assert not expected, (corridor, budget, done, end)
                        missed += 1
                    else:
                        assert set(range(found[0], found[1] + 1)) == expected
                        hit += 1
    assert hit > 500
    assert missed > 500


def test_next_range_is_none_once_the_budget_is_spent() -> None:
    corridor = Corridor(floor_ticks=1, ceiling_ticks=3, width_ticks=2, horizon_ticks=9)
    assert corridor.next_range(merges_done=2, last_end_tick=5, budget=2) is None
    assert corridor.next_range(merges_done=2, last_end_tick=5, budget=3) is not None


def test_known_count_of_a_ten_minute_run() -> None:
    corridor = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=600)
    assert corridor.count(12) == 99_853_512_587_888_082_401
    assert corridor.budgets() == list(range(8, 26))


def test_the_count_splits_over_the_first_start() -> None:
    """After a first merge at t the rest is a schedule of one less on the horizon that is left."""
    corridor = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=600)
    rests = (
        Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=600 - t - 8)
        for t in range(16, 65)
    )
    assert sum(rest.count(11) for rest in rests) == corridor.count(12)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((5, 4, 1, 10), "floor_ticks=5 is above ceiling_ticks=4"),
        ((-1, 4, 1, 10), "floor_ticks=-1"),
        ((0, 0, 1, 10), "ceiling_ticks=0"),
        ((0, 4, 0, 10), "width_ticks=0"),
        ((0, 4, 1, 0), "horizon_ticks=0"),
        ((0, 4, 1.5, 10), "width_ticks=1.5"),
    ],
)
def test_a_corridor_that_makes_no_sense_is_refused_by_name(
    fields: tuple[int, int, int, int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Corridor(*fields)


@pytest.mark.parametrize("budget", [-1, 0, 7, 26])
def test_an_infeasible_budget_is_refused_with_the_feasible_ones(budget: int) -> None:
    corridor = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=600)
    assert corridor.count(budget) == 0
    with pytest.raises(ValueError, match=rf"budget_merges={budget} .* budgets: 8 to 25"):
        corridor.sample(budget, size=1, rng=np.random.default_rng(0))


def test_gaps_between_feasible_budgets_are_named() -> None:
    corridor = Corridor(floor_ticks=5, ceiling_ticks=5, width_ticks=1, horizon_ticks=12)
    assert corridor.budgets() == [2]
    with pytest.raises(ValueError, match=r"feasible budgets: 2$"):
        corridor.require(1)


def test_a_horizon_without_room_for_one_merge_says_so() -> None:
    corridor = Corridor(floor_ticks=5, ceiling_ticks=9, width_ticks=4, horizon_ticks=8)
    assert corridor.budgets() == []
    with pytest.raises(ValueError, match="no budget is feasible: lengthen the horizon"):
        corridor.require(1)
