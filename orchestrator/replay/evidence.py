"""Rows of replay.parquet side by side, as the gate looks at runs; an impossible row is refused.

A row is judged by its own figures: what contradicts itself, or the study beside it, was edited.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from orchestrator.arms import expand_arms, random_schedule, study_corridor
from orchestrator.config import StudyConfig
from orchestrator.records import ArmSpec
from orchestrator.replay.figures import ReplayFigures

_CHECKED_SCHEDULES = 64  # of the random ones, drawn again; spread over the table
_MERGING = ("policy", "aa", "matched_random", "oracle")
_TOLERANCE = 1e-9
_NAMES = tuple(field.name for field in fields(ReplayFigures))


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """One run, by its row alone."""

    metrics: ReplayFigures

    @property
    def name(self) -> str:
        return f"{self.metrics.arm} seed {self.metrics.replicate}"


@dataclass(frozen=True)
class ReplayEvidence:
    """All replayed runs of the study's seeds and arms."""

    study: StudyConfig
    arms: tuple[ArmSpec, ...]
    runs: dict[tuple[str, int], ReplayRun]

    def complete(self, label: str, seed: int) -> ReplayRun | None:
        """The run if it is complete."""
        run = self.runs.get((label, seed))
        return run if run is not None and run.metrics.status == "complete" else None

    def labels(self, kind: str, *, of: str | None = None) -> tuple[str, ...]:
        """Arm labels of a kind (and of a policy), in the study's order."""
        return tuple(a.label for a in self.arms if a.kind == kind and (of is None or a.of == of))

    def completed(self, labels: Iterable[str], seed: int) -> tuple[ReplayRun, ...]:
        """The complete ones among these arms of a seed."""
        found = (self.complete(label, seed) for label in labels)
        return tuple(run for run in found if run is not None)


def gather_rows(study: StudyConfig, rows: Iterable[ReplayFigures]) -> ReplayEvidence:
    """ValueError for a row twice, one that the study does not ask for, or one that cannot be."""
    arms = expand_arms(study)
    known, seeds = {a.label: a for a in arms}, set(study.seeds)
    runs: dict[tuple[str, int], ReplayRun] = {}
    window_s = study_corridor(study).width_ticks * study.tick_s
    for row in rows:
        run = ReplayRun(row)
        if row.arm not in known or row.replicate not in seeds:
            raise ValueError(f"{run.name}: is none of the study's runs; was the table edited?")
        if (row.arm, row.replicate) in runs:
            raise ValueError(f"{run.name}: stands twice; replay again")
        problem = _impossible(row, known[row.arm], study=study, window_s=window_s)
        if problem is not None:
            raise ValueError(f"{run.name}: {problem}; was the table edited? replay again")
        runs[row.arm, row.replicate] = run
    _check_pooled(runs.values(), arms)
    _check_drawn(study, [run for run in runs.values() if run.metrics.kind in _RANDOM], known)
    return ReplayEvidence(study=study, arms=arms, runs=runs)


_RANDOM = ("matched_random", "placebo")


def _impossible(
    row: ReplayFigures, arm: ArmSpec, *, study: StudyConfig, window_s: float
) -> str | None:
    """What no replay can have written."""
    for name in _NAMES:
        value = getattr(row, name)
        if type(value) is float and not math.isfinite(value):
            return f"{name}={value} is no finite number"
    stated = (row.kind, row.policy, row.of, row.draw, row.position)
    if stated != (arm.kind, arm.policy, arm.of, arm.draw, arm.position):
        return f"kind, policy, of, draw, position are {stated}, not those of the arm"
    n, late = row.requests_scheduled, row.violations
    early = row.violations_not_yet_arrived
    if not 0 <= row.violations_in_windows <= late <= n or not 0 <= (early or 0) <= late:
        return f"violations={late} of requests_scheduled={n} do not add up"
    if not _equal(row.violation_rate, late / n if n else None):
        return f"violation_rate={row.violation_rate} is not {late} of {n}"
    goodput = (n - late) / (study.horizon_s - study.warmup_s) if n else None
    if not _equal(row.goodput_rps, goodput):
        return f"goodput_rps={row.goodput_rps} is not {goodput}"
    merges = len(row.starts) if arm.kind in _MERGING else 0
    if (row.marked_windows, row.merge_count) != (len(row.starts), merges):
        return f"merge_count={row.merge_count} with {len(row.starts)} starts"
    if not _equal(row.merge_planned_s, len(row.starts) * window_s, tolerance=1e-6):
        return f"merge_planned_s={row.merge_planned_s} is not {len(row.starts)} windows"
    if (early is None) != (not row.starts):
        return f"violations_not_yet_arrived={early} with {len(row.starts)} starts"
    return None


def _check_pooled(runs: Iterable[ReplayRun], arms: Sequence[ArmSpec]) -> None:
    """All draws of a control say the same of their pool, which holds just their requests."""
    groups: dict[tuple[int, str, str | None], list[ReplayFigures]] = {}
    for run in runs:
        row = run.metrics
        pooled = (row.pooled_requests, row.pooled_p95_s, row.pooled_p95_no_sync_s)
        if row.kind in _RANDOM:
            groups.setdefault((row.replicate, row.kind, row.of), []).append(row)
        elif pooled != (None, None, None):
            raise ValueError(f"{run.name}: pooled_requests={pooled[0]} of no control; replay again")
    sizes: Counter[tuple[str, str | None]] = Counter((arm.kind, arm.of) for arm in arms)
    for (seed, kind, of), rows in groups.items():
        said = {(r.pooled_requests, r.pooled_p95_s, r.pooled_p95_no_sync_s) for r in rows}
        inside = sum(r.requests_in_windows for r in rows)
        pooled_requests = rows[0].pooled_requests
        whole = len(rows) == sizes[kind, of] and pooled_requests is not None
        if len(said) > 1 or (whole and pooled_requests != inside):
            raise ValueError(
                f"{rows[0].arm} seed {seed}: pooled_requests={pooled_requests} with {inside} "
                "requests in the windows of its draws; was the table edited? replay again"
            )


def _equal(a: float | None, b: float | None, *, tolerance: float = _TOLERANCE) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= tolerance


def _check_drawn(study: StudyConfig, runs: Sequence[ReplayRun], arms: dict[str, ArmSpec]) -> None:
    """Controls stand where their own stream puts them: some of them are drawn again."""
    if study.free_cadence:
        return
    for run in runs[:: max(1, len(runs) // _CHECKED_SCHEDULES)]:
        row = run.metrics
        if row.status != "complete":
            continue
        drawn = random_schedule(study, arms[row.arm], row.replicate)
        if row.starts != drawn:
            raise ValueError(
                f"{run.name}: starts={list(row.starts)} are not the schedule that its seed draws, "
                f"{list(drawn)}; was the table edited? replay again"
            )
