"""Power before a run: that of the gate's own tests, unknown where nothing can be shown."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.power import PlannedPower, planned_power
from orchestrator.calibration.statistics import relative_gain, sign_flip
from tests.synthetic import synthetic_study

GATE: GateConfig = synthetic_study().gate
SD = 12.0


def _plan(n: int, *, gain: float = 0.3, family: int = 1, draws: int = 1) -> PlannedPower:
    return planned_power([60.0] * n, [SD**2] * n, gain=gain, gate=GATE, family=family, draws=draws)


def test_power_is_that_of_the_gates_own_tests() -> None:
    n, trials, gain = 7, 300, 0.3
    rng, hits = np.random.default_rng(1), 0
    for _ in range(trials):
        control, policy = 60 + SD * rng.standard_normal(n), 42 + SD * rng.standard_normal(n)
        flip = sign_flip(policy - control, draws=1, rng=rng)
        bound = relative_gain(policy, control, confidence=0.90, draws=1, rng=rng).low
        z = (policy - 60).sum() / (SD * np.sqrt(n))
        assert bound is not None
        hits += bool(flip.p_value <= 0.05 and bound >= 0.05 and stats.norm.cdf(z) <= 0.05)
    assert _plan(n, gain=gain).power == pytest.approx(hits / trials, abs=0.1)


@pytest.mark.slow
def test_power_rises_with_seeds_gain_and_draws_and_falls_with_the_family() -> None:
    powers = [_plan(n).power for n in (5, 7, 12, 30)]
    assert powers == sorted(powers)  # type: ignore[type-var]
    base = _plan(7).power
    assert base is not None
    assert (_plan(7, gain=0.5).power or 0.0) > base > (_plan(7, gain=0.1).power or 0.0)
    assert (_plan(7, draws=5).power or 0.0) > base > (_plan(7, family=4).power or 0.0)


@pytest.mark.slow
def test_the_least_n_has_the_power_and_one_less_has_not() -> None:
    n = _plan(2).n_for_80
    assert n is not None
    assert (_plan(n).power or 0.0) >= 0.8 > (_plan(n - 1).power or 0.0)
    assert _plan(2).power == 0.0  # its least p is above alpha
    never = _plan(6, gain=0.05)  # a gain at the floor is never shown to be above it
    assert never.n_for_80 is None
    assert "not within 1000 seeds" in never.words


def test_what_no_placement_changes_has_unknown_power() -> None:
    for means in ([60.0] * 7, [0.0] * 7):
        plan = planned_power(means, [0.0] * 7, gain=0.3, gate=GATE, family=1, draws=1)
        assert (plan.power, plan.n_for_80, plan.random_sd_fraction) == (None, None, None)
        assert "unknown: no placement changes" in plan.words


def test_the_words_say_on_what_it_was_computed() -> None:
    plan = _plan(12)
    assert plan.words.endswith("computed on the overlap of arriving requests, not latencies")
    assert "at 12 seeds for a gain of 30 %" in plan.words
    assert dataclasses.asdict(plan)["random_sd_fraction"] == pytest.approx(0.2)


@pytest.mark.parametrize("gain", [0.0, 1.0, -0.2, float("nan")])
def test_a_gain_that_is_none_is_refused(gain: float) -> None:
    with pytest.raises(ValueError, match="state a relative gain between 0 and 1"):
        _plan(7, gain=gain)
