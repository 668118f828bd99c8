"""The gate on figures that others published: summaries of runs, without events and requests.

The same conditions, names and rulings as for a live study. What no summary can tell is not
assessable, whatever its figures are, so a published table alone never earns a claim.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.calibration.conditions import (
    negative_controls,
    placement_condition,
    replay_absent,
)
from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.exact_null import asked
from orchestrator.calibration.gate import gate_hash
from orchestrator.calibration.phrase import condition, named
from orchestrator.calibration.placement import CONFIDENCE, Placement, measure
from orchestrator.calibration.pooled import Emulation
from orchestrator.calibration.ruling import named_by, qualified, rule
from orchestrator.calibration.statistics import holm, ratio_interval
from orchestrator.calibration.verdict import Condition, Judgement, Status, Verdict

SOURCE = "published"
_EQUAL = 1e-9  # relative: figures that differ by rounding only are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One run as its summary tells it; None is what was not published."""

    seed: int
    violation_rate: float  # share of requests above the limit, 0..1
    requests: int | None
    violations: int | None
    requests_in_windows: int | None
    windows: float | None  # realised in the run; a mean where the last repeat is cut
    effect_ratio: float | None  # p95 inside windows over p95 outside, of the same run


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedArm:
    """One policy or control: means over its ``n`` runs as published, and the runs given singly."""

    label: str
    kind: str  # policy | matched_random
    n: int
    violation_rate: float
    requests_per_s: float  # served
    requests: float | None  # a run
    violations: float | None
    requests_in_windows: float | None
    windows: float | None
    window_s: float
    effect_ratio: float | None
    runs: tuple[PublishedRun, ...]

    @property
    def merge_s(self) -> float | None:
        return None if self.windows is None else self.windows * self.window_s

    def per_window(self, total: float | None) -> float | None:
        return None if total is None or not self.windows else total / self.windows


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStudy:
    """Comparisons that belong together: their pairs are the family that Holm corrects for."""

    study: str
    regime: str
    gate: GateConfig
    seeds: tuple[int, ...]
    arms: tuple[PublishedArm, ...]
    pairs: tuple[tuple[str, str], ...]  # policy, control
    engine: str
    engine_version: str
    fill: str | None  # kind of the synthetic load that stood for the merges; None: real merges
    caveats: tuple[str, ...] = ()

    @property
    def judge(self) -> tuple[str, ...]:
        return tuple(pair_name(*pair) for pair in self.pairs)

    def arm(self, label: str) -> PublishedArm:
        for arm in self.arms:
            if arm.label == label:
                return arm
        known = ", ".join(a.label for a in self.arms)
        raise ValueError(f"{self.study}: no arm {label!r}; the tables hold {known}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfStudy:
    study: PublishedStudy


def pair_name(policy: str, control: str) -> str:
    return f"{policy} against {control}"


def judge_published(study: PublishedStudy) -> Judgement:
    """Every pair of the family, judged by the gate's own tests, wording and ruling."""
    pairs = [(study.arm(policy), study.arm(control)) for policy, control in study.pairs]
    placements = [compare_arms(study, *pair) for pair in pairs]
    flips = holm([None if p.lacking or p.flip is None else p.flip.p_value for p in placements])
    labels = holm([None if p.lacking or p.labels is None else p.labels.p_value for p in placements])
    return Judgement(
        study=study.study,
        regime=study.regime,
        source=SOURCE,
        engine=study.engine,
        engine_version=study.engine_version,
        gate_hash=gate_hash(study),
        seeds=study.seeds,
        verdicts=tuple(
            _verdict(study, *pair, placement, p_holm=a, labels_holm=b)
            for pair, placement, a, b in zip(pairs, placements, flips, labels, strict=True)
        ),
        effects=(),
        arms=tuple(_arm_row(arm) for arm in study.arms),
        caveats=study.caveats,
    )


def compare_arms(study: PublishedStudy, policy: PublishedArm, control: PublishedArm) -> Placement:
    """Policy minus control over the seeds that both tables give; the others are lacking."""
    return _paired(
        study,
        {r.seed: r.violation_rate for r in policy.runs},
        {r.seed: r.violation_rate for r in control.runs},
        name=f"published {study.study} {pair_name(policy.label, control.label)}",
    )


def _paired(
    study: PublishedStudy, mine: dict[int, float], other: dict[int, float], *, name: str
) -> Placement:
    seeds = [s for s in study.seeds if s in mine and s in other]
    return measure(
        [mine[s] for s in seeds],
        [(other[s],) for s in seeds],
        gate=study.gate,
        seeds=seeds,
        lacking=[f"seed {s}" for s in study.seeds if s not in seeds],
        name=name,
    )


def _verdict(
    study: PublishedStudy,
    policy: PublishedArm,
    control: PublishedArm,
    placement: Placement,
    *,
    p_holm: float,
    labels_holm: float,
) -> Verdict:
    early = measure([], [], gate=study.gate, seeds=[], lacking=["every seed: no request rows"])
    conditions = (
        _run_validity(policy, control),
        _load_match(policy, control),
        _effect_transfer(study, control),
        _exposure_match(policy, control),
        _matched_random(study, control, placement, p_holm=p_holm, labels_holm=labels_holm),
        placement_condition(
            "not_yet_arrived", early, _OfStudy(study=study), p_holm=None, labels_holm=None
        ),
        _exact_null(study),
        negative_controls(_OfStudy(study=study), same=None, placebo=None),
        replay_absent(),
    )
    emulated = None if study.fill is None else Emulation(kind=study.fill, share=1.0)
    verdict = rule(
        study,
        pair_name(policy.label, control.label),
        conditions=conditions,
        placement=placement,
        early=early,
        overlap=None,
        p_holm=None if placement.lacking else p_holm,
        engine=(SOURCE, study.engine),
        emulated=emulated,
    )
    # No summary can meet run_validity; so what its own figures contradict names the verdict.
    refuted = first_refuted(conditions)
    if refuted is None:
        return verdict
    reason = qualified(named_by(refuted), engine=study.engine, emulated=emulated)
    return replace(verdict, reason=reason)


def first_refuted(conditions: Sequence[Condition]) -> Condition | None:
    """The first condition that the figures themselves contradict."""
    return next((c for c in conditions if c.status is Status.NOT_MET), None)


def _run_validity(policy: PublishedArm, control: PublishedArm) -> Condition:
    return condition(
        "run_validity",
        Status.NOT_ASSESSABLE,
        threshold="every arm complete, client on time, telemetry whole, merges equal and in time",
        n=policy.n + control.n,
        why="send lateness, telemetry, faults and parameter hashes are not published",
    )


def _load_match(policy: PublishedArm, control: PublishedArm) -> Condition:
    """Closed loop or not: arms that served different numbers of requests had different loads."""
    ours, theirs, what = policy.requests, control.requests, "requests a run"
    if ours is None or theirs is None:
        ours, theirs, what = policy.requests_per_s, control.requests_per_s, "requests a second"
    other = {r.seed: r.requests for r in control.runs}
    pairs = [(r.seed, r.requests, other.get(r.seed)) for r in policy.runs]
    known = [(s, a, b) for s, a, b in pairs if a is not None and b is not None]
    problems = []
    if not _same(ours, theirs):
        problems.append(
            f"{_figure(ours)} {what} in {policy.label}, {_figure(theirs)} in "
            f"{control.label} (means)"
        )
    problems += [f"seed {s}: {a} against {b} requests" for s, a, b in known if a != b]
    return condition(
        "load_match",
        Status.NOT_MET if problems else Status.NOT_ASSESSABLE,
        value=ours / theirs - 1.0 if theirs else None,
        threshold="the same request file in every arm of a seed, all sent; no_sync without drift",
        n=len(known),
        why=named(problems) or "loads agree in number; request files and no_sync are unpublished",
    )


def _exposure_match(policy: PublishedArm, control: PublishedArm) -> Condition:
    ours, theirs = policy.windows, control.windows
    apart = None if ours is None or theirs is None else abs(ours - theirs)
    if ours is None or theirs is None:
        status, why = Status.NOT_ASSESSABLE, "realised windows are not published"
    elif not _same(ours, theirs) or not _same(policy.window_s, control.window_s):
        status = Status.NOT_MET
        why = (
            f"{ours:.1f} windows a run in {policy.label}, {theirs:.1f} in {control.label} (means): "
            f"{policy.merge_s:.0f} merge seconds against {control.merge_s:.0f}"
        )
    else:
        status = Status.NOT_ASSESSABLE
        why = (
            f"{ours:.1f} windows a run in both; starts of merges, and so the corridor, unpublished"
        )
    return condition(
        "exposure_match",
        status,
        value=apart,
        threshold="0 windows apart, equal merge seconds, every schedule in the corridor",
        n=min(policy.n, control.n),
        why=why,
    )


def _effect_transfer(study: PublishedStudy, control: PublishedArm) -> Condition:
    """A ratio inside one run is no effect: other requests, and placement is in it."""
    ratios = [r.effect_ratio for r in control.runs if r.effect_ratio is not None]
    shown = None
    if ratios:
        least_n = study.gate.min_seeds_for_interval
        shown = ratio_interval(ratios, confidence=CONFIDENCE, least_n=least_n)
    return condition(
        "effect_transfer",
        Status.NOT_ASSESSABLE,
        value=control.effect_ratio if shown is None else shown.estimate,
        interval=None if shown is None else shown.finite,
        threshold=(
            "p95 of the requests in windows over p95 of the same requests without merges: lower "
            f"95 % bound above {study.gate.effect_ratio_floor:g}; a placebo beside it"
        ),
        n=len(ratios) or control.n,
        why=(
            f"shown is p95 inside windows over p95 outside, in the runs of {control.label}: other "
            "requests; the same ones without merges, and a placebo, are not published"
        ),
    )


def _matched_random(
    study: PublishedStudy,
    control: PublishedArm,
    placement: Placement,
    *,
    p_holm: float,
    labels_holm: float,
) -> Condition:
    """The gate's own condition; against anything but matched random it shows no placement."""
    tested = placement_condition(
        "matched_random", placement, _OfStudy(study=study), p_holm=p_holm, labels_holm=labels_holm
    )
    if control.kind == "matched_random":
        return tested
    why = f"{control.label} is no matched random; {tested.why}"
    return replace(tested, status=Status.NOT_ASSESSABLE, why=why)


def _exact_null(study: PublishedStudy) -> Condition:
    return condition(
        "exact_null",
        Status.NOT_ASSESSABLE,
        threshold=asked(study.gate, family=len(study.judge)),
        n=0,
        why="starts of merges and arrivals of requests are not published",
    )


def _arm_row(arm: PublishedArm) -> dict[str, float | int | str | None]:
    return {
        "arm": arm.label,
        "kind": arm.kind,
        "runs": arm.n,
        "violation_rate": arm.violation_rate,
        "requests": arm.requests,
        "requests_per_s": arm.requests_per_s,
        "windows": arm.windows,
        "merge_s": arm.merge_s,
        "violations_per_window": arm.per_window(arm.violations),
        "requests_in_windows_per_window": arm.per_window(arm.requests_in_windows),
        "violation_rate_per_window": arm.per_window(arm.violation_rate),
        "effect_ratio": arm.effect_ratio,
    }


def per_window(study: PublishedStudy, policy: PublishedArm, control: PublishedArm) -> Placement:
    """Violations for each realised window, compared by the gate's own tests."""
    name = f"published per window {pair_name(policy.label, control.label)}"
    return _paired(study, _by_window(policy), _by_window(control), name=name)


def _by_window(arm: PublishedArm) -> dict[int, float]:
    return {
        r.seed: r.violations / r.windows for r in arm.runs if r.violations is not None and r.windows
    }


def _same(a: float, b: float) -> bool:
    return bool(np.isclose(a, b, rtol=_EQUAL, atol=0.0))


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
