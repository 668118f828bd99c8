"""Synthetic arrivals: in order, inside the horizon, at the stated rates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.workload.arrivals import (
    arrivals,
    bursts,
    diurnal,
    gamma,
    mmpp,
    onoff,
    onoff_uniform,
    poisson,
)
from orchestrator.workload.config import (
    BurstsConfig,
    DiurnalConfig,
    GammaConfig,
    MmppConfig,
    MmppState,
    OnOffConfig,
    PoissonConfig,
    SecondsRange,
    SyntheticConfig,
    TokenRange,
    UniformOnOffConfig,
)

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


def uniform_config(*, off: float, on: float) -> UniformOnOffConfig:
    return UniformOnOffConfig(
        kind="onoff_uniform",
        off_rate_per_s=off,
        on_rate_per_s=on,
        off=SecondsRange(low_s=4.0, high_s=8.0),
        on=SecondsRange(low_s=1.0, high_s=3.0),
        prompt_tokens=TOKENS,
        output_tokens=TOKENS,
    )


def gamma_config(cv: float) -> GammaConfig:
    return GammaConfig(
        kind="gamma", rate_per_s=20.0, cv=cv, prompt_tokens=TOKENS, output_tokens=TOKENS
    )


def mmpp_config(*states: tuple[float, float]) -> MmppConfig:
    return MmppConfig(
        kind="mmpp",
        states=tuple(MmppState(rate_per_s=rate, mean_s=mean_s) for rate, mean_s in states),
        prompt_tokens=TOKENS,
        output_tokens=TOKENS,
    )


def diurnal_config(depth: float, *, random_phase: bool = False) -> DiurnalConfig:
    return DiurnalConfig(
        kind="diurnal",
        mean_rate_per_s=20.0,
        depth=depth,
        period_s=100.0,
        phase_s=10.0,
        random_phase=random_phase,
        prompt_tokens=TOKENS,
        output_tokens=TOKENS,
    )


SYNTHETIC: list[SyntheticConfig] = [
    poisson_config(5.0),
    bursts_config(random_phase=True),
    onoff_config(off=1.0, on=9.0),
    uniform_config(off=1.0, on=9.0),
    gamma_config(3.0),
    mmpp_config((1.0, 5.0), (9.0, 2.0), (0.0, 1.0)),
    diurnal_config(0.8, random_phase=True),
]


@given(seed=st.integers(0, 2**32), horizon_s=st.floats(0.1, 50.0))
def test_arrivals_ascend_inside_the_horizon(seed: int, horizon_s: float) -> None:
    for config in SYNTHETIC:
        at_s = arrivals(config, horizon_s=horizon_s, rng=rng(seed))
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


def test_uniform_periods_are_stationary_and_have_their_lengths() -> None:
    config = uniform_config(off=0.0, on=200.0)
    firsts = [len(onoff_uniform(config, horizon_s=1.0, rng=rng(seed))) for seed in range(2000)]
    assert np.mean(firsts) == pytest.approx(200.0 * 2 / 8, rel=0.1)
    at_s = onoff_uniform(config, horizon_s=4000.0, rng=rng())
    pauses = np.diff(at_s)[np.diff(at_s) > 0.5]
    assert pauses.min() > 4.0
    assert pauses.max() < 8.1
    assert pauses.mean() == pytest.approx(6.0, abs=0.25)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gamma_gaps_have_rate_and_cv_and_no_bias_at_the_start(cv: float) -> None:
    gaps = np.diff(gamma(gamma_config(cv), horizon_s=3000.0, rng=rng()))
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    firsts = [len(gamma(gamma_config(cv), horizon_s=0.5, rng=rng(seed))) for seed in range(3000)]
    assert np.mean(firsts) == pytest.approx(10.0, rel=0.06)


def test_a_markov_modulated_process_spends_time_by_the_mean_sojourns() -> None:
    states = ((0.0, 6.0), (40.0, 2.0), (10.0, 4.0))
    at_s = mmpp(mmpp_config(*states), horizon_s=20_000.0, rng=rng())
    mean = sum(rate * mean_s for rate, mean_s in states) / 12
    assert len(at_s) / 20_000 == pytest.approx(mean, rel=0.05)
    starts = [len(mmpp(mmpp_config(*states), horizon_s=0.5, rng=rng(s))) for s in range(2000)]
    assert np.mean(starts) * 2 == pytest.approx(mean, rel=0.1)


def test_two_states_are_an_onoff_process() -> None:
    """Index of dispersion of both, far above 1 and equal."""
    ours = mmpp(mmpp_config((0.0, 6.0), (40.0, 2.0)), horizon_s=40_000.0, rng=rng(1))
    other = onoff(onoff_config(off=0.0, on=40.0), horizon_s=40_000.0, rng=rng(2))
    first, second = (np.bincount((x // 8).astype(int), minlength=5000) for x in (ours, other))
    assert first.var() / first.mean() == pytest.approx(second.var() / second.mean(), rel=0.1)
    assert first.var() / first.mean() > 20


@pytest.mark.parametrize("states", [((1.0, 1.0),), ((0.0, 1.0), (0.0, 2.0))])
def test_a_markov_modulated_process_needs_two_states_and_a_rate(
    states: tuple[tuple[float, float], ...],
) -> None:
    with pytest.raises(ValueError, match="states"):
        mmpp_config(*states)


def test_the_day_has_its_mean_and_its_peak_a_quarter_after_the_phase() -> None:
    at_s = diurnal(diurnal_config(0.9), horizon_s=4000.0, rng=rng())
    by_tenth = np.bincount(((at_s - 10.0) % 100.0 // 10).astype(int), minlength=10) / 400
    middle = 2 * np.pi * (np.arange(10) + 0.5) / 10
    assert by_tenth == pytest.approx(20 * (1 + 0.9 * np.sin(middle)), abs=1.2)
    assert len(at_s) / 4000 == pytest.approx(20.0, rel=0.02)


def test_periods_with_crossed_ends_are_refused() -> None:
    with pytest.raises(ValueError, match=r"low_s=3\.0 is above high_s=2\.0"):
        SecondsRange(low_s=3.0, high_s=2.0)
