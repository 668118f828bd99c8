"""Synthetic arrivals: in order, inside the horizon, at the stated rates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.workload.arrivals import bursts, onoff, poisson
from orchestrator.workload.config import BurstsConfig, OnOffConfig, PoissonConfig, TokenRange

TOKENS = TokenRange(low=8, high=8)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def poisson_config(rate_per_s: float) -> PoissonConfig:
    return PoissonConfig(
        kind="poisson", rate_per_s=rate_per_s, prompt_tokens=TOKENS, output_tokens=TOKENS
    )


def bursts_config(**changed: object) -> BurstsConfig:
    fields: dict[str, object] = {
        "kind": "bursts",
        "quiet_rate_per_s": 2.0,
        "burst_rate_per_s": 20.0,
        "period_s": 10.0,
        "burst_s": 3.0,
        "prompt_tokens": TOKENS,
        "output_tokens": TOKENS,
    }
    return BurstsConfig.model_validate(fields | changed)


def onoff_config(*, off: float, on: float) -> OnOffConfig:
    return OnOffConfig(
        kind="onoff",
        off_rate_per_s=off,
        on_rate_per_s=on,
        mean_off_s=6.0,
        mean_on_s=2.0,
        prompt_tokens=TOKENS,
        output_tokens=TOKENS,
    )


@given(seed=st.integers(0, 2**32), horizon_s=st.floats(0.1, 50.0))
def test_arrivals_ascend_inside_the_horizon(seed: int, horizon_s: float) -> None:
    for at_s in (
        poisson(poisson_config(5.0), horizon_s=horizon_s, rng=rng(seed)),
        bursts(bursts_config(random_phase=True), horizon_s=horizon_s, rng=rng(seed)),
        onoff(onoff_config(off=1.0, on=9.0), horizon_s=horizon_s, rng=rng(seed)),
    ):
        assert np.all(np.diff(at_s) >= 0)
        assert np.all((at_s >= 0) & (at_s < horizon_s))


def test_poisson_has_its_rate_and_exponential_gaps() -> None:
    at_s = poisson(poisson_config(50.0), horizon_s=400.0, rng=rng())
    assert len(at_s) == pytest.approx(20_000, abs=4 * np.sqrt(20_000))
    gaps = np.diff(at_s)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("phase_s", [0.0, 4.0, 8.5, 23.0])
def test_bursts_fall_where_the_phase_says(phase_s: float) -> None:
    config = bursts_config(phase_s=phase_s, quiet_rate_per_s=0.0)
    at_s = bursts(config, horizon_s=200.0, rng=rng())
    assert np.all((at_s - phase_s) % 10.0 < 3.0)
    assert len(at_s) == pytest.approx(1200, abs=4 * np.sqrt(1200))
    inside_s = (at_s + 1e-9) // 10.0
    assert set(inside_s.astype(int)) >= set(range(1, 19))  # every period has its burst


def test_a_burst_that_began_before_zero_is_under_way_at_zero() -> None:
    at_s = bursts(bursts_config(phase_s=8.0, quiet_rate_per_s=0.0), horizon_s=10.0, rng=rng())
    assert np.all((at_s < 1.0) | (at_s >= 8.0))
    assert np.any(at_s < 1.0)


def test_quiet_phases_have_their_own_rate() -> None:
    at_s = bursts(bursts_config(), horizon_s=1000.0, rng=rng())
    in_burst = at_s % 10.0 < 3.0
    assert in_burst.sum() == pytest.approx(6000, abs=4 * np.sqrt(6000))
    assert (~in_burst).sum() == pytest.approx(1400, abs=4 * np.sqrt(1400))


def test_a_random_phase_differs_between_seeds() -> None:
    config = bursts_config(random_phase=True, quiet_rate_per_s=0.0)
    firsts = {float(bursts(config, horizon_s=40.0, rng=rng(s))[0]) // 1 for s in range(30)}
    assert len(firsts) > 3


def test_a_burst_longer_than_its_period_is_refused() -> None:
    with pytest.raises(ValueError, match=r"load\.burst_s=11.0 is above load\.period_s=10.0"):
        bursts(bursts_config(burst_s=11.0), horizon_s=10.0, rng=rng())


def test_onoff_is_on_for_its_share_of_the_time_from_the_start() -> None:
    """Stationary: also the first second is on with probability 2 / (2 + 6)."""
    config = onoff_config(off=0.0, on=40.0)
    runs = [onoff(config, horizon_s=1.0, rng=rng(seed)) for seed in range(2000)]
    assert np.mean([len(r) for r in runs]) == pytest.approx(10.0, abs=1.5)
    long_run = onoff(config, horizon_s=8000.0, rng=rng())
    assert len(long_run) == pytest.approx(80_000, rel=0.1)
