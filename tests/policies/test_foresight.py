"""Forecast, chain and plan by hand, and against what the corridor knows exactly."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from policies.corridor import Corridor
from policies.foresight import (
    HALF_LIVES_S,
    NODES,
    PRICES,
    Chain,
    Means,
    Rest,
    best_rounds,
    design,
    expected,
    least_squares,
    nodes,
    plan,
    rest_costs,
    rest_of,
)
from policies.observation import Sample, Seen

CORRIDOR = Corridor(floor_ticks=2, ceiling_ticks=6, width_ticks=3, horizon_ticks=60)


def chain(moves: list[list[float]], new: list[float], in_flight: list[list[float]]) -> Chain:
    rounds = best_rounds(
        np.array(moves),
        np.array(new)[:, None] + np.array(in_flight),
        prices=10.0 * np.array(PRICES),
        floor=CORRIDOR.floor_ticks,
        ceiling=CORRIDOR.ceiling_ticks,
    )
    return Chain(
        weights=(0.0,),
        edges=tuple(range(len(new) - 1)),
        moves=np.array(moves).tobytes(),
        new=np.array(new).tobytes(),
        in_flight=np.array(in_flight).tobytes(),
        mean_cost=10.0,
        rounds=rounds.tobytes(),
    )


STEADY = chain([[1.0]], [10.0], [[0.0] * NODES])


def test_means_decay_by_elapsed_ticks_and_unknown_ticks_are_no_rows(
    make_sample: Callable[..., Sample],
) -> None:
    means = Means(tick_s=1.0, memory_ticks=100)
    means.fold(make_sample(0, in_flight=3), rate=4.0, over_ticks=1)
    means.fold(make_sample(1, in_flight=3), rate=None, over_ticks=1)
    assert means.now is None
    means.fold(make_sample(2, in_flight=5), rate=0.0, over_ticks=2)
    kept = [4.0 * 2 ** (-2 / h) for h in HALF_LIVES_S]
    assert means.now is not None
    np.testing.assert_allclose(means.now, [*kept, 5.0])
    means.fold(make_sample(5, in_flight=0), rate=1.0, over_ticks=1)
    np.testing.assert_array_equal(np.isnan(means.rows(6)[:, 0]), [0, 1, 0, 1, 1, 0])


def test_the_forecast_finds_planted_weights_and_is_the_same_at_one_tick() -> None:
    rows = np.random.default_rng(1).gamma(2.0, size=(4000, 3))
    wanted = 2.0 + design(rows)[:, 1:] @ np.array([1.0, 0.0, 3.0, 0.0, 2.0, 0.0])
    weights = least_squares(rows, wanted, np.ones(len(rows)))
    np.testing.assert_allclose(design(rows) @ weights, wanted, rtol=0.1)
    at_one = expected(tuple(weights.tolist()), tuple(rows[7].tolist()))
    assert at_one == pytest.approx(float((design(rows[7:8]) @ weights)[0]))


def test_no_traffic_at_all_is_forecast_to_go_on() -> None:
    weights = least_squares(np.zeros((50, 2)), np.zeros(50), np.ones(50))
    np.testing.assert_array_equal(weights, np.zeros(5))


def test_nodes_halve_the_law_of_each_level() -> None:
    level = np.array([0, 2] * 500)
    in_flight = np.where(level == 2, 100.0, np.arange(1000) / 2 // 1 % 50)
    found = nodes(in_flight, level, 3)
    np.testing.assert_allclose(found[0], [5, 15, 25, 35, 45], atol=1)
    np.testing.assert_array_equal(found[2], [100.0] * NODES)
    np.testing.assert_allclose(found[1], np.quantile(in_flight, [0.1, 0.3, 0.5, 0.7, 0.9]))


def test_a_round_on_steady_traffic_costs_the_same_at_any_price_but_for_the_floor() -> None:
    rounds = np.frombuffer(STEADY.rounds)
    np.testing.assert_allclose(rounds, 10.0 + 10.0 * np.array(PRICES) * CORRIDOR.floor_ticks)
    rest = rest_costs(STEADY, np.arange(7.0), corridor=CORRIDOR, rest=Rest(left=3, ticks=40))
    np.testing.assert_allclose(rest, 30.0)


def test_less_time_for_the_rest_costs_more_and_convexly() -> None:
    """Half of the ticks are free of charge: a round that may wait pays less."""
    lucky = chain([[0.5, 0.5], [0.5, 0.5]], [0.0, 20.0], [[0.0] * NODES] * 2)
    rest = rest_costs(lucky, np.arange(25.0), corridor=CORRIDOR, rest=Rest(left=3, ticks=40))
    assert (np.diff(rest) >= -1e-9).all()
    assert rest[-1] > rest[0] + 5
    inside = rest[4:22]  # 3 rounds of gaps between the floor and where waiting pays no more
    assert (np.diff(inside, 2) >= -1e-9).all()
    at_floor = rest_costs(lucky, np.array([24.0]), corridor=CORRIDOR, rest=Rest(left=3, ticks=40))
    assert at_floor == pytest.approx(3 * 10.0, rel=0.01)  # no choice: the mean


def test_what_is_in_flight_now_counts_against_what_chance_may_offer() -> None:
    even = [0.0, 1.0, 2.0, 3.0, 4.0]
    now, later = plan(
        chain([[1.0]], [10.0], [even]), corridor=CORRIDOR, last_gap=4, rest=Rest(left=0, ticks=9)
    )
    assert now == ((10.0,),) * 5
    values = [row[0] for row in later]
    assert values[4] == math.inf
    assert values[3] == pytest.approx(12.0)
    assert values[2] == pytest.approx(10.0 + np.minimum(even, 2.0).mean())
    assert values[2] < values[3]


def test_without_a_budget_the_target_gap_says_what_time_costs(
    make_seen: Callable[..., Seen],
) -> None:
    free = rest_of(make_seen(12, last_end_tick=10, budget=0, target_gap_ticks=4), horizon_ticks=60)
    assert free == Rest(left=None, ticks=4)
    judged = rest_of(make_seen(12, last_end_tick=10, merges_done=1, budget=3), horizon_ticks=60)
    assert judged == Rest(left=1, ticks=50)
    lucky = chain([[0.5, 0.5], [0.5, 0.5]], [0.0, 20.0], [[0.0] * NODES] * 2)
    slopes = [
        np.diff(rest_costs(lucky, np.arange(3.0), corridor=CORRIDOR, rest=Rest(left=None, ticks=t)))
        for t in (2, 3, 6)
    ]
    assert slopes[0][0] >= slopes[1][0] >= slopes[2][0] >= 0
    assert slopes[0][0] > slopes[2][0]
