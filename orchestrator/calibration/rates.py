"""Rate effects of free cadence: what merging as often as a policy likes costs; never placement.

How often to merge is the policy's own choice here, so a lower rate may only be fewer merges.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.calibration.asked import Figures
from orchestrator.calibration.placement import CONFIDENCE
from orchestrator.calibration.pooled import Row
from orchestrator.calibration.ruling import named_by
from orchestrator.calibration.statistics import Interval, mean_difference
from orchestrator.calibration.verdict import Condition, Status
from orchestrator.config import StudyConfig
from orchestrator.records import ArmSpec
from policies.streams import stream

FREE_CADENCE = (
    "free cadence: rate effects only, no placement claim; policies merge as often as they like, so "
    "a lower violation rate may be fewer merges"
)


class RateFigures(Figures, Protocol):
    """Of a run, live or replayed."""

    @property
    def merge_count(self) -> int: ...


class RateRun(Protocol):
    """One run, by its figures."""

    @property
    def metrics(self) -> RateFigures: ...


class Rated(Protocol):
    """Runs side by side; met by the evidence of a live study and by that of a replay."""

    @property
    def study(self) -> StudyConfig: ...
    @property
    def arms(self) -> tuple[ArmSpec, ...]: ...
    def labels(self, kind: str, *, of: str | None = None) -> tuple[str, ...]: ...
    def complete(self, label: str, seed: int) -> RateRun | None: ...
    def completed(self, labels: Iterable[str], seed: int) -> Sequence[RateRun]: ...


def rate_effects(evidence: Rated) -> tuple[Row, ...]:
    """One row a policy arm of a study without a budget; none where the budget is fixed.

    Rates and merges over the arm's complete runs. ``difference``: policy minus no_sync, paired by
    seed, over the seeds that have both, with a 90 % interval (each end a one-sided 95 % bound).
    """
    if not evidence.study.free_cadence:
        return ()
    return tuple(_row(evidence, a) for a in evidence.arms if a.kind in ("policy", "aa"))


def rate_caveats(evidence: Rated, shared: Sequence[Condition]) -> tuple[str, ...]:
    """What rate effects are not, and which conditions on the runs themselves do not hold."""
    if not evidence.study.free_cadence:
        return ()
    return (FREE_CADENCE, *(named_by(c) for c in shared if c.status is not Status.MET))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paired:
    """One run with its seed's no_sync, both known."""

    run: RateRun
    rate: float
    base: float  # mean violation rate of the seed's no_sync runs


def _row(evidence: Rated, arm: ArmSpec) -> Row:
    found = [(s, run) for s in evidence.study.seeds if (run := evidence.complete(arm.label, s))]
    runs = [run for _, run in found]
    requests = sum(run.metrics.requests_scheduled for run in runs)
    violations = sum(run.metrics.violations for run in runs)
    merges = sum(run.metrics.merge_count for run in runs)
    paired = [p for s, run in found if (p := _paired(evidence, run, seed=s)) is not None]
    difference = _difference(evidence, arm, paired)
    bounds = None if difference is None else difference.finite
    enough = len(paired) >= evidence.study.gate.min_seeds_for_interval
    return {
        "arm": arm.label,
        "runs": len(runs),
        "merges": merges if runs else None,
        "merges_per_run": merges / len(runs) if runs else None,
        "violation_rate": violations / requests if requests else None,
        "no_sync_rate": math.fsum(p.base for p in paired) / len(paired) if paired else None,
        "seeds_with_both": len(paired),
        "difference": None if difference is None else difference.estimate,
        "difference_low": bounds[0] if bounds is not None and enough else None,
        "difference_high": bounds[1] if bounds is not None and enough else None,
        "violations_per_merge": violations / merges if merges else None,
        "excess_per_merge": _excess(paired),
    }


def _paired(evidence: Rated, run: RateRun, *, seed: int) -> _Paired | None:
    """None unless the run and all no_sync runs of its seed have a rate."""
    labels = evidence.labels("no_sync")
    found = [r.metrics.violation_rate for r in evidence.completed(labels, seed)]
    bases = [rate for rate in found if rate is not None]
    rate = run.metrics.violation_rate
    if rate is None or not labels or len(bases) < len(labels):
        return None
    return _Paired(run=run, rate=rate, base=math.fsum(bases) / len(bases))


def _difference(evidence: Rated, arm: ArmSpec, paired: Sequence[_Paired]) -> Interval | None:
    gate = evidence.study.gate
    if not paired:
        return None
    return mean_difference(
        [p.rate - p.base for p in paired],
        confidence=CONFIDENCE,
        draws=gate.resamples,
        rng=stream(gate.seed, f"rate effect {arm.label}"),
    )


def _excess(paired: Sequence[_Paired]) -> float | None:
    """Violations above those of no_sync at the same requests, for each merge."""
    merges = sum(p.run.metrics.merge_count for p in paired)
    if not merges:
        return None
    above = [(p.rate - p.base) * p.run.metrics.requests_scheduled for p in paired]
    return math.fsum(above) / merges
