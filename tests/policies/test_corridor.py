"""The corridor against brute force: counts, membership, budgets and the range of the next start."""

from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest

from policies.corridor import Corridor

Schedule = tuple[int, ...]


def random_corridors(
    number: int, *, most_horizon: int, seed: int, least_horizon: int = 1
) -> list[Corridor]:
    rng = np.random.default_rng(seed)
    corridors = []
    for _ in range(number):
        floor = int(rng.integers(0, 5))
        corridors.append(
            Corridor(
                floor_ticks=floor,
                ceiling_ticks=max(1, floor + int(rng.integers(0, 6))),
                width_ticks=int(rng.integers(1, 5)),
                horizon_ticks=int(rng.integers(least_horizon, most_horizon + 1)),
            )
        )
    return corridors


def is_feasible(corridor: Corridor, starts: Schedule) -> bool:
    """The definition, word for word."""
    floor, ceiling = corridor.floor_ticks, corridor.ceiling_ticks
    width, horizon = corridor.width_ticks, corridor.horizon_ticks
    if not floor <= starts[0] <= ceiling:
        return False
    for now, later in pairwise(starts):
        if not floor <= later - (now + width) <= ceiling:
            return False
    return starts[-1] + width <= horizon and starts[-1] + width + ceiling > horizon - width


def all_schedules(corridor: Corridor) -> set[Schedule]:
    """Every chain of starts, grown tick by tick; those that the definition accepts."""
    found: set[Schedule] = set()
    open_chains: list[Schedule] = [()]
    while open_chains:
        chain = open_chains.pop()
        end = chain[-1] + corridor.width_ticks if chain else 0
        for start in range(end, min(end + corridor.ceiling_ticks, corridor.horizon_ticks) + 1):
            longer = (*chain, start)
            if start - end >= corridor.floor_ticks and start < corridor.horizon_ticks:
                open_chains.append(longer)
                if is_feasible(corridor, longer):
                    found.add(longer)
    return found


class EveryRank:
    """Stands in for a Generator: its bytes spell the ranks 0, 1, 2, ... one after another."""

    def __init__(self, total: int) -> None:
        self._bits = (total - 1).bit_length()
        self._next = 0

    def bytes(self, size: int) -> bytes:
        value = self._next << (8 * size - self._bits)
        self._next += 1
        return value.to_bytes(size, "little")


def test_counts_budgets_and_draws_agree_with_brute_force_on_400_corridors() -> None:
    cases = 0
    for corridor in random_corridors(400, most_horizon=22, seed=1):
        by_budget: dict[int, set[Schedule]] = {}
        for schedule in all_schedules(corridor):
            by_budget.setdefault(len(schedule), set()).add(schedule)
        assert corridor.budgets() == sorted(by_budget), corridor
        for budget in range(0, corridor.horizon_ticks + 2):
            expected = by_budget.get(budget, set())
            assert corridor.count(budget) == len(expected), (corridor, budget)
            if not 0 < len(expected) <= 500:
                continue
            # Each rank once gives each feasible schedule once: unranking is a bijection.
            rng = EveryRank(len(expected))
            drawn = corridor.sample(budget, size=len(expected), rng=rng)  # type: ignore[arg-type]
            assert sorted(map(tuple, drawn.tolist())) == sorted(expected), (corridor, budget)
            cases += 1
    assert cases > 500


def test_contains_is_the_definition_on_every_subset_of_ticks() -> None:
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


def test_next_range_is_exactly_the_set_of_starts_that_keep_the_budget() -> None:
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
