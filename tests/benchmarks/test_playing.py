"""The benchmark's own parts: traffic by hand, shared play, ratios with intervals."""

import numpy as np
import pytest

from policies.config import (
    EnsembleConfig,
    EwmaThresholdConfig,
    FixedHConfig,
    PolicyConfig,
    StoppingConfig,
)
from tests.benchmarks import families
from tests.benchmarks.playing import build, company, paid, play, share


def test_a_merge_pays_for_what_is_in_flight_and_what_arrives() -> None:
    made = families.traffic(np.array([-0.2, 8.4, 9.0, 9.9, 17.9, 18.0]))
    assert made.cost[10] == 2 + 1  # 8.4 is gone after 1.5 s, 9.0 and 9.9 are not; 17.9 arrives
    assert made.new[10] == 1
    at_10 = made.samples[families.HISTORY_S + 10]
    assert (at_10.tick, at_10.arrivals, at_10.in_flight) == (10, 2, 2)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_family_reaches_from_its_history_to_the_end(family: str) -> None:
    start = -families.history_s_of(family)
    for replicate in (0, 3):
        at = families.arrivals_of(family, replicate, replicates=4, seed=1)
        assert (np.diff(at) >= 0).all()
        # Azure code has gaps of minutes
        assert at[0] <= start + 240
        assert at[-1] >= families.AFTER_S - 240
        again = families.arrivals_of(family, replicate, replicates=4, seed=1)
        np.testing.assert_array_equal(at, again)


def test_mooncake_is_spread_inside_its_grid_from_the_seed() -> None:
    one, other = families.mooncake(1), families.mooncake(2)
    assert len(one) == len(other) == 12_031
    assert len(np.unique(one)) > 12_000
    assert not np.array_equal(one, other)
    assert abs(one - other).max() <= families.MOONCAKE_GRID_S


def test_a_window_of_servegen_holds_its_requests() -> None:
    window = families.Window(start_s=600, requests=50, gamma=False, shape=0.5)
    at = families.window_arrivals(window, np.random.default_rng(1))
    assert len(at) == 50
    assert at.min() > 600
    assert at.max() < 1200


def test_policies_played_together_start_as_each_alone() -> None:
    members = (StoppingConfig(kind="stopping"), EwmaThresholdConfig(kind="ewma_threshold"))
    ensemble = EnsembleConfig(kind="ensemble", members=members)
    configs: dict[str, PolicyConfig] = {
        "ensemble": ensemble,
        "stopping": members[0],
        "threshold": members[1],
    }
    made = families.traffic_of("short", 0, replicates=1, seed=1)
    troupe = company(configs)
    assert len(troupe.observers) == 1
    together = play(troupe, made)
    for name in ("ensemble", "threshold"):
        alone = play(company({name: configs[name]}), made)
        assert alone[name] == together[name]
    assert build(ensemble) is not troupe.players["ensemble"]


def test_a_schedule_is_compared_at_its_own_count() -> None:
    made = families.traffic_of("sharp", 0, replicates=1, seed=1)
    fixed, own = play(company({"x": FixedHConfig(kind="fixed_h", h_steps=20)}), made)["x"]
    assert (len(fixed), len(own)) == (families.BUDGET, 21)
    found = paid(own, made)
    marginals = families.CORRIDOR.start_marginals(21)
    assert found.random == pytest.approx(float(marginals @ made.cost))
    assert found.best <= found.cost
    assert found.best < found.random


def test_the_interval_of_a_ratio_covers_as_often_as_it_says() -> None:
    rng, hits = np.random.default_rng(3), 0
    for _ in range(300):
        below = rng.gamma(9.0, size=40)
        found = share(0.5 * below + rng.normal(size=40), below)
        hits += found.low <= 0.5 <= found.high
    assert 0.85 < hits / 300 < 0.95
