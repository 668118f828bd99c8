"""One row an arm of a replay, over its seeds; the draws of a matched_random arm are one row.

Percentiles of single runs are never averaged: the middle one over runs is given, and named so.
"""

import statistics
from collections.abc import Callable, Sequence

from orchestrator.calibration.pooled import Row
from orchestrator.replay.evidence import ReplayEvidence
from orchestrator.replay.figures import ReplayFigures

_CONTROLS = {"matched_random", "placebo", "oracle", "aa"}
Get = Callable[[ReplayFigures], float | None]


def replay_arms(evidence: ReplayEvidence) -> tuple[Row, ...]:
    """In the study's order of arms."""
    groups: dict[str, list[str]] = {}
    for arm in evidence.arms:
        name = f"matched_random-of-{arm.of}" if arm.kind == "matched_random" else arm.label
        groups.setdefault(name, []).append(arm.label)
    kinds = {a.label: a.kind for a in evidence.arms}
    return tuple(
        _row(name, kinds[labels[0]], _rows(evidence, labels), draws=len(labels))
        for name, labels in groups.items()
    )


def _rows(evidence: ReplayEvidence, labels: Sequence[str]) -> list[ReplayFigures]:
    seeds = evidence.study.seeds
    return [run.metrics for seed in seeds for run in evidence.completed(labels, seed)]


def _row(name: str, kind: str, rows: Sequence[ReplayFigures], *, draws: int) -> Row:
    requests = sum(row.requests_scheduled for row in rows)
    violations = sum(row.violations for row in rows)
    return {
        "arm": name,
        "kind": f"{kind} (control)" if kind in _CONTROLS else kind,
        "draws": draws if kind == "matched_random" else None,
        "runs": len(rows),
        "requests": requests,
        "violations": violations if rows else None,
        "violation_rate": violations / requests if requests else None,
        "e2e_p50_middle_s": _middle(rows, lambda r: r.e2e_p50_s),
        "e2e_p95_middle_s": _middle(rows, lambda r: r.e2e_p95_s),
        "e2e_p99_middle_s": _middle(rows, lambda r: r.e2e_p99_s),
        "ttft_p95_middle_s": _middle(rows, lambda r: r.ttft_p95_s),
        "tpot_p95_middle_s": _middle(rows, lambda r: r.tpot_p95_s),
        "goodput_rps": _mean(rows, lambda r: r.goodput_rps),
        "merges": sum(row.merge_count for row in rows),
        "marked_windows": sum(row.marked_windows for row in rows),
        "merge_planned_s": sum((row.merge_planned_s for row in rows), 0.0),
        "excess_per_merge_s": _excess(rows),
        "forced_share": _mean(rows, lambda r: r.forced_share),
    }


def _known(rows: Sequence[ReplayFigures], get: Get) -> list[float] | None:
    """None when any run does not know it."""
    values = [get(row) for row in rows]
    known = [v for v in values if v is not None]
    return known if known and len(known) == len(values) else None


def _middle(rows: Sequence[ReplayFigures], get: Get) -> float | None:
    values = _known(rows, get)
    return None if values is None else statistics.median(values)


def _mean(rows: Sequence[ReplayFigures], get: Get) -> float | None:
    values = _known(rows, get)
    return None if values is None else statistics.fmean(values)


def _excess(rows: Sequence[ReplayFigures]) -> float | None:
    """Seconds that a merge adds to all requests together."""
    values, merges = _known(rows, lambda r: r.excess_s), sum(r.merge_count for r in rows)
    return sum(values) / merges if values is not None and merges else None
