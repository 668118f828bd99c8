"""Synthetic arrival times: Poisson, bursts, on and off, gamma, Markov-modulated, diurnal.

Times in seconds, ascending, in [0, horizon_s); every process is stationary from 0 on, but for the
phase that its config states.
"""

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from orchestrator.workload.config import (
    BurstsConfig,
    DiurnalConfig,
    GammaConfig,
    MmppConfig,
    OnOffConfig,
    PoissonConfig,
    SecondsRange,
    SyntheticConfig,
    UniformOnOffConfig,
)

Times = npt.NDArray[np.float64]
Segment = tuple[float, float, float]  # start_s, end_s, rate_per_s


def arrivals(config: SyntheticConfig, *, horizon_s: float, rng: np.random.Generator) -> Times:
    """Times of one stream of any synthetic kind."""
    match config:
        case PoissonConfig():
            return poisson(config, horizon_s=horizon_s, rng=rng)
        case BurstsConfig():
            return bursts(config, horizon_s=horizon_s, rng=rng)
        case OnOffConfig():
            return onoff(config, horizon_s=horizon_s, rng=rng)
        case UniformOnOffConfig():
            return onoff_uniform(config, horizon_s=horizon_s, rng=rng)
        case GammaConfig():
            return gamma(config, horizon_s=horizon_s, rng=rng)
        case MmppConfig():
            return mmpp(config, horizon_s=horizon_s, rng=rng)
        case DiurnalConfig():
            return diurnal(config, horizon_s=horizon_s, rng=rng)


def poisson(config: PoissonConfig, *, horizon_s: float, rng: np.random.Generator) -> Times:
    """A constant rate over [0, horizon_s)."""
    return _segments([(0.0, horizon_s, config.rate_per_s)], rng=rng)


def bursts(config: BurstsConfig, *, horizon_s: float, rng: np.random.Generator) -> Times:
    """A burst starts at phase + k * period for every whole k, also for those begun before 0."""
    if config.burst_s > config.period_s:
        raise ValueError(
            f"load.burst_s={config.burst_s} is above load.period_s={config.period_s}; "
            "lengthen the period or shorten the burst"
        )
    phase_s = config.phase_s
    if config.random_phase:
        phase_s += float(rng.uniform(0.0, config.period_s))
    return _segments(_burst_segments(config, phase_s=phase_s, horizon_s=horizon_s), rng=rng)


def _burst_segments(config: BurstsConfig, *, phase_s: float, horizon_s: float) -> Iterable[Segment]:
    start_s = phase_s % config.period_s - config.period_s
    while start_s < horizon_s:
        burst_end_s, period_end_s = start_s + config.burst_s, start_s + config.period_s
        for low_s, high_s, rate in (
            (start_s, burst_end_s, config.burst_rate_per_s),
            (burst_end_s, period_end_s, config.quiet_rate_per_s),
        ):
            yield max(low_s, 0.0), min(high_s, horizon_s), rate
        start_s = period_end_s


def onoff(config: OnOffConfig, *, horizon_s: float, rng: np.random.Generator) -> Times:
    """Exponential on and off periods, stationary from 0: the first state is drawn by its share."""
    on = bool(rng.random() < config.mean_on_s / (config.mean_on_s + config.mean_off_s))
    segments: list[Segment] = []
    at_s = 0.0
    while at_s < horizon_s:
        mean_s, rate = (
            (config.mean_on_s, config.on_rate_per_s)
            if on
            else (config.mean_off_s, config.off_rate_per_s)
        )
        end_s = at_s + float(rng.exponential(mean_s))
        segments.append((at_s, min(end_s, horizon_s), rate))
        at_s, on = end_s, not on
    return _segments(segments, rng=rng)


def onoff_uniform(
    config: UniformOnOffConfig, *, horizon_s: float, rng: np.random.Generator
) -> Times:
    """Uniform on and off periods; at 0 one is under way, long ones more likely than short ones."""
    mean_on_s = (config.on.low_s + config.on.high_s) / 2
    mean_off_s = (config.off.low_s + config.off.high_s) / 2
    on = bool(rng.random() < mean_on_s / (mean_on_s + mean_off_s))
    segments: list[Segment] = []
    at_s = 0.0
    while at_s < horizon_s:
        length, rate = (
            (config.on, config.on_rate_per_s) if on else (config.off, config.off_rate_per_s)
        )
        if segments:
            end_s = at_s + float(rng.uniform(length.low_s, length.high_s))
        else:
            end_s = _rest_s(length, rng=rng)
        segments.append((at_s, min(end_s, horizon_s), rate))
        at_s, on = end_s, not on
    return _segments(segments, rng=rng)


def _rest_s(length: SecondsRange, *, rng: np.random.Generator) -> float:
    """What is left of the uniform period that holds 0: its length has a density that grows with
    the length (inverse transform of l^2), and 0 lies anywhere in it.
    """
    low, high = length.low_s, length.high_s
    return float(rng.random() * math.sqrt(rng.uniform(low**2, high**2)))


def gamma(config: GammaConfig, *, horizon_s: float, rng: np.random.Generator) -> Times:
    """Renewal process with gamma gaps. The gap that holds 0 is length-biased (a gamma of shape + 1)
    and 0 lies anywhere in it, so the process is stationary (Cox, Renewal Theory, 1962).
    """
    shape = config.cv**-2
    scale_s = 1.0 / (config.rate_per_s * shape)
    at_s = float(rng.random() * rng.gamma(shape + 1, scale_s))
    size = max(16, round(1.2 * config.rate_per_s * horizon_s))
    parts: list[Times] = []
    while at_s < horizon_s:
        times = at_s + np.concatenate([[0.0], np.cumsum(rng.gamma(shape, scale_s, size=size))])
        parts.append(times[:-1])
        at_s = float(times[-1])
    every = np.concatenate(parts) if parts else np.empty(0)
    return every[every < horizon_s]


def mmpp(config: MmppConfig, *, horizon_s: float, rng: np.random.Generator) -> Times:
    """Exponential sojourns; the next state is any other one with equal probability, so the share of
    time in a state goes by its mean sojourn, and so is the first state drawn.
    """
    means = np.array([state.mean_s for state in config.states])
    state = int(rng.choice(len(means), p=means / means.sum()))
    segments: list[Segment] = []
    at_s = 0.0
    while at_s < horizon_s:
        end_s = at_s + float(rng.exponential(means[state]))
        segments.append((at_s, min(end_s, horizon_s), config.states[state].rate_per_s))
        at_s = end_s
        state = (state + int(rng.integers(1, len(means)))) % len(means)
    return _segments(segments, rng=rng)


def diurnal(config: DiurnalConfig, *, horizon_s: float, rng: np.random.Generator) -> Times:
    """Thinning of a Poisson process of the peak rate (Lewis and Shedler 1979, algorithm 1)."""
    phase_s = config.phase_s
    if config.random_phase:
        phase_s += float(rng.uniform(0.0, config.period_s))
    peak = config.mean_rate_per_s * (1 + config.depth)
    at_s = _segments([(0.0, horizon_s, peak)], rng=rng)
    wave = np.sin(2 * np.pi * (at_s - phase_s) / config.period_s)
    rate = config.mean_rate_per_s * (1 + config.depth * wave)
    return at_s[rng.random(len(at_s)) * peak < rate]


def _segments(segments: Iterable[Segment], *, rng: np.random.Generator) -> Times:
    """Given its count, a Poisson process is uniform on each segment."""
    parts = [
        np.sort(rng.uniform(low_s, high_s, size=rng.poisson(rate * (high_s - low_s))))
        for low_s, high_s, rate in segments
        if high_s > low_s
    ]
    return np.concatenate(parts) if parts else np.empty(0)
