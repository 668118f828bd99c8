"""Contexts: block means, the nearest of them, and what is no context."""

from collections.abc import Callable

import numpy as np

from policies.analog import Analog, Recent
from policies.config import AnalogConfig
from policies.corridor import Corridor
from policies.frame import Frame
from policies.observation import Action, Sample, Seen

FRAME = Frame(
    corridor=Corridor(floor_ticks=0, ceiling_ticks=6, width_ticks=2, horizon_ticks=600),
    target_gap_ticks=3,
    tick_s=1.0,
)


def test_features_are_roots_of_block_means_that_double_in_length() -> None:
    recent = Recent(memory_ticks=50, context_ticks=8)
    for value in [1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 4.0, 16.0]:
        recent.fold(value)
    assert recent.edges == [0, 1, 2, 4, 8]
    np.testing.assert_allclose(recent.now(), [4, 2, 3, 1])
    np.testing.assert_allclose(recent.all(8)[-1], recent.now())
    assert np.isnan(recent.all(8)[0, -1])


def test_a_hole_holds_the_last_known_value() -> None:
    recent = Recent(memory_ticks=50, context_ticks=2)
    for value in (9.0, None):
        recent.fold(value)
    np.testing.assert_allclose(recent.now(), [3, 3])


def test_the_sums_stay_within_the_memory() -> None:
    recent = Recent(memory_ticks=10, context_ticks=4)
    for tick in range(100):
        recent.fold(float(tick))
    np.testing.assert_allclose(recent.now() ** 2, [99, 98, 96.5], rtol=1e-6)
    assert recent.all(10).shape == (10, 3)


def test_a_known_sequel_is_waited_for(
    make_sample: Callable[..., Sample], make_seen: Callable[..., Seen]
) -> None:
    """Load 5, 5, 0, 0, 0, 0, again and again: a merge at the second 5 waits for the zeros."""
    config = AnalogConfig(
        kind="analog", neighbours=5, context_s=6.0, least_data_s=60.0, refit_s=10.0, w_cadence=0.0
    )
    policy = Analog(config, FRAME)
    answers = {}
    for tick in range(126):
        load = 5 if tick % 6 < 2 else 0
        policy.observe(make_sample(tick, arrivals=load, in_flight=load))
        seen = make_seen(tick, last_end_tick=tick, latest_tick=tick + 5, budget=0)
        answers[tick % 6] = policy.decide(seen).action
    assert answers[1] is Action.DEFER
    assert answers[2] is Action.MERGE
