"""The gate's conditions on the runs themselves: were they whole, and equally loaded?"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from actors.events import HistoryTold
from orchestrator.calibration.asked import Asked, Compared
from orchestrator.calibration.evidence import Evidence, Run
from orchestrator.calibration.phrase import condition, named, percent
from orchestrator.calibration.statistics import equivalence
from orchestrator.calibration.verdict import Condition, Status
from orchestrator.metrics import floats
from orchestrator.records import ArmSpec
from orchestrator.rundir import run_hash

DRIFT_ALPHA = 0.05  # of each of the two one-sided tests
MAX_BLIND_SHARE = 0.05  # of an arm's ticks: a policy that is blind for longer was not tested


class Gathered(Protocol):
    """Runs by arm label and seed, beside the arms that the study asks for."""

    @property
    def study(self) -> Asked: ...
    @property
    def arms(self) -> tuple[ArmSpec, ...]: ...
    @property
    def runs(self) -> Mapping[tuple[str, int], object]: ...


def run_validity(evidence: Evidence) -> Condition:
    """All arms there and whole, client and windows on time, telemetry whole, hashes equal."""
    study, gate = evidence.study, evidence.study.gate
    limit_s = gate.max_lateness_fraction_of_slo * study.slo.e2e_s
    problems = [p for run in _expected(evidence) for p in _invalid(run, evidence, limit_s=limit_s)]
    problems += missing_runs(evidence) + _copied(evidence) + _mixed(evidence) + overloaded(evidence)
    problems += _judged_otherwise(evidence) + _told_otherwise(evidence)
    return condition(
        "run_validity",
        Status.NOT_MET if problems else Status.MET,
        value=float(len(problems)),
        threshold=(
            f"0 problems: every arm complete; p99 send lateness outside windows at most "
            f"{limit_s:.3g} s; no overrun; no window that ends over a tick late; parameters equal "
            f"after each merge; at most {percent(MAX_BLIND_SHARE)} blind ticks; no_sync violates "
            f"under {percent(gate.max_no_sync_violation_fraction)}"
        ),
        n=len(evidence.runs),
        why=named(problems) or f"all {len(evidence.runs)} runs are whole",
    )


def _told_otherwise(evidence: Evidence) -> list[str]:
    """Every arm of a seed is told the same traffic before the run, or none is."""
    problems = []
    for seed in evidence.study.seeds:
        told: dict[HistoryTold | None, str] = {}
        for run in _expected(evidence):
            if run.record.seed == seed and run.metrics.status == "complete":
                told.setdefault(_told(run), run.name)
        if len(told) > 1:
            problems.append(f"seed {seed}: {' and '.join(told.values())} were told other histories")
        elif told and (next(iter(told)) is None) != (evidence.study.history is None):
            problems.append(f"seed {seed}: history in the record and in the study do not agree")
    return problems


def _told(run: Run) -> HistoryTold | None:
    found = [e for e in run.record.events if isinstance(e, HistoryTold)]
    return replace(found[0], event_id=0) if found else None


def _expected(evidence: Evidence) -> list[Run]:
    """Present runs, seed by seed in the study's order of arms."""
    found = (evidence.runs.get((a.label, s)) for s in evidence.study.seeds for a in evidence.arms)
    return [run for run in found if run is not None]


def missing_runs(evidence: Gathered) -> list[str]:
    """Arms of the study that a seed lacks."""
    return [
        f"{arm.label} seed {seed} is missing"
        for seed in evidence.study.seeds
        for arm in evidence.arms
        if (arm.label, seed) not in evidence.runs
    ]


def _copied(evidence: Evidence) -> list[str]:
    """Live runs that agree in every measured time: one of them was not measured."""
    seen: dict[bytes, Run] = {}
    problems = []
    for run in _expected(evidence):
        columns = ("sent_at_s", "first_token_at_s", "done_at_s")
        times = np.stack([floats(run.record.requests, name) for name in columns])
        if run.metrics.source != "live" or np.isnan(times[-1]).all():
            continue
        other = seen.setdefault(times.tobytes(), run)
        if other is not run:
            problems.append(f"{run.name} is a copy of {other.name}: every measured time is equal")
    return problems


def _impossible(run: Run) -> int:
    """Answered requests whose latency is no number, infinite or below 0."""
    r = run.requests
    known = np.isfinite(r.e2e_s) & (r.e2e_s >= 0.0)
    for part in (r.ttft_s, r.tpot_s):  # may be unknown: one token has no time per further token
        known &= np.isnan(part) | (np.isfinite(part) & (part >= 0.0))
    return int((r.ok & ~known).sum())


def _invalid(run: Run, evidence: Evidence, *, limit_s: float) -> list[str]:
    """What is wrong with one run."""
    m = run.metrics
    if m.status != "complete":
        return [f"{run.name} is {m.status}: {m.why or 'no reason given'}"]
    problems = list(m.faults)
    arm = run.record.arm
    impossible = _impossible(run)
    if impossible:
        problems.append(f"{impossible} answered requests have no finite latency of at least 0 s")
    if run.study is None or run_hash(run.study, arm) != run_hash(evidence.study, arm):
        problems.append("was made with another config than study.json")
    if not m.requests_scheduled:
        problems.append("has no counted request")
    if m.lateness_p99_outside_s is None:
        problems.append("send lateness unknown (fewer than 20 requests sent outside windows)")
    elif m.lateness_p99_outside_s > limit_s:
        problems.append(
            f"client late by {m.lateness_p99_outside_s:.3g} s at p99 outside windows "
            f"(limit {limit_s:.3g} s)"
        )
    if m.merge_overran:
        problems.append(f"merge_overran: {m.merge_overran} merges longer than their window")
    elif m.merge_late_end_max_s is not None and m.merge_late_end_max_s > evidence.study.tick_s:
        problems.append(
            f"a window ended {m.merge_late_end_max_s:.2f} s late: the merge load was starved"
        )
    if m.merge_count and m.hashes_equal is not True:
        known = "differ" if m.hashes_equal is False else "are unknown"
        problems.append(f"parameter hashes of the islands {known} after a merge")
    ticks = evidence.study.horizon_s / evidence.study.tick_s
    if m.blind_ticks > MAX_BLIND_SHARE * ticks:
        problems.append(f"telemetry blind at {m.blind_ticks} of {ticks:.0f} ticks")
    if run.record.pressure.num_rows == 0:
        problems.append("telemetry has no rows")
    return [f"{run.name}: {p}" for p in problems]


def _mixed(evidence: Evidence) -> list[str]:
    runs = _expected(evidence)
    kinds = {(r.metrics.source, r.metrics.engine, r.metrics.engine_version) for r in runs}
    problems = []
    if len(kinds) > 1:
        told = ", ".join(sorted(" ".join(kind) for kind in kinds))
        problems.append(f"runs of different engines: {told}")
    first: dict[str, tuple[str, Run]] = {}
    for run in runs:  # older records say nothing of their inputs
        for name, digest in (run.record.provenance.get("inputs") or {}).items():
            known, other = first.setdefault(name, (digest, run))
            if digest != known:
                problems.append(f"{run.name}: another {name} than {other.name}")
    return problems


def _judged_otherwise(evidence: Evidence) -> list[str]:
    """Thresholds, family and regime are fixed before the runs, or they were fitted to them."""
    changed = evidence.judged_otherwise
    if not changed:
        return []
    return [
        f"gate thresholds, family or regime were changed after {len(changed)} runs were measured, "
        f"the first {changed[0]}: they are to be fixed beforehand"
    ]


def overloaded(evidence: Compared) -> list[str]:
    """Whether the load breaks the SLO without any merge, or nothing is known of that."""
    runs = [
        r for s in evidence.study.seeds for r in evidence.completed(evidence.labels("no_sync"), s)
    ]
    requests = sum(r.metrics.requests_scheduled for r in runs)
    limit = evidence.study.gate.max_no_sync_violation_fraction
    if not requests:
        return ["no complete no_sync run: the load without merges is unknown"]
    share = sum(r.metrics.violations for r in runs) / requests
    if share < limit:
        return []
    return [f"no_sync violates in {percent(share)} of requests (limit {percent(limit)})"]


def load_match(evidence: Evidence) -> Condition:
    """One request file a seed, all sent, fixed lengths; no_sync does not drift over the block."""
    gate = evidence.study.gate
    problems = [p for seed in evidence.study.seeds for p in _load_problems(evidence, seed)]
    problems += _repeated_traffic(evidence)
    drifts = [d for seed in evidence.study.seeds if (d := _drift(evidence, seed)) is not None]
    margin = gate.drift_margin_fraction
    threshold = (
        "same request file in every arm of a seed, another in every seed, all sent, exact output "
        "tokens; no_sync end "
        f"minus start within +-{100 * margin:.3g} percentage points (two one-sided tests at "
        f"{DRIFT_ALPHA:g}, n >= {gate.min_seeds_for_drift})"
    )
    shown = equivalence(drifts, margin=margin, alpha=DRIFT_ALPHA) if len(drifts) >= 2 else None
    mean = shown.mean if shown is not None else drifts[0] if drifts else None
    enough = len(drifts) >= gate.min_seeds_for_drift and len(drifts) == len(evidence.study.seeds)
    if problems:
        status, why = Status.NOT_MET, named(problems)
    elif shown is None or not enough:
        needed = max(gate.min_seeds_for_drift, len(evidence.study.seeds))
        status = Status.NOT_ASSESSABLE
        why = f"loads equal; drift known for {len(drifts)} seeds, {needed} needed"
    elif shown.equivalent:
        status, why = Status.MET, f"loads equal; no drift (p {shown.p_value:.3g})"
    else:
        status = Status.NOT_MET
        why = f"loads equal; no_sync start and end not shown equivalent (p {shown.p_value:.3g})"
    return condition(
        "load_match",
        status,
        value=mean,
        interval=None if shown is None else shown.interval,
        threshold=threshold,
        n=len(drifts),
        why=why,
    )


def _load_problems(evidence: Evidence, seed: int) -> list[str]:
    runs = [run for arm in evidence.arms if (run := evidence.complete(arm.label, seed)) is not None]
    problems = []
    hashes: dict[str, list[str]] = {}
    for run in runs:
        hashes.setdefault(run.metrics.request_hash, []).append(run.record.arm.label)
        planned = run.record.config.get("request_hash")
        if planned != run.metrics.request_hash:
            problems.append(f"{run.name}: requests.parquet does not hold the request file")
        unsent = int((~run.requests.sent).sum())
        if unsent:
            problems.append(f"{run.name}: {unsent} requests were not sent")
        wrong = _wrong_lengths(run)
        if wrong:
            problems.append(f"{run.name}: {wrong} answers have another length than asked")
    if len(hashes) > 1:
        groups = " against ".join(
            f"{', '.join(labels)} ({_requests_of(evidence, seed, labels[0])} requests)"
            for labels in hashes.values()
        )
        problems.append(f"seed {seed}: request files differ: {groups}")
    return problems


def _requests_of(evidence: Evidence, seed: int, label: str) -> int:
    return evidence.runs[label, seed].metrics.requests_scheduled_all


def _repeated_traffic(evidence: Evidence) -> list[str]:
    """Seeds whose requests arrive at the very same times: they are no replicates."""
    seeds: dict[bytes, list[int]] = {}
    for seed in evidence.study.seeds:
        runs = (evidence.complete(arm.label, seed) for arm in evidence.arms)
        # A set: an arm whose file differs is told of above, and hides no repetition here.
        arrivals = {
            np.sort(floats(run.record.requests, "scheduled_at_s")).tobytes()
            for run in runs
            if run is not None and run.record.requests.num_rows
        }
        for times in arrivals:
            seeds.setdefault(times, []).append(seed)
    return [
        f"seeds {', '.join(map(str, same))} have the same arrivals: they are not independent"
        for same in seeds.values()
        if len(same) > 1
    ]


def _wrong_lengths(run: Run) -> int:
    table = run.record.requests
    pairs = zip(
        table.column("output_tokens").to_pylist(),
        table.column("completion_tokens").to_pylist(),
        run.requests.ok.tolist(),
        strict=True,
    )
    return sum(ok and asked != got for asked, got, ok in pairs)


def _drift(evidence: Evidence, seed: int) -> float | None:
    """Violation rate of no_sync at the end of the block minus at its start."""
    rates: dict[str | None, float | None] = {}
    for run in evidence.completed(evidence.labels("no_sync"), seed):
        rates[run.record.arm.position] = run.metrics.violation_rate
    start, end = rates.get("start"), rates.get("end")
    return None if start is None or end is None else end - start
