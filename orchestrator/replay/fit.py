"""Measured runs to plant parameters: a robust fit of every request's TTFT and E2E.

Nelder and Mead (1965) on the logarithms of the parameters, several starts; Huber (1964) loss on
log(predicted / measured). The same runs and seed give the same plant, bit for bit.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import huber

from orchestrator.metrics import Flags, Floats
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.measured import Latencies, MeasuredRun, predicted
from policies.streams import stream

STARTS = 4
EVALUATIONS = 500  # most of one start
HUBER_AT = 0.3  # log units: beyond about 35 % off, a request counts by its distance alone
START_LOG_SD = 0.4
LEAST_TOUCHED = 5  # requests that a window's own factor is fitted to
MOST_LOG_APART = 1.5  # a window's own factor over the median one
LEAST_WINDOWS = 3  # windows that a spread is taken from
_SMALLEST = 1e-9
_PARAMETERS = (
    "step_base_s",
    "step_per_seq_s",
    "prefill_per_token_s",
    "overhead_s",
    "merge_factor",
    "merge_step_s",
)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The plant, and how the search for it ended."""

    plant: PlantConfig
    objective: float  # mean Huber loss at the end, noise left out
    evaluations: int
    requests: int


def fit_plant(runs: Sequence[MeasuredRun], *, slots: int, seed: int) -> Fitted:
    """The plant that answers these runs' requests most nearly as they were answered.

    ``slots`` is the engine's own setting (max_num_seqs) and is not fitted. ValueError where the
    runs cannot tell.
    """
    requests = sum(int(_usable(r).sum()) for r in runs)
    if requests < 2 * len(_PARAMETERS):
        raise ValueError(
            f"{requests} answered requests in {len(runs)} runs cannot carry a fit of "
            f"{len(_PARAMETERS)} parameters; choose more runs"
        )
    guess = first_guess(runs, slots=slots)
    evaluations = 0

    def objective(x: Floats) -> float:
        nonlocal evaluations
        evaluations += 1
        return loss(runs, plant=_plant(x, guess))

    best_x, best = _vector(guess), math.inf
    for start in _starts(_vector(guess), seed=seed):
        found = minimize(
            objective,
            start,
            method="Nelder-Mead",
            options={"maxfev": EVALUATIONS, "xatol": 1e-4, "fatol": 1e-7, "adaptive": True},
        )
        if found.fun < best:
            best_x, best = found.x, float(found.fun)
    median = _plant(best_x, guess)
    plant = median.model_copy(
        update={
            "overhead_log_sd": overhead_log_sd(runs, plant=median),
            "merge_factor_log_sd": factor_log_sd(runs, plant=median),
        }
    )
    return Fitted(plant=plant, objective=best, evaluations=evaluations, requests=requests)


def _starts(x: Floats, *, seed: int) -> Iterator[Floats]:
    rng = stream(seed, "calibration starts")
    yield x
    for _ in range(STARTS - 1):
        yield x + rng.normal(0.0, START_LOG_SD, size=len(x))


def loss(runs: Sequence[MeasuredRun], *, plant: PlantConfig) -> float:
    """Mean Huber loss over both latencies of all requests."""
    parts = [huber(HUBER_AT, log_errors(r, plant=plant)).ravel() for r in runs]
    return float(np.mean(np.concatenate(parts)))


def log_errors(run: MeasuredRun, *, plant: PlantConfig) -> Floats:
    """log(predicted / measured) of TTFT and of E2E.  # [2, usable request]"""
    return _log_error(run, predicted(run, plant=plant), _usable(run))


def _log_error(run: MeasuredRun, answer: Latencies, chosen: Flags) -> Floats:
    with np.errstate(divide="ignore"):
        return np.stack(
            [
                np.log(answer.ttft_s[chosen] / run.measured.ttft_s[chosen]),
                np.log(answer.e2e_s[chosen] / run.measured.e2e_s[chosen]),
            ]
        )


def _usable(run: MeasuredRun) -> Flags:
    m = run.measured
    return run.counted & m.ok & (m.ttft_s > 0.0) & (m.e2e_s > 0.0)


def first_guess(runs: Sequence[MeasuredRun], *, slots: int) -> PlantConfig:
    """Numbers of the right size from medians; the search does the rest."""
    quiet = np.concatenate([_tpot_s(r)[~touched(r) & _usable(r)] for r in runs])
    slow = np.concatenate([_tpot_s(r)[touched(r) & _usable(r)] for r in runs])
    ttft_s = np.concatenate([r.measured.ttft_s[_usable(r)] for r in runs])
    step_s = float(np.nanmedian(quiet)) if np.isfinite(quiet).any() else 0.01
    factor = float(np.nanmedian(slow)) / step_s if np.isfinite(slow).any() else 1.5
    return PlantConfig(
        slots=slots,
        step_base_s=max(step_s * 0.8, 1e-5),
        step_per_seq_s=max(step_s * 0.1, 1e-6),
        prefill_per_token_s=max(step_s * 0.01, 1e-7),
        overhead_s=max(float(np.quantile(ttft_s, 0.1)) * 0.5, 1e-5),
        merge_factor=max((factor + 1.0) / 2, 1.1),
        merge_step_s=step_s,
    )


def _tpot_s(run: MeasuredRun) -> Floats:
    gaps = np.where(run.output_tokens > 1, run.output_tokens - 1, np.nan)
    return (run.measured.e2e_s - run.measured.ttft_s) / gaps


def touched(run: MeasuredRun) -> Flags:
    """Requests under way during a merge."""
    inside: Flags = np.zeros(len(run.at_s), dtype=bool)
    end_s = run.at_s + np.where(np.isnan(run.measured.e2e_s), np.inf, run.measured.e2e_s)
    for start_s, stop_s in run.windows:
        inside |= (run.at_s < stop_s) & (end_s > start_s)
    return inside


def _vector(plant: PlantConfig) -> Floats:
    """Logarithms; merge_factor by what it adds to 1."""
    values = [getattr(plant, name) - (name == "merge_factor") for name in _PARAMETERS]
    return np.log(np.maximum(values, _SMALLEST))


def _plant(x: Floats, guess: PlantConfig) -> PlantConfig:
    values = np.exp(np.clip(x, math.log(_SMALLEST), 10.0)).tolist()
    update = dict(zip(_PARAMETERS, values, strict=True))
    update["merge_factor"] += 1.0
    update["step_base_s"] = max(update["step_base_s"], 1e-6)
    return guess.model_copy(update=update)


def overhead_log_sd(runs: Sequence[MeasuredRun], *, plant: PlantConfig) -> float:
    """Spread of what comes before the queue: measured TTFT less the plant's own, outside windows.

    From the quartiles, so that a few stalls do not set it; 0 where it cannot be told.
    """
    if plant.overhead_s <= 0.0:
        return 0.0
    waits = []
    for run in runs:
        calm = _usable(run) & ~touched(run)
        answer = predicted(run, plant=plant)
        waits.append((run.measured.ttft_s - answer.ttft_s + plant.overhead_s)[calm])
    every = np.concatenate(waits)
    known = np.log(every[every > 0.0])
    if len(known) < LEAST_TOUCHED:
        return 0.0
    low, high = np.quantile(known, [0.25, 0.75])
    return float(high - low) / 1.349  # of a normal law


def factor_log_sd(runs: Sequence[MeasuredRun], *, plant: PlantConfig) -> float:
    """Spread of the slow-down over windows, each fitted on its own; 0 under three windows."""
    found = [f for run in runs for f in window_factors(run, plant=plant) if f is not None]
    return float(np.std(np.log(found), ddof=1)) if len(found) >= LEAST_WINDOWS else 0.0


def window_factors(run: MeasuredRun, *, plant: PlantConfig) -> list[float | None]:
    """Each window's own factor, the others left at the median; None where too few met it."""
    found: list[float | None] = []
    median = np.full(len(run.windows), plant.merge_factor)
    for i in range(len(run.windows)):
        met = touched(replace(run, windows=run.windows[i : i + 1])) & _usable(run)
        if met.sum() < LEAST_TOUCHED:
            found.append(None)
            continue

        def own(log_factor: float, i: int = i, met: Flags = met) -> float:
            factors = median.copy()
            factors[i] = math.exp(log_factor)
            answer = predicted(run, plant=plant, factors=factors)
            return float(np.mean(huber(HUBER_AT, _log_error(run, answer, met))))

        most = math.log(plant.merge_factor) + MOST_LOG_APART
        best = minimize_scalar(own, bounds=(0.0, most), method="bounded")
        found.append(math.exp(float(best.x)))
    return found
