"""Measured runs to plant parameters: a robust fit of every request's TTFT and E2E.

Nelder and Mead (1965) on the logarithms of the parameters, several starts; Huber (1964) loss on
log(predicted / measured). The same runs and seed give the same plant, bit for bit.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import huber

from orchestrator.metrics import Flags, Floats
from orchestrator.replay.config import LEAST_STEP_S, PlantConfig
from orchestrator.replay.measured import Latencies, MeasuredRun, predicted
from policies.streams import stream

STARTS = 4
EVALUATIONS = 400  # most of one start; the best is then gone on with for as many again
HUBER_AT = 0.3  # log units: beyond about 35 % off, a request counts by its distance alone
START_LOG_SD = 0.4
STEP_SHARES = (5.0, 0.2)  # merge_step_s of the starts, in steps: both hills are looked at
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
    """The plant without its noise, and how the search for it ended."""

    plant: PlantConfig
    objective: float  # mean Huber loss at the end
    evaluations: int
    requests: int


def fit_plant(runs: Sequence[MeasuredRun], *, slots: int, seed: int) -> Fitted:
    """The plant that answers these runs' requests most nearly as they were answered.

    ``slots`` is the engine's own setting (max_num_seqs) and is not fitted. ValueError where the
    runs hold too little.
    """
    requests = sum(int(usable(r).sum()) for r in runs)
    if requests < 10 * len(_PARAMETERS):
        raise ValueError(
            f"{requests} answered requests in {len(runs)} runs cannot carry a fit of "
            f"{len(_PARAMETERS)} parameters; choose more runs"
        )
    evaluations = 0

    def objective(x: Floats) -> float:
        nonlocal evaluations
        evaluations += 1
        return loss(runs, plant=_plant(x, slots=slots))

    def descend(x: Floats) -> tuple[float, Floats]:
        options = {"maxfev": EVALUATIONS, "xatol": 1e-4, "fatol": 1e-8, "adaptive": True}
        found = minimize(objective, x, method="Nelder-Mead", options=options)
        return float(found.fun), found.x

    ends = [descend(start) for start in _starts(runs, slots=slots, seed=seed)]
    best, x = descend(min(ends, key=lambda end: end[0])[1])
    return Fitted(
        plant=_plant(x, slots=slots), objective=best, evaluations=evaluations, requests=requests
    )


def loss(runs: Sequence[MeasuredRun], *, plant: PlantConfig) -> float:
    """Mean Huber loss over both latencies of all requests."""
    errors = [log_errors(r, predicted(r, plant=plant), usable(r)) for r in runs]
    return float(np.mean(huber(HUBER_AT, np.concatenate(errors, axis=1))))


def log_errors(run: MeasuredRun, answer: Latencies, chosen: Flags) -> Floats:
    """log(predicted / measured) of TTFT and of E2E.  # [2, chosen request]"""
    with np.errstate(divide="ignore"):
        return np.stack(
            [
                np.log(answer.ttft_s[chosen] / run.measured.ttft_s[chosen]),
                np.log(answer.e2e_s[chosen] / run.measured.e2e_s[chosen]),
            ]
        )


def usable(run: MeasuredRun) -> Flags:
    """Counted requests with both latencies."""
    m = run.measured
    return run.counted & m.ok & (m.ttft_s > 0.0) & (m.e2e_s > 0.0)


def touched(run: MeasuredRun, *, windows: Floats | None = None) -> Flags:
    """Requests under way during a merge, or during one of ``windows`` [n, 2]."""
    inside: Flags = np.zeros(len(run.at_s), dtype=bool)
    end_s = run.at_s + np.where(np.isnan(run.measured.e2e_s), np.inf, run.measured.e2e_s)
    for start_s, stop_s in run.windows if windows is None else windows:
        inside |= (run.at_s < stop_s) & (end_s > start_s)
    return inside


def _starts(runs: Sequence[MeasuredRun], *, slots: int, seed: int) -> Iterator[Floats]:
    rng = stream(seed, "calibration starts")
    for i in range(STARTS):
        guess = first_guess(runs, slots=slots, step_share=STEP_SHARES[i % len(STEP_SHARES)])
        x = _vector(guess)
        yield x if i < len(STEP_SHARES) else x + rng.normal(0.0, START_LOG_SD, size=len(x))


def first_guess(runs: Sequence[MeasuredRun], *, slots: int, step_share: float) -> PlantConfig:
    """Numbers of the right size from medians; the search does the rest."""
    quiet = np.concatenate([_tpot_s(r)[~touched(r) & usable(r)] for r in runs])
    slow = np.concatenate([_tpot_s(r)[touched(r) & usable(r)] for r in runs])
    ttft_s = np.concatenate([r.measured.ttft_s[usable(r)] for r in runs])
    step_s = float(np.nanmedian(quiet)) if np.isfinite(quiet).any() else 0.01
    times = float(np.nanmedian(slow)) / step_s if np.isfinite(slow).any() else 1.5
    return PlantConfig(
        slots=slots,
        step_base_s=max(step_s * 0.8, 10 * LEAST_STEP_S),
        step_per_seq_s=step_s * 0.1,
        prefill_per_token_s=step_s * 0.02,
        overhead_s=float(np.quantile(ttft_s, 0.1)) * 0.5,
        merge_factor=1.0 + max(times - 1.0, 0.1) / (1.0 + step_share),
        merge_step_s=step_s * step_share,
    )


def _tpot_s(run: MeasuredRun) -> Floats:
    gaps = np.where(run.output_tokens > 1, run.output_tokens - 1, np.nan)
    return (run.measured.e2e_s - run.measured.ttft_s) / gaps


def _vector(plant: PlantConfig) -> Floats:
    """Logarithms; merge_factor by what it adds to 1."""
    values = [getattr(plant, name) - (name == "merge_factor") for name in _PARAMETERS]
    return np.log(np.maximum(values, _SMALLEST))


def _plant(x: Floats, *, slots: int) -> PlantConfig:
    values = dict(zip(_PARAMETERS, np.exp(np.clip(x, math.log(_SMALLEST), 10.0)), strict=True))
    values["merge_factor"] += 1.0
    values["step_base_s"] = max(values["step_base_s"], LEAST_STEP_S)
    return PlantConfig(slots=slots, **{name: float(value) for name, value in values.items()})
