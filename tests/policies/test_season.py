"""Periods planted and found, folded and followed."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from policies.corridor import Corridor
from policies.frame import Frame
from policies.history import Past
from policies.observation import Seen
from policies.season import (
    ROUNDS_AHEAD,
    Ahead,
    Season,
    ahead_of,
    autocorrelation,
    find_period,
    fit_season,
    least_of,
    phases,
    rest_costs,
    waiting_costs,
)


def periodic(period: float, *, ticks: int = 1200, seed: int = 0) -> Past:
    """A quarter of each period is busy; one request a tick else. In flight = arrivals."""
    at = np.arange(ticks)
    rate = np.where(np.mod(at, period) < period / 4, 8.0, 1.0)
    counts = np.random.default_rng(seed).poisson(rate).astype(float)
    return Past(last_tick=ticks - 1, arrivals=counts, in_flight=counts, signal=counts)


def test_autocorrelation_is_that_of_numpy() -> None:
    values = np.random.default_rng(1).normal(size=64)
    centred = values - values.mean()
    found = autocorrelation(values, most_lag=20)
    by_hand = [np.mean(centred[: 64 - lag] * centred[lag:]) / centred.var() for lag in range(21)]
    np.testing.assert_allclose(found, by_hand, rtol=1e-9, atol=1e-12)
    assert not autocorrelation(np.ones(64), most_lag=20).any()


@pytest.mark.parametrize("period", [45.0, 47.3, 120.0])
def test_a_planted_period_is_found_to_a_fraction_of_a_tick(period: float) -> None:
    found = find_period(periodic(period), width_ticks=8, least=0.3)
    assert found is not None
    assert found[0] == pytest.approx(period, abs=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_steady_traffic_has_no_period(seed: int) -> None:
    counts = np.random.default_rng(seed).poisson(4.0, size=1200).astype(float)
    steady = Past(last_tick=1199, arrivals=counts, in_flight=counts, signal=counts)
    assert find_period(steady, width_ticks=8, least=0.3) is None


def test_holes_hide_no_period() -> None:
    past = periodic(60.0)
    past.arrivals[np.random.default_rng(3).random(1200) < 0.2] = np.nan
    found = find_period(past, width_ticks=8, least=0.2)
    assert found is not None
    assert found[0] == pytest.approx(60.0, abs=0.3)


def test_the_folded_profile_gives_the_cost_of_a_window_by_its_start() -> None:
    season = fit_season(periodic(40.0), width_ticks=4, half_life_ticks=1e9, least=0.3)
    assert season is not None
    new, in_flight = season.outlook(np.array([0.0, 20.0, 1200.0, 1220.0]))
    # Busy at the start: 8 in flight and 8 a tick; idle: one each. The window is four ticks.
    np.testing.assert_allclose(new, [32, 4, 32, 4], rtol=0.2)
    np.testing.assert_allclose(in_flight, [8, 1, 8, 1], rtol=0.35)
    assert season.dispersion == pytest.approx(1.0, abs=0.1)  # as planted: Poisson


def test_a_free_choice_is_worth_the_mean_of_the_lesser() -> None:
    draws = np.random.default_rng(4).normal(5.0, 2.0, size=200_000)
    for other in (3.0, 5.0, 8.0):
        expected = np.minimum(draws, other).mean()
        assert least_of(5.0, 2.0, other) == pytest.approx(expected, abs=0.02)
    assert least_of(5.0, 0.0, 4.0) == 4.0
    assert least_of(5.0, 2.0, math.inf) == 5.0


def flat(in_flight: list[float], *, dispersion: float) -> Season:
    """Nothing arrives; a period as long as the list."""
    return Season(
        period_ticks=float(len(in_flight)),
        correlation=1.0,
        new=np.zeros(len(in_flight)).tobytes(),
        in_flight=np.array(in_flight).tobytes(),
        dispersion=dispersion,
        mean_cost=1.0,
    )


def ahead(corridor: Corridor, **fields: int) -> Ahead:
    usual: dict[str, Any] = {
        "last_end_tick": 0,
        "last_gap": 3,
        "rounds": 0,
        "end_tick": corridor.horizon_ticks,
    }
    return Ahead(corridor=corridor, last=True, **{**usual, **fields})


ONE = Corridor(floor_ticks=1, ceiling_ticks=4, width_ticks=1, horizon_ticks=6)


def test_waiting_costs_the_least_that_lies_ahead_and_less_where_chance_offers_more() -> None:
    sure = flat([4.0, 2.0, 3.0, 1.0], dispersion=0.0)
    rest, later = waiting_costs(sure, ahead(ONE))
    assert rest[1:] == (0.0,) * 3
    assert later == (1.0, 1.0, 1.0, math.inf)
    noisy = flat([4.0, 2.0, 3.0, 1.0], dispersion=1.0)
    _, chance = waiting_costs(noisy, ahead(ONE))
    assert chance[0] < chance[1] < chance[2] == 1.0


def test_the_rest_of_a_budget_costs_what_the_oracle_pays_for_it() -> None:
    """Next merge and the rest, at its best gap: the cheapest schedule of all, by the corridor."""
    corridor = Corridor(floor_ticks=2, ceiling_ticks=7, width_ticks=3, horizon_ticks=60)
    rng = np.random.default_rng(2)
    for budget in corridor.budgets():
        cost = rng.random(corridor.horizon_ticks + 1)
        rest = rest_costs(cost, ahead(corridor, last_gap=7, rounds=budget - 1))
        gaps = np.arange(corridor.floor_ticks, corridor.ceiling_ticks + 1)
        total, starts = corridor.best(cost, budget)
        assert (cost[gaps] + rest[gaps]).min() == pytest.approx(total)
        assert gaps[(cost[gaps] + rest[gaps]).argmin()] == starts[0]


def test_what_no_longer_fits_is_not_planned_for() -> None:
    corridor = Corridor(floor_ticks=2, ceiling_ticks=7, width_ticks=3, horizon_ticks=60)
    late = ahead(corridor, last_end_tick=50, last_gap=7, rounds=5)
    np.testing.assert_array_equal(rest_costs(np.ones(11), late), np.zeros(8))


def test_without_a_budget_some_rounds_at_the_target_cadence_are_planned(
    make_seen: Callable[..., Seen],
) -> None:
    frame = Frame(corridor=ONE, target_gap_ticks=3, tick_s=1.0)
    free = make_seen(12, last_end_tick=10, latest_tick=14, budget=0, target_gap_ticks=3)
    found = ahead_of(free, frame)
    assert found.end_tick == 10 + (ROUNDS_AHEAD + 1) * (3 + 1)
    assert (found.rounds, found.last_gap, found.last) == (ROUNDS_AHEAD, 4, False)
    near = ahead_of(make_seen(2, latest_tick=4, merges_done=1, budget=3), frame)
    assert (near.rounds, near.end_tick, near.last) == (1, ONE.horizon_ticks, True)


def test_phases_cut_the_period_into_equal_parts() -> None:
    np.testing.assert_array_equal(phases(np.arange(-5.0, 10.0), 5.0, 5), [*range(5)] * 3)
