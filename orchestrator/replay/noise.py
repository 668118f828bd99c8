"""The plant's noise from what a fit leaves: its spread is made that of the measured latencies.

Medians are fitted first (fit.py). A spread is that of log latencies about them, 10th to 90th
percentile, so that a stall, or a merge that slowed nothing for a while, does not set it: of E2E
outside merges for the pace, of TTFT there for the overheads, of E2E beside merges for the windows.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import brentq

from orchestrator.metrics import Flags, Floats
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.fit import Fitted, log_errors, touched, usable
from orchestrator.replay.measured import Latencies, MeasuredRun, after_real, predicted
from policies.streams import stream

DRAWS = 3  # of the noise, for each spread that is looked at
MOST_LOG_SD = 1.5
LEAST_REQUESTS = 20  # that a spread is taken from
TTFT, E2E = 0, 1
NONE = {"pace_log_sd": 0.0, "overhead_log_sd": 0.0, "merge_factor_log_sd": 0.0}

Choice = Callable[[MeasuredRun], Flags]


def noise_seeds(seed: int, *, draws: int) -> list[int]:
    """Seeds for that many independent draws of the plant's noise on the traffic of ``seed``."""
    found: list[int] = stream(seed, "calibration noise").integers(2**62, size=draws).tolist()
    return found


def with_noise(fitted: Fitted, runs: Sequence[MeasuredRun]) -> PlantConfig:
    """The plant with the spread of its pace, overheads, slow-downs and calm beginnings of windows;
    0 where the runs cannot tell.
    """
    real_s = np.concatenate([r.real_s for r in runs])
    plant = fitted.plant.model_copy(update=NONE)
    runs = [after_real(r) for r in runs] if fitted.calm else runs
    for name, latency, chosen in (
        ("pace_log_sd", E2E, _calm),
        ("overhead_log_sd", TTFT, _calm),
        ("merge_factor_log_sd", E2E, touched),
    ):
        log_sd = _matched(plant, runs, name=name, latency=latency, chosen=chosen)
        plant = plant.model_copy(update={name: log_sd})
    return plant.model_copy(update=calm_beginnings(real_s)) if fitted.calm else plant


def calm_beginnings(real_s: Floats) -> dict[str, float]:
    """Median and log sd of the merges' real work."""
    known = real_s[real_s > 0.0]
    return {
        "merge_calm_s": float(np.median(known)),
        "merge_calm_log_sd": float(np.std(np.log(known), ddof=1)) if len(known) > 1 else 0.0,
    }


def _calm(run: MeasuredRun) -> Flags:
    return ~touched(run)


def _matched(
    plant: PlantConfig, runs: Sequence[MeasuredRun], *, name: str, latency: int, chosen: Choice
) -> float:
    """The noise that spreads this latency of the chosen requests as it was measured to spread."""
    among = [usable(r) & chosen(r) for r in runs]
    if sum(int(c.sum()) for c in among) < LEAST_REQUESTS:
        return 0.0
    quiet = plant.model_copy(update=NONE)
    medians = [predicted(r, plant=quiet) for r in runs]
    measured = [log_errors(r, m, c) for r, m, c in zip(runs, medians, among, strict=True)]
    wanted = _spread(measured, latency)

    def excess(log_sd: float) -> float:
        noisy = plant.model_copy(update={name: log_sd})
        errors = [
            _apart(predicted(r, plant=noisy, noise_seed=s), m, c)
            for r, m, c in zip(runs, medians, among, strict=True)
            for s in noise_seeds(r.key.seed, draws=DRAWS)
        ]
        return _spread(errors, latency) - wanted

    if excess(0.0) >= 0.0:  # the noise before it spreads as much
        return 0.0
    if excess(MOST_LOG_SD) <= 0.0:
        return MOST_LOG_SD
    return float(brentq(excess, 0.0, MOST_LOG_SD, xtol=1e-3))


def _apart(noisy: Latencies, median: Latencies, chosen: Flags) -> Floats:
    return np.stack(
        [
            np.log(noisy.ttft_s[chosen] / median.ttft_s[chosen]),
            np.log(noisy.e2e_s[chosen] / median.e2e_s[chosen]),
        ]
    )


def _spread(errors: Sequence[Floats], latency: int) -> float:
    """10th to 90th percentile.  errors: [2, request] each"""
    low, high = np.quantile(np.concatenate(errors, axis=1)[latency], [0.1, 0.9])
    return float(high - low)
