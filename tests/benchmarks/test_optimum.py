"""The dynamic programme against every decision on a tiny horizon, arrivals counted one by one."""

from functools import cache

import numpy as np
import pytest

from policies.corridor import Corridor
from tests.benchmarks.optimum import OnOffLaw, Sees, least_cost, random_cost

TINY = Corridor(floor_ticks=2, ceiling_ticks=6, width_ticks=2, horizon_ticks=12)
LAW = OnOffLaw(off_ticks=3.0, on_ticks=2.0, low=0.05, high=0.6)


def steps(law: OnOffLaw) -> list[list[tuple[int, int, int, float]]]:
    """By state: (state after a tick, arrivals in its first half, in its second, probability)."""
    half = law.half_tick()
    joint = np.einsum("smc,mta->stca", half, half)
    found = []
    for s in range(2):
        likely = [
            (int(t), int(c), int(a), float(joint[s, t, c, a]))
            for t, c, a in np.argwhere(joint[s] > 1e-6)
        ]
        whole = sum(p for *_, p in likely)
        found.append([(t, c, a, p / whole) for t, c, a, p in likely])
    return found


def brute_force(law: OnOffLaw, corridor: Corridor, budget: int, *, in_flight: bool) -> float:
    """Least expected cost over all rules; a window pays for its arrivals as they come."""
    moves = steps(law)

    @cache
    def ahead(tick: int, s: int, a: int, starts: tuple[int, ...]) -> float:
        """From just after the decision at ``tick`` on."""
        if tick == corridor.horizon_ticks:
            return 0.0 if len(starts) == budget and corridor.contains(starts) else np.inf
        window = bool(starts) and tick < starts[-1] + corridor.width_ticks
        return sum(
            p * (window * (c + more) + decided(tick + 1, t, more, a + c + more, starts))
            for t, c, more, p in moves[s]
        )

    @cache
    def decided(tick: int, s: int, a: int, n: int, starts: tuple[int, ...]) -> float:
        waits = ahead(tick, s, a, starts)
        if len(starts) == budget or (starts and tick < starts[-1] + corridor.width_ticks):
            return waits
        return min(waits, in_flight * n + ahead(tick, s, a, (*starts, tick)))

    return float(sum(p * ahead(0, s, 0, ()) for s, p in enumerate(law.stationary)))


@pytest.mark.parametrize("budget", [1, 2])  # of 3 there is one schedule
@pytest.mark.parametrize("sees", [Sees.ALL, Sees.NEW])
def test_the_programme_finds_what_trying_every_rule_finds(budget: int, sees: Sees) -> None:
    found = least_cost(LAW, TINY, budget, sees=sees)
    tried = brute_force(LAW, TINY, budget, in_flight=sees is Sees.ALL)
    assert found == pytest.approx(tried, rel=1e-3)
    assert found < 0.95 * random_cost(LAW, budget=budget, width_ticks=2, sees=sees)


def test_knowing_more_never_costs_more() -> None:
    costs = {sees: least_cost(LAW, TINY, 2, sees=sees) for sees in Sees}
    assert costs[Sees.NEW] < costs[Sees.ALL] < costs[Sees.STATE]


def test_where_both_rates_are_equal_the_state_is_worth_nothing() -> None:
    even = OnOffLaw(off_ticks=3.0, on_ticks=2.0, low=0.3, high=0.3)
    for sees in (Sees.NEW, Sees.STATE):
        chance = random_cost(even, budget=2, width_ticks=2, sees=sees)
        assert least_cost(even, TINY, 2, sees=sees) == pytest.approx(chance)


def test_half_a_tick_moves_as_the_chain_does_and_counts_its_arrivals() -> None:
    half = LAW.half_tick()
    np.testing.assert_allclose(half.sum(axis=2), LAW.moves(0.5), atol=1e-8)
    counted = (half * np.arange(half.shape[2])).sum(axis=(1, 2))
    np.testing.assert_allclose(counted, LAW.arriving(0.5), rtol=1e-6)


def test_a_floor_that_would_need_more_state_is_refused() -> None:
    low = Corridor(floor_ticks=1, ceiling_ticks=4, width_ticks=2, horizon_ticks=11)
    with pytest.raises(ValueError, match="floor_ticks=1 is below 2"):
        least_cost(LAW, low, 2)
