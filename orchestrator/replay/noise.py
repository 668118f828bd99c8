"""The plant's noise from what a fit leaves: pace and overheads by matched spread, then the windows.

Medians are fitted first (fit.py). A spread is that of log latencies about them, 5th to 95th
percentile, so that one long stall does not set it.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import huber

from orchestrator.metrics import Flags, Floats
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.fit import HUBER_AT, log_errors, touched, usable
from orchestrator.replay.measured import Latencies, MeasuredRun, predicted
from policies.streams import stream

DRAWS = 3  # of the noise, for each spread that is looked at
MOST_LOG_SD = 1.5
LEAST_CALM = 20  # requests outside merges that a spread is taken from
LEAST_TOUCHED = 5  # requests that a window's own factor is fitted to
LEAST_WINDOWS = 3  # windows that a spread is taken from
MOST_LOG_APART = 1.5  # a window's own slow-down from the median one
TTFT, E2E = 0, 1


def noise_seeds(seed: int, *, draws: int) -> list[int]:
    """Seeds for that many independent draws of the plant's noise on the traffic of ``seed``."""
    found: list[int] = stream(seed, "calibration noise").integers(2**62, size=draws).tolist()
    return found


def with_noise(plant: PlantConfig, runs: Sequence[MeasuredRun]) -> PlantConfig:
    """The plant with pace_log_sd, overhead_log_sd and merge_factor_log_sd; 0 where the runs cannot
    tell.
    """
    plant = _matched(plant, runs, name="pace_log_sd", latency=E2E)
    plant = _matched(plant, runs, name="overhead_log_sd", latency=TTFT)
    return plant.model_copy(update={"merge_factor_log_sd": factor_log_sd(runs, plant=plant)})


def _matched(
    plant: PlantConfig, runs: Sequence[MeasuredRun], *, name: str, latency: int
) -> PlantConfig:
    """With the noise that spreads this latency of calm requests as it was measured to spread."""
    calm = [usable(r) & ~touched(r) for r in runs]
    if sum(int(c.sum()) for c in calm) < LEAST_CALM:
        return plant
    quiet = plant.model_copy(update={"pace_log_sd": 0.0, "overhead_log_sd": 0.0})
    medians = [predicted(r, plant=quiet) for r in runs]
    wanted = _spread([log_errors(r, m, c) for r, m, c in zip(runs, medians, calm, strict=True)])

    def excess(log_sd: float) -> float:
        noisy = plant.model_copy(update={name: log_sd})
        errors = [
            _apart(predicted(r, plant=noisy, noise_seed=s), m, c)
            for r, m, c in zip(runs, medians, calm, strict=True)
            for s in noise_seeds(r.key.seed, draws=DRAWS)
        ]
        return float(_spread(errors)[latency] - wanted[latency])

    if excess(0.0) >= 0.0:  # the other noise alone spreads as much
        return plant
    top = MOST_LOG_SD if excess(MOST_LOG_SD) <= 0.0 else brentq(excess, 0.0, MOST_LOG_SD, xtol=1e-3)
    return plant.model_copy(update={name: float(top)})


def _apart(noisy: Latencies, median: Latencies, chosen: Flags) -> Floats:
    return np.stack(
        [
            np.log(noisy.ttft_s[chosen] / median.ttft_s[chosen]),
            np.log(noisy.e2e_s[chosen] / median.e2e_s[chosen]),
        ]
    )


def _spread(errors: Sequence[Floats]) -> Floats:
    """5th to 95th percentile of TTFT and of E2E.  # [2]"""
    low, high = np.quantile(np.concatenate(errors, axis=1), [0.05, 0.95], axis=1)
    return np.asarray(high - low)


def factor_log_sd(runs: Sequence[MeasuredRun], *, plant: PlantConfig) -> float:
    """Spread of log(factor - 1) over windows, each fitted alone, less the pace's share in it."""
    median = plant.model_copy(
        update={"pace_log_sd": 0.0, "overhead_log_sd": 0.0, "merge_factor_log_sd": 0.0}
    )
    logs, shares = [], []
    for run in runs:
        for factor, (start_s, end_s) in zip(
            own_factors(run, plant=median), run.windows, strict=True
        ):
            if factor is not None:
                logs.append(math.log(factor - 1.0))
                shares.append(plant.pace_slot_s / max(end_s - start_s, plant.pace_slot_s))
    if len(logs) < LEAST_WINDOWS:
        return 0.0
    variance = float(np.var(logs, ddof=1)) - plant.pace_log_sd**2 * float(np.mean(shares))
    return math.sqrt(max(variance, 0.0))


def own_factors(run: MeasuredRun, *, plant: PlantConfig) -> list[float | None]:
    """Each window's own factor, the others left at the median; None where too few met it."""
    found: list[float | None] = []
    for i in range(len(run.windows)):
        met = touched(run, windows=run.windows[i : i + 1]) & usable(run)
        enough = plant.merge_factor > 1.0 and met.sum() >= LEAST_TOUCHED
        found.append(_own_factor(run, i, met, plant=plant) if enough else None)
    return found


def _own_factor(run: MeasuredRun, window: int, met: Flags, *, plant: PlantConfig) -> float:
    extra = plant.merge_factor - 1.0
    factors = np.full(len(run.windows), plant.merge_factor)

    def off(log_apart: float) -> float:
        factors[window] = 1.0 + extra * math.exp(log_apart)
        answer = predicted(run, plant=plant, factors=factors)
        return float(np.mean(huber(HUBER_AT, log_errors(run, answer, met))))

    best = minimize_scalar(off, bounds=(-MOST_LOG_APART, MOST_LOG_APART), method="bounded")
    return 1.0 + extra * math.exp(float(best.x))
