"""A replayed run to its row: the definitions of metrics.py and calibration/, on arrays.

A test writes the same run as a folder and finds the same bits in its metrics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.calibration.overlap import exact_moments
from orchestrator.calibration.recorded import traffic_costs
from orchestrator.config import StudyConfig
from orchestrator.metrics import Flags, beyond_slo, in_flight_at, percentile, percentiles, within
from orchestrator.record_tables import Window
from orchestrator.records import ArmSpec
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.load import Answers, Floats
from policies.corridor import Corridor


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one run did: its answers, its windows and why they began."""

    answers: Answers
    starts: tuple[int, ...]  # ticks, marked windows too
    forced: int  # of them, by corridor, budget or guard
    merges: int  # of them, those that were no mere marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The seed's no_sync, which every arm's figures are set against."""

    study: StudyConfig
    seed: int
    corridor: Corridor
    played: Played
    costs: tuple[Floats, Floats]  # all requests overlapped, arriving ones alone, by start tick
    moments: tuple[tuple[float, float], ...]  # of each cost; empty without a budget


def make_base(study: StudyConfig, played: Played, *, seed: int, corridor: Corridor) -> Base:
    """Costs and exact moments of the seed's own traffic, as calibration/recorded.py has them."""
    answers, budget = played.answers, study.corridor.budget_merges
    counted = _counted(study, answers)
    new, flight = traffic_costs(
        answers.at_s[counted], answers.done_at_s[counted], corridor, tick_s=study.tick_s
    )
    costs = (new + flight, new)
    return Base(
        study=study,
        seed=seed,
        corridor=corridor,
        played=played,
        costs=costs,
        moments=()
        if budget is None
        else tuple(exact_moments(corridor, cost, budget) for cost in costs),
    )


UNPOOLED: Mapping[str, Any] = dict.fromkeys(
    ("pooled_requests", "pooled_p95_s", "pooled_p95_no_sync_s")
)
Paired = tuple[Floats, Floats]  # E2E of the requests in a run's windows; of the same ids in no_sync


def paired_inside(played: Played, base: Base) -> Paired | None:
    """None where the requests are not those of no_sync, as in a closed loop."""
    if played.answers.request_hash != base.played.answers.request_hash:
        return None
    mine, plain = played.answers, base.played.answers
    counted = _counted(base.study, mine)
    inside = within(mine.at_s[counted], _windows(base, played.starts))
    return mine.e2e_s[counted][inside], plain.e2e_s[counted][inside]


def pooled_figures(runs: Sequence[Paired | None], *, no_syncs: int) -> dict[str, Any]:
    """The ``pooled_`` figures of a control's draws, as calibration/effects.py pools records.

    ``no_syncs``: no_sync arms of the study; a live seed pools each of them value by value.
    """
    known = [run for run in runs if run is not None]
    if not known or len(known) < len(runs) or no_syncs < 1:
        return dict(UNPOOLED)
    here, plain = (np.concatenate([run[i] for run in known]) for i in (0, 1))
    return {
        "pooled_requests": len(here),
        "pooled_p95_s": percentile(here, 0.95),
        "pooled_p95_no_sync_s": percentile(np.tile(plain, no_syncs), 0.95),
    }


def run_figures(arm: ArmSpec, played: Played, base: Base) -> ReplayFigures:
    """One row, its ``pooled_`` figures unknown: they are of more runs than one."""
    windows = _windows(base, played.starts)
    marked = len(windows)
    return ReplayFigures(
        replicate=base.seed,
        arm=arm.label,
        kind=arm.kind,
        policy=arm.policy,
        of=arm.of,
        draw=arm.draw,
        position=arm.position,
        request_hash=played.answers.request_hash,
        status="complete",
        merge_count=played.merges,
        marked_windows=marked,
        merge_planned_s=sum((b - a for a, b in windows), 0.0),
        starts=played.starts,
        forced_share=played.forced / marked if marked else None,
        **_requests(played, base, windows),
        **UNPOOLED,
        **_overlaps(played, base),
    )


def _counted(study: StudyConfig, answers: Answers) -> slice:
    """Requests scheduled in [warmup_s, horizon_s); they stand in order of time."""
    low, high = np.searchsorted(answers.at_s, (study.warmup_s, study.horizon_s))
    return slice(int(low), int(high))


def _windows(base: Base, starts: Sequence[int]) -> list[Window]:
    """[start, end) of each, by the coordinator's own products."""
    tick_s, width = base.study.tick_s, base.corridor.width_ticks
    return [(t * tick_s, (t + width) * tick_s) for t in starts]


def _requests(played: Played, base: Base, windows: Sequence[Window]) -> dict[str, Any]:
    """All that is said of the counted requests."""
    study, answers = base.study, played.answers
    counted = _counted(study, answers)
    at_s, done_s = answers.at_s[counted], answers.done_at_s[counted]
    first_s, tokens = answers.first_token_at_s[counted], answers.output_tokens[counted]
    e2e_s, ttft_s = done_s - at_s, first_s - at_s
    gaps = np.where(tokens > 1, tokens - 1.0, np.nan)
    # As from a record: stated from the latencies, computed from the times, the larger counts.
    tpot_s = np.fmax((e2e_s - ttft_s) / gaps, (done_s - first_s) / gaps)
    slo = {"e2e_s": study.slo.e2e_s, "ttft_s": study.slo.ttft_s, "tpot_s": study.slo.tpot_s}
    violates = beyond_slo(slo, e2e_s=e2e_s, ttft_s=ttft_s, tpot_s=tpot_s)
    n, violations = len(at_s), int(violates.sum())
    inside = within(at_s, windows)
    met = in_flight_at(at_s, done_s, [a for a, _ in windows])
    e2e = percentiles(e2e_s, (0.5, 0.95, 0.99))
    ttft, tpot = percentiles(ttft_s, (0.5, 0.95)), percentiles(tpot_s, (0.5, 0.95))
    return {
        "requests_scheduled": n,
        "violations": violations,
        "violation_rate": violations / n if n else None,
        "violations_not_yet_arrived": int((violates & ~met).sum()) if windows else None,
        "requests_in_windows": int(inside.sum()),
        "violations_in_windows": int((violates & inside).sum()),
        **dict(zip(("e2e_p50_s", "e2e_p95_s", "e2e_p99_s"), e2e, strict=True)),
        **dict(zip(("ttft_p50_s", "ttft_p95_s"), ttft, strict=True)),
        **dict(zip(("tpot_p50_s", "tpot_p95_s"), tpot, strict=True)),
        "goodput_rps": (n - violations) / (study.horizon_s - study.warmup_s) if n else None,
        "inside_p95_s": percentiles(e2e_s[inside], (0.95,))[0],
        **_against(played, base, inside=inside, e2e_s=e2e_s),
    }


def _against(
    played: Played, base: Base, *, inside: Flags, e2e_s: Floats
) -> dict[str, float | None]:
    """The same requests in no_sync; None where they are not the same, as in a closed loop."""
    if played.answers.request_hash != base.played.answers.request_hash:
        return {"inside_p95_no_sync_s": None, "excess_s": None}
    plain = base.played.answers
    plain_s = plain.e2e_s[_counted(base.study, plain)]
    return {
        "inside_p95_no_sync_s": percentiles(plain_s[inside], (0.95,))[0],
        "excess_s": float((e2e_s - plain_s).sum()),
    }


def _overlaps(played: Played, base: Base) -> dict[str, Any]:
    """None without a window; mean and variance None without a budget too."""
    found: dict[str, float | None] = {}
    starts = list(played.starts)
    for i, name in enumerate(("overlap", "new_overlap")):
        mean, variance = base.moments[i] if starts and base.moments else (None, None)
        found[name] = float(base.costs[i][starts].sum()) if starts else None
        found |= {f"{name}_mean": mean, f"{name}_variance": variance}
    return found
