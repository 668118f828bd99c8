"""Around the verdicts: one row an arm pooled over seeds, what was emulated, and the caveats.

Percentiles are taken over the pooled requests; percentiles are never averaged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.calibration.evidence import Evidence, Run
from orchestrator.config import StudyConfig
from orchestrator.metrics import percentile
from orchestrator.records import ArmSpec, RunMetrics
from orchestrator.workload.config import TraceConfig

WINDOWS_FOR_REGIME = 20  # disjoint windows of a trace below which only the trace is spoken of
Row = dict[str, float | int | str | None]
_CONTROLS = {"matched_random", "placebo", "oracle", "aa"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """The synthetic part of the merge windows; share None where a merge never told."""

    kind: str
    share: float | None

    @property
    def words(self) -> str:
        share = "an unknown share" if self.share is None else f"{100 * self.share:.0f} %"
        return f"with emulated merge load, {self.kind}, {share} of the window"


def emulation(evidence: Evidence, policy: str | None = None) -> Emulation | None:
    """Of the policy's and its controls' merges, or of all; None where nothing was emulated."""
    runs = [
        run
        for run in evidence.runs.values()
        if run.metrics.merge_count
        and (policy is None or policy in (run.record.arm.policy, run.record.arm.of))
    ]
    fill = evidence.study.merge.fill
    kind: str = fill.kind
    if fill.core_fraction is not None:
        kind += f" ({fill.threads} x {100 * fill.core_fraction:g} % of a core for each island)"
    if fill.kind == "none" or not runs:
        return None
    emulated = [run.metrics.merge_emulated_s for run in runs]
    known = [s for s in emulated if s is not None]
    planned_s = sum(run.metrics.merge_planned_s for run in runs)
    whole = len(known) == len(runs) and planned_s > 0
    return Emulation(kind=kind, share=sum(known) / planned_s if whole else None)


def engine_of(evidence: Evidence) -> tuple[str, str, str]:
    """Source, engine and version; mixed ones are named as such, never hidden."""
    found = [
        sorted({text(run.metrics) for run in evidence.runs.values()})
        for text in (_source, _engine, _version)
    ]
    source, engine, version = (
        values[0] if len(values) == 1 else f"mixed ({', '.join(values)})" if values else "unknown"
        for values in found
    )
    return source, engine, version


def _source(m: RunMetrics) -> str:
    return m.source


def _engine(m: RunMetrics) -> str:
    return m.engine


def _version(m: RunMetrics) -> str:
    return m.engine_version


def arm_rows(evidence: Evidence) -> tuple[Row, ...]:
    """One row an arm label, over its complete runs of the study's seeds."""
    return tuple(_arm_row(evidence, arm) for arm in evidence.arms)


def _arm_row(evidence: Evidence, arm: ArmSpec) -> Row:
    runs = [run for s in evidence.study.seeds if (run := evidence.complete(arm.label, s))]
    metrics = [run.metrics for run in runs]
    requests = sum(m.requests_scheduled for m in metrics)
    violations = sum(m.violations for m in metrics)
    return {
        "arm": arm.label,
        "kind": f"{arm.kind} (control)" if arm.kind in _CONTROLS else arm.kind,
        "runs": len(runs),
        "requests": requests,
        "violations": violations if runs else None,
        "violation_rate": violations / requests if requests else None,
        "e2e_p50_s": _pooled(runs, "e2e_s", 0.50),
        "e2e_p95_s": _pooled(runs, "e2e_s", 0.95),
        "ttft_p95_s": _pooled(runs, "ttft_s", 0.95),
        "tpot_p95_s": _pooled(runs, "tpot_s", 0.95),
        "goodput_rps": _mean(metrics, lambda m: m.goodput_rps),
        "merges": sum(m.merge_count for m in metrics),
        "marked_windows": sum(m.marked_windows for m in metrics),
        "merge_planned_s": sum((m.merge_planned_s for m in metrics), 0.0),
        "merge_real_s": _total(metrics, lambda m: m.merge_real_s),
        "merge_emulated_s": _total(metrics, lambda m: m.merge_emulated_s),
        "forced_share": _mean(metrics, lambda m: m.forced_share),
        "blind_ticks": sum(m.blind_ticks for m in metrics),
        "train_loss_start": _mean(metrics, lambda m: m.train_loss_start),
        "train_loss_end": _mean(metrics, lambda m: m.train_loss_end),
        "train_tokens_per_s": _mean(metrics, lambda m: m.train_tokens_per_s),
    }


def _pooled(runs: Sequence[Run], column: str, q: float) -> float | None:
    if not runs:
        return None
    values = [getattr(run.requests, column)[run.requests.counted & run.requests.ok] for run in runs]
    return percentile(np.concatenate(values), q)


def _values(
    metrics: Sequence[RunMetrics], get: Callable[[RunMetrics], float | None]
) -> list[float] | None:
    """None when any run does not know it."""
    values = [get(m) for m in metrics]
    known = [v for v in values if v is not None]
    return known if known and len(known) == len(values) else None


def _mean(metrics: Sequence[RunMetrics], get: Callable[[RunMetrics], float | None]) -> float | None:
    values = _values(metrics, get)
    return None if values is None else float(np.mean(values))


def _total(
    metrics: Sequence[RunMetrics], get: Callable[[RunMetrics], float | None]
) -> float | None:
    values = _values(metrics, get)
    return None if values is None else float(sum(values))


NO_REPLAY = "replay: absent, so tiers 0 and 1 are not reached and no claim is licensed"


def caveats(evidence: Evidence, *, replay: tuple[str, ...] = (NO_REPLAY,)) -> tuple[str, ...]:
    """What a reader has to know beside every verdict. ``replay``: which one stands beside it."""
    source, engine, version = engine_of(evidence)
    notes = []
    if engine != "vllm":
        notes.append(
            f"engine={engine} {version}: no real server was measured; nothing here is evidence "
            "about one"
        )
    if source != "live":
        notes.append(f"source={source}: not measured on a live system")
    fill = emulation(evidence)
    if fill is not None:
        notes.append(
            f"{fill.words}: effects include it; the real part alone is given where at least 20 "
            "requests were scheduled in it"
        )
    notes += trace_caveat(evidence.study)
    notes += replay
    if evidence.strays:
        notes.append(f"not in the study, so not judged: {', '.join(evidence.strays)}")
    warned = sorted({w for run in evidence.runs.values() for w in run.metrics.island_warnings})
    notes += [f"{warning} (in at least one run)" for warning in warned]
    notes += _few_steps(evidence)
    changed = evidence.judged_otherwise
    if changed:
        notes.append(
            f"gate thresholds, family or regime were changed after {', '.join(changed[:3])}"
            + (f" and {len(changed) - 3} more were" if len(changed) > 3 else " was")
            + " measured: not fixed beforehand"
        )
    return tuple(notes)


def _few_steps(evidence: Evidence) -> list[str]:
    """Merges after fewer inner steps than the corridor's floor: islands behind their pace."""
    floor = evidence.study.corridor.floor_steps
    known = [
        (run.metrics.merge_steps_min, run.name)
        for run in evidence.runs.values()
        if run.metrics.merge_steps_min is not None
    ]
    short = [(steps, name) for steps, name in known if steps < floor]
    if not short:
        return []
    steps, name = min(short)
    return [
        f"inner steps: a merge came after {steps} steps of an island ({name}), below "
        f"floor_steps={floor}; the same in {len(short)} of {len(known)} runs with merges: islands "
        "ran behind their pace, and the corridor acts in ticks, not in steps"
    ]


def trace_scope(study: StudyConfig) -> str:
    """Why fewer disjoint windows of one trace than a regime takes license no claim; or ""."""
    load, n = study.load, len(study.seeds)
    if not isinstance(load, TraceConfig) or n >= WINDOWS_FOR_REGIME:
        return ""
    return (
        f"{n} disjoint windows of one trace ({Path(load.path).name}) speak of this trace, not of "
        f"the regime {study.regime!r}, which takes {WINDOWS_FOR_REGIME}"
    )


def trace_caveat(study: StudyConfig) -> list[str]:
    """Windows of one trace are disjoint by construction, and still of one trace."""
    load, n = study.load, len(study.seeds)
    if not isinstance(load, TraceConfig):
        return []
    scope = "; so few speak of this trace, not of the regime" if n < WINDOWS_FOR_REGIME else ""
    return [
        f"the {n} seeds are disjoint windows of {study.horizon_s * load.time_scale:g} s of one "
        f"trace, {Path(load.path).name}{scope}"
    ]
