"""The gate's conditions that a replay answers by its rows: validity, load, effect, overlap."""

import math
from collections.abc import Sequence

from orchestrator.arms import study_corridor
from orchestrator.calibration.effects import Ratio, SeedEffects
from orchestrator.calibration.exact_null import Recorded
from orchestrator.calibration.exposure import Exposure, ExposureOf
from orchestrator.calibration.overlap import Overlap, overlap_of
from orchestrator.calibration.phrase import condition, named, percent
from orchestrator.calibration.validity import missing_runs, overloaded
from orchestrator.calibration.verdict import Condition, Status
from orchestrator.metrics import LEAST_FOR_PERCENTILE
from orchestrator.replay.evidence import ReplayEvidence
from orchestrator.replay.figures import ReplayFigures

DRAWS_WANTED = 99


def replay_validity(evidence: ReplayEvidence, *, told: Sequence[str] = ()) -> Condition:
    """All arms of all seeds there and complete, with the budget's merges; the load can be borne.

    ``told``: what is wrong beyond the rows, as a threshold that was changed after the replay.
    """
    gate = evidence.study.gate
    problems = [*told, *missing_runs(evidence)]
    problems += [p for run in evidence.runs.values() for p in _problems(run.metrics, evidence)]
    problems += overloaded(evidence)
    n = len(evidence.runs)
    return condition(
        "run_validity",
        Status.NOT_MET if problems else Status.MET,
        value=float(len(problems)),
        threshold=(
            "0 problems: every arm of every seed replayed; as many windows as the budget; no_sync "
            f"violates under {percent(gate.max_no_sync_violation_fraction)}"
        ),
        n=n,
        why=named(problems) or f"all {n} replayed runs are whole",
    )


def _problems(row: ReplayFigures, evidence: ReplayEvidence) -> list[str]:
    name = f"{row.arm} seed {row.replicate}"
    if row.status != "complete":
        return [f"{name} is {row.status}"]
    problems = [] if row.requests_scheduled else [f"{name} has no counted request"]
    budget = evidence.study.corridor.budget_merges
    wanted = 0 if row.kind == "no_sync" else budget
    if wanted is not None and row.marked_windows != wanted:
        problems.append(f"{name} has {row.marked_windows} windows, budget {wanted}")
    return problems


def replay_load(evidence: ReplayEvidence) -> Condition:
    """One request file a seed, another in every seed. No drift: no_sync is replayed once a seed."""
    problems: list[str] = []
    apart: list[float] = []
    for seed in evidence.study.seeds:
        rows = [r.metrics for a in evidence.arms if (r := evidence.complete(a.label, seed))]
        if len({row.request_hash for row in rows}) > 1:
            problems.append(f"seed {seed}: request files differ between arms")
        rates = [r.violation_rate for r in rows if r.kind == "no_sync"]
        known = [rate for rate in rates if rate is not None]
        if known:
            apart.append(max(known) - min(known))
            if apart[-1]:
                problems.append(f"seed {seed}: no_sync at start and end differ, as no replay does")
    problems += _repeated(evidence)
    n = len(apart)
    if problems:
        status, why = Status.NOT_MET, named(problems)
    elif n < len(evidence.study.seeds):
        status, why = Status.NOT_ASSESSABLE, f"no_sync known in {n} seeds"
    else:
        status, why = Status.MET, "loads equal; drift is 0 by construction: one machine, no time"
    return condition(
        "load_match",
        status,
        value=max(apart, default=None),
        threshold=(
            "same request file in every arm of a seed, another in every seed; drift of no_sync is "
            "0 by construction in replay"
        ),
        n=n,
        why=why,
    )


def _repeated(evidence: ReplayEvidence) -> list[str]:
    """Seeds with the same requests, or with the same exact law of overlap: no replicates."""
    seen: dict[object, list[int]] = {}
    for seed in evidence.study.seeds:
        rows = [r.metrics for a in evidence.arms if (r := evidence.complete(a.label, seed))]
        keys: set[object] = {row.request_hash for row in rows}
        keys |= {
            (r.overlap_mean, r.overlap_variance, r.new_overlap_mean, r.new_overlap_variance)
            for r in rows
            if r.overlap_variance
        }
        for key in keys:
            seen.setdefault(key, []).append(seed)
    groups = dict.fromkeys(tuple(seeds) for seeds in seen.values() if len(seeds) > 1)
    return [
        f"seeds {', '.join(map(str, same[:6]))}{', ...' if len(same) > 6 else ''} have the same "
        "requests: they are not independent"
        for same in groups
    ]


def replay_effects(evidence: ReplayEvidence, of: str) -> tuple[SeedEffects, ...]:
    """Effect of merges drawn at random under the budget of ``of``, and of its placebo's marks."""
    draws = evidence.labels("matched_random", of=of)
    placebos = evidence.labels("placebo", of=of) or evidence.labels("placebo")[:1]
    part = Ratio(
        value=None,
        requests=0,
        window_p95_s=None,
        no_sync_p95_s=None,
        why="a replayed window has no parts",
    )
    return tuple(
        SeedEffects(
            seed=seed,
            whole=_ratio(evidence, seed, draws, "matched_random"),
            real_part=part,
            placebo=_ratio(evidence, seed, placebos, "placebo"),
        )
        for seed in evidence.study.seeds
    )


def _ratio(evidence: ReplayEvidence, seed: int, labels: Sequence[str], what: str) -> Ratio:
    """p95 inside the windows of all draws over p95 of the same ids in no_sync, as live pools them.

    The player pooled the latencies; a row holds what they came to.
    """
    rows = [run.metrics for run in evidence.completed(labels, seed)]
    if not labels or len(rows) < len(labels):
        return _unknown(f"no complete {what} run")
    if not evidence.completed(evidence.labels("no_sync"), seed):
        return _unknown("no complete no_sync run")
    n, top, bottom = rows[0].pooled_requests, rows[0].pooled_p95_s, rows[0].pooled_p95_no_sync_s
    if n is None:
        return _unknown("its requests are not those of no_sync")
    if top is None or bottom is None or min(top, bottom) <= 0.0:
        few = f"{n} requests scheduled there, fewer than {LEAST_FOR_PERCENTILE}"
        return Ratio(
            value=None,
            requests=n,
            window_p95_s=top,
            no_sync_p95_s=bottom,
            why=few if n < LEAST_FOR_PERCENTILE else "a p95 of 0 s or less",
        )
    return Ratio(value=top / bottom, requests=n, window_p95_s=top, no_sync_p95_s=bottom, why=None)


def _unknown(why: str) -> Ratio:
    return Ratio(value=None, requests=0, window_p95_s=None, no_sync_p95_s=None, why=why)


def replay_exposure(evidence: ReplayEvidence) -> ExposureOf:
    """Exposure by the rows: a replayed merge always comes to its end."""
    study = evidence.study
    budget = study.corridor.budget_merges
    held_to = "free cadence has no budget" if budget is None else (study_corridor(study), budget)

    def of(label: str, seed: int) -> Exposure | None:
        run = evidence.complete(label, seed)
        if run is None:
            return None
        row = run.metrics
        return Exposure(
            name=run.name,
            label=label,
            starts=row.starts,
            windows=row.merge_count,
            seconds=row.merge_planned_s if row.merge_count else 0.0,
            held_to=held_to,
        )

    return of


def replay_overlap(evidence: ReplayEvidence, policy: str) -> Recorded:
    """The policy's overlap on each seed's traffic, with its exact law under random placement.

    Only where every seed of the study is known: seeds that are left out could be chosen.
    """
    rows = []
    for seed in evidence.study.seeds:
        run = evidence.complete(policy, seed)
        if run is None:
            return Recorded(both=None, why=f"seed {seed}: no complete {policy} run")
        rows.append(run.metrics)
    both = [_overlap(evidence, rows, new=new, name=policy) for new in (False, True)]
    if both[0] is None or both[1] is None:
        return Recorded(both=None, why=f"overlap of {policy} is not known in every seed")
    return Recorded(both=(both[0], both[1]), why="")


def _overlap(
    evidence: ReplayEvidence, rows: Sequence[ReplayFigures], *, new: bool, name: str
) -> Overlap | None:
    head = "new_overlap" if new else "overlap"
    columns = [[getattr(row, f"{head}{tail}") for row in rows] for tail in ("", "_mean")]
    variances = [getattr(row, f"{head}_variance") for row in rows]
    if None in columns[0] or None in columns[1] or None in variances:
        return None
    return overlap_of(
        tuple(columns[0]),
        tuple(columns[1]),
        tuple(math.sqrt(max(v, 0.0)) for v in variances),
        clusters=tuple(f"seed {row.replicate}" for row in rows),
        blocks=len(rows),
        new=new,
        gate=evidence.study.gate,
        name=name,
    )
