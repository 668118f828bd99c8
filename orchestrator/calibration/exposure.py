"""Exposure: equal merge windows and seconds in a policy and its control, inside the corridor.

Live runs tell it by their events, replayed ones by their rows; the condition is one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.events import MergeStarted
from orchestrator.calibration.evidence import Evidence, Run
from orchestrator.calibration.phrase import condition, named
from orchestrator.calibration.recorded import run_corridor
from orchestrator.calibration.verdict import Condition, Status
from orchestrator.metrics import marked_windows, real_merges
from policies.corridor import Corridor

_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What one run merged. ``windows``: those that came to their end inside the horizon."""

    name: str  # label and seed
    label: str
    starts: tuple[int, ...]  # ticks
    windows: int
    seconds: float
    held_to: tuple[Corridor, int] | str  # corridor and budget, or why they are unknown


ExposureOf = Callable[[str, int], Exposure | None]  # (label, seed); None without a complete run


def exposure_match(
    policy: str, *, controls: Sequence[str], seeds: Sequence[int], of: ExposureOf
) -> Condition:
    """Equal realised windows and merge seconds; every schedule a feasible one of the budget."""
    problems: list[str] = []
    gaps, worst = [], 0
    for seed in seeds:
        mine = of(policy, seed)
        others = [found for label in controls if (found := of(label, seed)) is not None]
        if mine is None or not controls or len(others) < len(controls):
            gaps.append(seed)
            continue
        problems += [p for run in (mine, *others) for p in _schedule_problems(run)]
        worst = max(worst, *(abs(mine.windows - other.windows) for other in others))
        problems += [p for other in others for p in _unequal(mine, other, seed=seed)]
    n = len(seeds) - len(gaps)
    if problems:
        status, why = Status.NOT_MET, named(problems)
    elif gaps or not n:
        status, why = Status.NOT_ASSESSABLE, _lacking(policy, gaps)
    else:
        status, why = Status.MET, "windows, seconds and corridor agree in every seed"
    return condition(
        "exposure_match",
        status,
        value=float(worst) if n else None,
        threshold="0 windows apart, equal merge seconds, every schedule in the corridor",
        n=n,
        why=why,
    )


def _unequal(mine: Exposure, other: Exposure, *, seed: int) -> list[str]:
    if mine.windows != other.windows:
        return [
            f"seed {seed}: {mine.windows} windows in {mine.label}, {other.windows} in {other.label}"
        ]
    if abs(mine.seconds - other.seconds) > _ROUNDING_S:
        return [
            f"seed {seed}: {mine.seconds:.3f} merge seconds in {mine.label}, "
            f"{other.seconds:.3f} in {other.label}"
        ]
    return []


def _lacking(policy: str, seeds: Sequence[int]) -> str:
    return f"{policy} or its matched_random is missing in seed {', '.join(map(str, seeds))}"


def _schedule_problems(run: Exposure) -> list[str]:
    """Why the schedule is none of the corridor's feasible ones."""
    if isinstance(run.held_to, str):
        return [run.held_to]
    corridor, budget = run.held_to
    problems = []
    if len(run.starts) != budget:
        problems.append(f"{run.name}: {len(run.starts)} merges, budget {budget}")
    elif not corridor.contains(run.starts):
        problems.append(f"{run.name}: schedule {list(run.starts)} is outside the corridor")
    if run.windows != len(run.starts):
        problems.append(f"{run.name}: {run.windows} of {len(run.starts)} merges came to their end")
    return problems


def live_exposure(evidence: Evidence) -> ExposureOf:
    """Exposure by the events of live runs."""

    def of(label: str, seed: int) -> Exposure | None:
        run = evidence.complete(label, seed)
        return None if run is None else _of_run(run)

    return of


def _of_run(run: Run) -> Exposure:
    done = _realised(run)
    try:
        held_to: tuple[Corridor, int] | str = run_corridor(run)
    except ValueError as error:
        held_to = str(error)
    return Exposure(
        name=run.name,
        label=run.record.arm.label,
        starts=tuple(w.tick for w in marked_windows(run.record)),
        windows=len(done),
        seconds=sum(w.planned_end_s - w.planned_start_s for w in done),
        held_to=held_to,
    )


def _realised(run: Run) -> list[MergeStarted]:
    """Merges that really took place, to their end, inside the measured horizon."""
    horizon_s = float(run.record.config["study"]["horizon_s"])
    return [
        m.started
        for m in real_merges(run.record)
        if m.finished is not None and m.started.planned_end_s <= horizon_s + _ROUNDING_S
    ]
