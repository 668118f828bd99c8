"""Measured runs to plant parameters: a robust fit of every request's TTFT and E2E.

Least squares on log(predicted / measured) by a trust region with the Huber (1964) loss, several
starts; the best is gone on with by Nelder and Mead (1965), who need no derivatives. The same runs
and seed give the same plant, bit for bit.

Where in a step a request arrives decides to the step when its first token comes, and nobody knows
it: so a prediction is the mean over some arrivals within a step, which is smooth too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares, minimize
from scipy.special import huber

from orchestrator.metrics import Flags, Floats
from orchestrator.replay.config import LEAST_STEP_S, PlantConfig
from orchestrator.replay.measured import Latencies, MeasuredRun, after_real, predicted, tpot_s
from policies.streams import stream

STARTS = 4
EVALUATIONS = 40  # most steps of one start
PHASES = 4  # arrivals within a step
HUBER_AT = 0.3  # log units: beyond about 35 % off, a request counts by its distance alone
DIFFERENCE = 0.15  # of the derivatives, in log units: less would see single steps
POLISH = 300  # most evaluations after the best start
START_LOG_SD = 0.3
FIXED_SHARES = (0.8, 0.2)  # of the starts: both hills are looked at
MOST_FIXED = 0.97
_POSITIVE = ("step_base_s", "step_per_seq_s", "prefill_per_token_s", "overhead_s")
_LOW, _HIGH = math.log(1e-9), math.log(1e3)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The plant without its noise, and how the search for it ended."""

    plant: PlantConfig
    objective: float  # mean Huber loss at the end
    evaluations: int
    requests: int
    calm: bool  # the real work of a merge, before what fills its window, slows nothing


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A plant as a point that least squares can move: logarithms, and the share of a merge's cost
    that is the same for every step. factor and merge_step_s alone would lie on a ridge.
    """

    slots: int
    step_s: float  # an ordinary step, in which that share is taken

    def point(self, plant: PlantConfig) -> Floats:
        extra_s = (plant.merge_factor - 1.0) * (self.step_s + plant.merge_step_s)
        share = plant.merge_step_s / (self.step_s + plant.merge_step_s)
        values = [getattr(plant, name) for name in _POSITIVE]
        return np.array([*np.log(np.maximum([*values, extra_s], 1e-9)), share])

    def plant(self, x: Floats) -> PlantConfig:
        values = dict(zip(_POSITIVE, np.exp(np.clip(x[:-2], _LOW, _HIGH)).tolist(), strict=True))
        extra_s, share = math.exp(min(x[-2], _HIGH)), float(np.clip(x[-1], 0.0, MOST_FIXED))
        values["step_base_s"] = max(values["step_base_s"], LEAST_STEP_S)
        return PlantConfig(
            slots=self.slots,
            **values,
            merge_factor=1.0 + extra_s * (1.0 - share) / self.step_s,
            merge_step_s=self.step_s * share / (1.0 - share),
        )


def fit_plant(runs: Sequence[MeasuredRun], *, slots: int, seed: int) -> Fitted:
    """The plant that answers these runs' requests most nearly as they were answered.

    Once with a slow-down in the whole of each window, once from the end of the merge's real work
    on (as recorded); the better one counts.

    ``slots`` is the engine's own setting (max_num_seqs) and is not fitted. ValueError where the
    runs hold too little.
    """
    requests = sum(int(usable(r).sum()) for r in runs)
    least = 10 * (len(_POSITIVE) + 2)
    if requests < least:
        raise ValueError(
            f"{requests} answered requests in {len(runs)} runs cannot carry a fit of "
            f"{len(_POSITIVE) + 2} parameters ({least} are the least); choose more runs"
        )
    scale = Scale(slots=slots, step_s=_step_s(runs))
    whole = _search(runs, scale, list(_starts(runs, scale, seed=seed)), seed=seed)
    if not any((r.real_s > 0.0).any() for r in runs):
        return replace(whole, requests=requests)
    later = [after_real(r) for r in runs]
    calm = _search(later, scale, [scale.point(whole.plant)], seed=seed)
    better = calm if calm.objective < whole.objective else whole
    return replace(
        better,
        calm=calm.objective < whole.objective,
        evaluations=whole.evaluations + calm.evaluations,
        requests=requests,
    )


def _search(
    runs: Sequence[MeasuredRun], scale: Scale, starts: Sequence[Floats], *, seed: int
) -> Fitted:
    """Least squares from every start, then onward from the best end."""
    phases = [arrivals_within(r, scale.step_s, seed=seed) for r in runs]
    evaluations = 0

    def errors(y: Floats, start: Floats) -> Floats:
        nonlocal evaluations
        evaluations += 1
        plant = scale.plant(start + y - 1.0)
        return np.concatenate([_mean_log_errors(p, plant=plant) for p in phases], axis=1).ravel()

    ends = []
    for start in starts:
        low = np.array([_LOW] * (len(start) - 1) + [0.0]) - start + 1.0
        high = np.array([_HIGH] * (len(start) - 1) + [MOST_FIXED]) - start + 1.0
        found = least_squares(
            errors,
            np.ones_like(start),  # about 1, so that the difference is one of log units
            args=(start,),
            bounds=(low, high),
            loss="huber",
            f_scale=HUBER_AT,
            diff_step=DIFFERENCE,
            max_nfev=EVALUATIONS,
        )
        ends.append((float(found.cost), start + found.x - 1.0))
    best = min(ends, key=lambda end: end[0])[1]
    polished = minimize(
        lambda x: loss(phases, plant=scale.plant(x)),
        best,
        method="Nelder-Mead",
        options={
            "initial_simplex": best + np.vstack([np.zeros(len(best)), np.eye(len(best)) * 0.1]),
            "maxfev": POLISH,
            "xatol": 1e-3,
            "fatol": 1e-7,
            "adaptive": True,
        },
    )
    return Fitted(
        plant=scale.plant(polished.x),
        objective=float(polished.fun),
        evaluations=evaluations + int(polished.nfev),
        requests=0,
        calm=False,
    )


def arrivals_within(run: MeasuredRun, step_s: float, *, seed: int) -> tuple[MeasuredRun, ...]:
    """The run with its arrivals moved by up to half a step; what was measured stays."""
    rng = stream(seed, "calibration phases", run.key.seed)
    return tuple(
        replace(run, at_s=np.maximum(run.at_s + rng.uniform(-0.5, 0.5, len(run.at_s)) * step_s, 0))
        for _ in range(PHASES)
    )


def loss(phases: Sequence[Sequence[MeasuredRun]], *, plant: PlantConfig) -> float:
    """Mean Huber loss over both latencies of all requests."""
    errors = [_mean_log_errors(p, plant=plant) for p in phases]
    return float(np.mean(huber(HUBER_AT, np.concatenate(errors, axis=1))))


def _mean_log_errors(phases: Sequence[MeasuredRun], *, plant: PlantConfig) -> Floats:
    parts = [log_errors(run, predicted(run, plant=plant), usable(run)) for run in phases]
    return np.asarray(np.mean(parts, axis=0))


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


def touched(run: MeasuredRun) -> Flags:
    """Requests under way during a merge."""
    inside: Flags = np.zeros(len(run.at_s), dtype=bool)
    end_s = run.at_s + np.where(np.isnan(run.measured.e2e_s), np.inf, run.measured.e2e_s)
    for start_s, stop_s in run.windows:
        inside |= (run.at_s < stop_s) & (end_s > start_s)
    return inside


def _starts(runs: Sequence[MeasuredRun], scale: Scale, *, seed: int) -> Iterator[Floats]:
    rng = stream(seed, "calibration starts")
    for i in range(STARTS):
        x = scale.point(first_guess(runs, scale))
        x[-1] = FIXED_SHARES[i % len(FIXED_SHARES)]
        if i >= len(FIXED_SHARES):
            x[:-1] += rng.normal(0.0, START_LOG_SD, size=len(x) - 1)
        yield x


def first_guess(runs: Sequence[MeasuredRun], scale: Scale) -> PlantConfig:
    """Numbers of the right size from medians; the search does the rest."""
    slow = np.concatenate([tpot_s(r)[touched(r) & usable(r)] for r in runs])
    ttft_s = np.concatenate([r.measured.ttft_s[usable(r)] for r in runs])
    step_s = scale.step_s
    times = float(np.nanmedian(slow)) / step_s if np.isfinite(slow).any() else 1.5
    return PlantConfig(
        slots=scale.slots,
        step_base_s=max(step_s * 0.8, 10 * LEAST_STEP_S),
        step_per_seq_s=step_s * 0.1,
        prefill_per_token_s=step_s * 0.02,
        overhead_s=float(np.quantile(ttft_s, 0.1)) * 0.5,
        merge_factor=1.0 + max(times - 1.0, 0.1),
    )


def _step_s(runs: Sequence[MeasuredRun]) -> float:
    """The median time per token outside merges; a hundredth of a second where none is known."""
    quiet = np.concatenate([tpot_s(r)[~touched(r) & usable(r)] for r in runs])
    known = quiet[quiet > 0.0]
    return float(np.median(known)) if len(known) else 0.01
