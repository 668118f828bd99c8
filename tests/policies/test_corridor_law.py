"""Oracle, moments and marginals against every schedule, whole-number programmes, and each other."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest

from policies.corridor import Corridor, kept_marginals

BruteForce = list[tuple[Corridor, dict[int, npt.NDArray[np.int64]]]]
TEN_MINUTES = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=600)
TWO_HOURS = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=7200)
A_DAY = Corridor(floor_ticks=120, ceiling_ticks=480, width_ticks=20, horizon_ticks=86_400)


def cases(brute_force: BruteForce) -> Iterable[tuple[Corridor, int, npt.NDArray[np.int64]]]:
    for corridor, by_budget in brute_force:
        for budget, schedules in by_budget.items():
            yield corridor, budget, schedules


def test_the_oracle_is_the_least_of_all_schedules(brute_force: BruteForce) -> None:
    rng = np.random.default_rng(1)
    found = 0
    for corridor, budget, schedules in cases(brute_force):
        cost = rng.integers(
            -5, 20, corridor.horizon_ticks + 1
        )  # whole: totals are exact, with ties
        total, starts = corridor.best(cost, budget)
        assert total == cost[schedules].sum(axis=1).min(), (corridor, budget)
        assert corridor.contains(starts)
        assert len(starts) == budget
        assert total == cost[list(starts)].sum()
        found += 1
    assert found >= 500


def test_the_oracle_of_any_count_is_the_least_over_budgets(brute_force: BruteForce) -> None:
    rng = np.random.default_rng(2)
    found = 0
    for corridor, by_budget in brute_force:
        cost = rng.integers(-5, 20, corridor.horizon_ticks + 1)
        price = int(rng.integers(-30, 30))
        if not by_budget:
            with pytest.raises(ValueError, match="no budget is feasible"):
                corridor.best_any_count(cost, price_per_merge=price)
            continue
        total, starts = corridor.best_any_count(cost, price_per_merge=price)
        assert total == min((cost[s] + price).sum(axis=1).min() for s in by_budget.values())
        assert corridor.contains(starts)
        assert total == (cost[list(starts)] + price).sum()
        found += 1
    assert found >= 400


def test_moments_and_marginals_are_those_of_all_schedules(brute_force: BruteForce) -> None:
    rng = np.random.default_rng(3)
    errors = {"mean": 0.0, "variance": 0.0, "marginals": 0.0}
    found = 0
    for corridor, budget, schedules in cases(brute_force):
        cost = rng.normal(size=corridor.horizon_ticks + 1) + 100 * rng.random()
        totals = cost[schedules].sum(axis=1)
        mean, variance = corridor.moments(cost, budget)
        marginals = corridor.start_marginals(budget)
        share = np.bincount(schedules.ravel(), minlength=len(cost)) / len(schedules)
        scale = np.abs(cost[schedules]).sum(axis=1).mean()
        errors["mean"] = max(errors["mean"], abs(mean - totals.mean()) / scale)
        errors["variance"] = max(errors["variance"], abs(variance - totals.var()) / scale)
        errors["marginals"] = max(errors["marginals"], float(np.abs(marginals - share).max()))
        found += 1
    assert found >= 500
    assert max(errors.values()) < 1e-13, errors


def whole_number_law(
    corridor: Corridor, budget: int, cost: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """By tick of the last start: ways, summed cost, summed squared cost. Slow, and exact."""
    size = corridor.horizon_ticks + 1
    low, high = corridor.floor_ticks, corridor.ceiling_ticks
    sums = [[0] * size for _ in range(3)]
    for t in range(low, min(high, size - 1) + 1):
        sums[0][t], sums[1][t], sums[2][t] = 1, cost[t], cost[t] ** 2
    for _ in range(budget - 1):
        before, sums = sums, [[0] * size for _ in range(3)]
        for t in range(size):
            a = max(0, t - corridor.width_ticks - high)
            b = max(0, t - corridor.width_ticks - low + 1)
            n, m, q = (sum(s[a:b]) for s in before)
            sums[0][t] = n
            sums[1][t] = m + cost[t] * n
            sums[2][t] = q + 2 * cost[t] * m + cost[t] ** 2 * n
    last = corridor.horizon_ticks - corridor.width_ticks
    first = max(0, last - corridor.width_ticks - high + 1)
    return tuple(s[first : last + 1] for s in sums)  # type: ignore[return-value]


@pytest.mark.parametrize("budget", [8, 9, 12, 17, 24, 25])
def test_ten_minutes_agree_with_whole_numbers_at_every_budget(budget: int) -> None:
    cost = np.random.default_rng(budget).integers(0, 1000, 601).tolist()
    ways, once, twice = (sum(s) for s in whole_number_law(TEN_MINUTES, budget, cost))
    assert TEN_MINUTES.count(budget) == ways
    mean, variance = TEN_MINUTES.moments(cost, budget)
    assert mean == pytest.approx(once / ways, rel=1e-13)
    assert variance == pytest.approx((ways * twice - once**2) / ways**2, rel=1e-11)


def test_a_marginal_is_the_share_of_schedules_that_start_there() -> None:
    """Of all that start at t: ways to get there times ways to go on, in whole numbers."""
    budget, t = 12, 311
    hit = [int(tick == t) for tick in range(601)]
    ways, once, _ = (sum(s) for s in whole_number_law(TEN_MINUTES, budget, hit))
    marginals = TEN_MINUTES.start_marginals(budget)
    assert marginals[t] == pytest.approx(once / ways, rel=1e-13)


@pytest.mark.parametrize(
    ("corridor", "budget"),
    [(TWO_HOURS, 100), (TWO_HOURS, 103), (TWO_HOURS, 180), (TWO_HOURS, 299), (A_DAY, 300)],
)
def test_long_horizons_agree_with_themselves(corridor: Corridor, budget: int) -> None:
    t = np.arange(corridor.horizon_ticks + 1)
    cost = 5 + np.sin(t / 50) + (t % 97 < 20)
    marginals = corridor.start_marginals(budget)
    assert marginals.sum() == pytest.approx(budget, rel=1e-12)
    assert marginals.min() >= 0
    mean, variance = corridor.moments(cost, budget)
    assert mean == pytest.approx(marginals @ cost, rel=1e-12)
    drawn = corridor.sample(budget, size=400, rng=np.random.default_rng(budget))
    assert all(map(corridor.contains, drawn))
    totals = cost[drawn].sum(axis=1)
    assert abs(totals.mean() - mean) < 4.5 * (variance / 400) ** 0.5
    assert totals.var(ddof=1) == pytest.approx(variance, rel=0.35)  # 5 standard errors
    best, starts = corridor.best(cost, budget)
    assert corridor.contains(starts)
    assert len(starts) == budget
    assert best <= totals.min()
    assert corridor.best_any_count(cost)[0] <= best


@pytest.mark.parametrize("budget", [14, 20, 35])  # slack counted from the ceiling and the floor
def test_a_table_filled_in_parts_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    whole = Corridor(floor_ticks=17, ceiling_ticks=60, width_ticks=8, horizon_ticks=903 + budget)
    parts = Corridor(floor_ticks=17, ceiling_ticks=60, width_ticks=8, horizon_ticks=903 + budget)
    cost = np.random.default_rng(0).random(904 + budget)
    oracle, marginals = whole.best(cost, budget), whole.start_marginals(budget)
    kept_marginals.cache_clear()
    monkeypatch.setattr("policies.corridor_law.TABLE_BYTES", 0)
    assert parts.best(cost, budget) == oracle
    again = parts.start_marginals(budget)
    assert again is not marginals
    assert (again == marginals).all()


def test_variance_keeps_its_digits_beside_a_large_mean() -> None:
    cost = np.random.default_rng(4).random(601)
    _, variance = TEN_MINUTES.moments(cost, 12)
    assert TEN_MINUTES.moments(cost + 2.0**30, 12)[1] == pytest.approx(variance, rel=1e-6)
    assert TEN_MINUTES.moments(np.full(601, 7.0), 12) == (84.0, 0.0)


def test_the_only_schedule_has_no_variance_and_is_the_oracle() -> None:
    corridor = Corridor(floor_ticks=5, ceiling_ticks=5, width_ticks=1, horizon_ticks=12)
    cost = np.arange(13.0)
    assert corridor.best(cost, 2) == (16.0, (5, 11))
    assert corridor.moments(cost, 2) == (16.0, 0.0)
    assert np.flatnonzero(corridor.start_marginals(2)).tolist() == [5, 11]


def test_marginals_are_shared_and_cannot_be_written() -> None:
    marginals = TEN_MINUTES.start_marginals(12)
    assert marginals is TEN_MINUTES.start_marginals(12)
    with pytest.raises(ValueError, match="read-only"):
        marginals[0] = 1.0


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (np.zeros(600), r"cost has shape \(600,\).*\(601,\)"),
        (np.zeros((601, 1)), "cost has shape"),
        (np.r_[np.zeros(300), np.nan, np.zeros(300)], r"cost\[300\]=nan is not finite"),
        (np.r_[np.zeros(600), np.inf], r"cost\[600\]=inf is not finite"),
    ],
)
def test_a_cost_that_is_not_one_number_a_tick_is_refused(
    cost: npt.NDArray[np.float64], words: str
) -> None:
    for ask in (TEN_MINUTES.best, TEN_MINUTES.moments):
        with pytest.raises(ValueError, match=words):
            ask(cost, 12)
    with pytest.raises(ValueError, match=words):
        TEN_MINUTES.best_any_count(cost)


def test_infeasible_budgets_and_prices_are_refused() -> None:
    cost = np.zeros(601)
    for ask in (TEN_MINUTES.best, TEN_MINUTES.moments):
        with pytest.raises(ValueError, match=r"budget_merges=26 .* budgets: 8 to 25"):
            ask(cost, 26)
    with pytest.raises(ValueError, match=r"budget_merges=7 .* budgets: 8 to 25"):
        TEN_MINUTES.start_marginals(7)
    with pytest.raises(ValueError, match="price_per_merge=nan"):
        TEN_MINUTES.best_any_count(cost, price_per_merge=float("nan"))
