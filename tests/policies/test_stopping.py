"""The chain and the plan by hand, and against simulated play."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from policies.corridor import Corridor
from policies.frame import Frame
from policies.history import Past
from policies.observation import Seen
from policies.stopping import Levels, fit_levels, plan


def past_of(signal: list[float], in_flight: list[float] | None = None) -> Past:
    values = np.array(signal)
    waiting = values if in_flight is None else np.array(in_flight)
    return Past(last_tick=0, arrivals=np.zeros(len(values)), in_flight=waiting, signal=values)


def levels(moves: list[list[float]], costs: list[float], mean_cost: float = 1.0) -> Levels:
    return Levels(
        edges=tuple(range(len(costs) - 1)),
        moves=np.array(moves).tobytes(),
        costs=np.array(costs).tobytes(),
        mean_cost=mean_cost,
    )


def test_the_chain_counts_moves_and_costs_of_two_levels() -> None:
    found = fit_levels(
        past_of([0.0, 0.0, 0.0, 9.0] * 50), bins=2, width_ticks=1, half_life_ticks=1e9
    )
    assert found.edges == (0.0,)
    moves = np.frombuffer(found.moves).reshape(2, 2)
    np.testing.assert_allclose(moves.ravel(), [2 / 3, 1 / 3, 1, 0], atol=1e-3)
    np.testing.assert_allclose(np.frombuffer(found.costs), [0, 9], atol=1e-6)
    assert found.mean_cost == pytest.approx(9 / 4, rel=0.02)


def test_the_latest_part_weighs_most() -> None:
    old, new = [0.0, 9.0] * 50, [0.0, 0.0, 0.0, 9.0] * 50
    found = fit_levels(past_of([*old, *new]), bins=2, width_ticks=1, half_life_ticks=10.0)
    moves = np.frombuffer(found.moves).reshape(2, 2)
    np.testing.assert_allclose(moves[0], [2 / 3, 1 / 3], atol=0.05)


def test_a_hole_makes_no_move() -> None:
    hole = math.nan
    found = fit_levels(
        past_of([0.0, 0.0, hole, 9.0, 9.0, hole] * 20), bins=2, width_ticks=1, half_life_ticks=1e9
    )
    moves = np.frombuffer(found.moves).reshape(2, 2)
    np.testing.assert_allclose(moves.ravel(), [1, 0, 0, 1], atol=1e-3)


def test_backward_induction_by_hand() -> None:
    """From the busy level (cost 8) one of two moves leads to the idle one (cost 0)."""
    chain = levels([[1.0, 0.0], [0.5, 0.5]], [0.0, 8.0])
    now, later = plan(chain, last_gap=2, aim=1.0, w_cadence=0.0)
    assert now == ((0.0, 8.0),) * 3
    assert later == ((0.0, 2.0), (0.0, 4.0), (math.inf, math.inf))


def test_the_penalty_is_convex_around_the_aim() -> None:
    chain = levels([[1.0]], [5.0], mean_cost=10.0)
    now, _ = plan(chain, last_gap=4, aim=2.0, w_cadence=0.3)
    np.testing.assert_allclose([row[0] for row in now], [8, 5.75, 5, 5.75, 8])


def test_the_plan_promises_what_playing_it_costs() -> None:
    rng = np.random.default_rng(5)
    moves = np.array([[0.9, 0.1, 0.0], [0.1, 0.8, 0.1], [0.0, 0.2, 0.8]])
    costs = [1.0, 4.0, 9.0]
    now, later = plan(levels(moves.tolist(), costs), last_gap=12, aim=6.0, w_cadence=0.2)
    paid = []
    for _ in range(1500):
        gap, level = 0, 2
        while later[gap][level] < now[gap][level]:
            level = int(rng.choice(3, p=moves[level]))
            gap += 1
        paid.append(now[gap][level])
    assert np.mean(paid) == pytest.approx(
        later[0][2], abs=4 * float(np.std(paid)) / math.sqrt(1500)
    )


def test_the_paced_gap_spreads_what_is_left_over_what_remains(
    make_seen: Callable[..., Seen],
) -> None:
    corridor = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=600)
    frame = Frame(corridor=corridor, target_gap_ticks=32, tick_s=1.0)
    assert frame.paced_gap(make_seen(0, merges_done=0, budget=15)) == 32.0
    late = make_seen(300, last_end_tick=300, merges_done=9, budget=15)
    assert frame.paced_gap(late) == 300 / 6 - 8
    rushed = make_seen(590, last_end_tick=590, merges_done=10, budget=15)
    assert frame.paced_gap(rushed) == 16.0
    no_budget = make_seen(0, merges_done=0, budget=0, target_gap_ticks=30)
    assert frame.paced_gap(no_budget) == 30.0
