"""The merge effect of each seed: latency inside windows against the same requests in no_sync.

Comparing the same request ids leaves no room for placement or length bias.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.calibration.evidence import Evidence, Run
from orchestrator.metrics import (
    LEAST_FOR_PERCENTILE,
    Floats,
    marked_windows,
    percentile,
    real_merges,
    within,
)
from orchestrator.record_tables import Window

Windows = Callable[[Run], tuple[Window, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """p95 in the windows over p95 of the same ids without merges; None with the reason why."""

    value: float | None
    requests: int
    window_p95_s: float | None
    no_sync_p95_s: float | None
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedEffects:
    """One seed: all of the window, its real part alone, and the placebo."""

    seed: int
    whole: Ratio
    real_part: Ratio
    placebo: Ratio


def seed_effects(evidence: Evidence, of: str) -> tuple[SeedEffects, ...]:
    """Effects of merges drawn at random under the budget of policy ``of``, seed by seed."""
    draws = evidence.labels("matched_random", of=of)
    placebos = evidence.labels("placebo", of=of) or evidence.labels("placebo")[:1]
    return tuple(
        SeedEffects(
            seed=seed,
            whole=_ratio(evidence, seed, draws, _planned, "matched_random"),
            real_part=_ratio(evidence, seed, draws, _real_part, "matched_random"),
            placebo=_ratio(evidence, seed, placebos, _planned, "placebo"),
        )
        for seed in evidence.study.seeds
    )


def _planned(run: Run) -> tuple[Window, ...]:
    return tuple((w.planned_start_s, w.planned_end_s) for w in marked_windows(run.record))


def _real_part(run: Run) -> tuple[Window, ...]:
    """[start, start + real work of the slowest island): the part that nothing emulates."""
    return tuple(
        (m.started.planned_start_s, m.started.planned_start_s + m.slowest.real_s)
        for m in real_merges(run.record)
        if m.slowest is not None
    )


def _ratio(
    evidence: Evidence, seed: int, labels: Sequence[str], windows: Windows, what: str
) -> Ratio:
    """Draws pooled; the two no_sync runs pooled value by value, so that their tail is kept.

    A request counts where it succeeded in the merging run and in every no_sync run: ratios are of
    latencies, failures are counted as violations elsewhere.
    """
    bases = evidence.completed(evidence.labels("no_sync"), seed)
    runs = evidence.completed(labels, seed)
    if not labels or len(runs) < len(labels):
        return _unknown(f"no complete {what} run")
    if not bases:
        return _unknown("no complete no_sync run")
    treated: list[Floats] = []
    plain: list[Floats] = []
    for run in runs:
        mine, others = _paired(run, bases, windows(run))
        treated.append(mine)
        plain += others
    window_s, base_s = np.concatenate(treated), np.concatenate(plain)
    n = len(window_s)
    top, bottom = percentile(window_s, 0.95), percentile(base_s, 0.95)
    if top is None or bottom is None or min(top, bottom) <= 0.0:
        return Ratio(
            value=None,
            requests=n,
            window_p95_s=top,
            no_sync_p95_s=bottom,
            why=f"{n} requests scheduled there, fewer than {LEAST_FOR_PERCENTILE}"
            if n < LEAST_FOR_PERCENTILE
            else "a p95 of 0 s or less",
        )
    return Ratio(value=top / bottom, requests=n, window_p95_s=top, no_sync_p95_s=bottom, why=None)


def _paired(
    run: Run, bases: Sequence[Run], windows: Sequence[Window]
) -> tuple[Floats, list[Floats]]:
    """E2E of the requests in the windows, and of the same ids in each no_sync run."""
    r = run.requests
    chosen = r.counted & r.ok & within(r.scheduled_at_s, windows)
    latency = dict(zip(r.request_id[chosen].tolist(), r.e2e_s[chosen].tolist(), strict=True))
    others = []
    for base in bases:
        b = base.requests
        others.append(dict(zip(b.request_id[b.ok].tolist(), b.e2e_s[b.ok].tolist(), strict=True)))
    ids = [i for i in latency if all(i in other for other in others)]
    mine = np.array([latency[i] for i in ids], dtype=np.float64)
    return mine, [np.array([other[i] for i in ids], dtype=np.float64) for other in others]


def _unknown(why: str) -> Ratio:
    return Ratio(value=None, requests=0, window_p95_s=None, no_sync_p95_s=None, why=why)


def effect_row(effects: SeedEffects, of: str) -> dict[str, float | int | str | None]:
    """One row of ``Judgement.effects``."""
    return {
        "seed": effects.seed,
        "of": of,
        "effect_ratio": effects.whole.value,
        "effect_requests": effects.whole.requests,
        "window_p95_s": effects.whole.window_p95_s,
        "no_sync_p95_s": effects.whole.no_sync_p95_s,
        "effect_why": effects.whole.why,
        "real_part_ratio": effects.real_part.value,
        "real_part_requests": effects.real_part.requests,
        "real_part_why": effects.real_part.why,
        "placebo_ratio": effects.placebo.value,
        "placebo_requests": effects.placebo.requests,
        "placebo_why": effects.placebo.why,
    }
