"""Shares in the mean, the wait for late islands, and how many are enough."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.config import ElasticConfig, OuterConfig
from actors.coordinator.quorum import Grace, enough, merge_weights

ISLANDS = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 5000)), min_size=1, max_size=20)


@given(
    islands=ISLANDS,
    weighting=st.sampled_from(["tokens", "equal"]),
    half_life=st.none() | st.floats(0.01, 100.0),
)
def test_shares_are_never_negative_and_sum_to_one(
    islands: list[tuple[int, int]], weighting: str, half_life: float | None
) -> None:
    config = OuterConfig.model_validate(
        {"weighting": weighting, "staleness_half_life_rounds": half_life}
    )
    weights = merge_weights([t for t, _ in islands], [m for _, m in islands], config)
    assert len(weights) == len(islands)
    assert all(w >= 0 for w in weights)
    assert math.isclose(math.fsum(weights), 1.0, rel_tol=1e-12)


def test_shares_go_by_tokens_or_are_equal() -> None:
    assert merge_weights([100, 300], [0, 0], OuterConfig()) == (0.25, 0.75)
    assert merge_weights([100, 300], [0, 0], OuterConfig(weighting="equal")) == (0.5, 0.5)


def test_nobody_trained_means_equal_shares_and_one_idle_island_none() -> None:
    assert merge_weights([0, 0, 0, 0], [0, 0, 0, 0], OuterConfig()) == (0.25,) * 4
    assert merge_weights([0, 5], [0, 0], OuterConfig()) == (0.0, 1.0)


def test_a_share_halves_for_each_half_life_of_missed_rounds() -> None:
    config = OuterConfig(weighting="equal", staleness_half_life_rounds=2.0)
    fresh, stale = merge_weights([1, 1], [1, 5], config)
    assert stale / fresh == pytest.approx(0.25)  # only against the freshest
    assert merge_weights([1, 1], [9000, 9000], config) == (0.5, 0.5)


def test_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 token counts for 1 islands"):
        merge_weights([1, 2], [0], OuterConfig())


def test_the_grace_follows_how_late_islands_usually_are() -> None:
    grace = Grace(ElasticConfig(quorum=1, grace_s=5.0, grace_factor=4.0))
    assert grace.limit_s == 5.0  # nothing is known
    grace.arrived({0: 10.0})  # one alone tells nothing
    assert grace.limit_s == 5.0
    grace.arrived({0: 10.0, 1: 10.5, 2: 10.2})
    assert grace.limit_s == pytest.approx(2.0)
    grace.arrived({0: 20.0, 1: 29.0})
    assert grace.limit_s == 5.0  # never longer than asked for
    for round_ in range(32):  # what lies far back is forgotten
        grace.arrived({0: float(round_), 1: round_ + 0.001})
    assert grace.limit_s == 1.0  # an ordinary hiccup drops nobody
    grace.forget()
    assert grace.limit_s == 5.0


def test_enough_are_all_or_a_quorum() -> None:
    elastic = ElasticConfig(quorum=2)
    assert enough(4, count=4, config=None)
    assert not enough(3, count=4, config=None)
    assert enough(2, count=4, config=elastic)
    assert not enough(1, count=4, config=elastic)
