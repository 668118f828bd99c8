"""Synthetic arrival times: Poisson, periodic bursts, exponential on and off periods.

All are Poisson processes whose rate is constant over segments; times in seconds, ascending.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from orchestrator.workload.config import BurstsConfig, OnOffConfig, PoissonConfig

Times = npt.NDArray[np.float64]
Segment = tuple[float, float, float]  # start_s, end_s, rate_per_s


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


def _segments(segments: Iterable[Segment], *, rng: np.random.Generator) -> Times:
    """Given its count, a Poisson process is uniform on each segment."""
    parts = [
        np.sort(rng.uniform(low_s, high_s, size=rng.poisson(rate * (high_s - low_s))))
        for low_s, high_s, rate in segments
        if high_s > low_s
    ]
    return np.concatenate(parts) if parts else np.empty(0)
