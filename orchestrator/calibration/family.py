"""A family of judged policies to verdicts: one way for live and for replayed runs.

What a condition reads of the runs is handed in; comparisons, Holm and the ruling stand here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from orchestrator.calibration.asked import Compared
from orchestrator.calibration.conditions import negative_controls, placement_condition
from orchestrator.calibration.evidence import not_yet_arrived_rate, violation_rate
from orchestrator.calibration.exact_null import Recorded, recorded_nulls
from orchestrator.calibration.placement import Placement, compare
from orchestrator.calibration.pooled import Emulation
from orchestrator.calibration.ruling import rule
from orchestrator.calibration.statistics import holm
from orchestrator.calibration.verdict import Condition, Verdict

OfPolicy = Callable[[str], Condition]
Both = tuple[float | None, float | None]  # p after Holm, of sign flip and of labels
Unmatched = Callable[[str, tuple[str, ...], str], Placement]  # (arm, others, name): each once


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the runs say, asked policy by policy."""

    shared: tuple[Condition, ...]  # run validity and load match: the same for all
    transfer: OfPolicy
    exposure: OfPolicy
    overlap: Callable[[str], Recorded]
    replay: OfPolicy
    emulated: Callable[[str], Emulation | None]
    engine: tuple[str, str]  # source and engine
    control: str = ""  # what the control's draws are, where that has to be said
    scope: str = ""  # why runs like these speak of less than the regime; "" where they do not
    held_out: bool | None = None  # no part in tuning; None where nothing is stated of that


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tested:
    """A judged policy's two comparisons with its matched random, and its overlap."""

    policy: str
    all_requests: Placement
    not_yet_arrived: Placement
    overlap: Recorded


def judge_family(evidence: Compared, basis: Basis) -> tuple[Verdict, ...]:
    """A verdict for each policy of the study's family, fixed beforehand by ``judge:``."""
    study = evidence.study
    tested = [_test(evidence, policy, basis.overlap(policy)) for policy in study.judge]
    every = _adjusted([t.all_requests for t in tested])
    early = _adjusted([t.not_yet_arrived for t in tested])
    nulls = recorded_nulls([t.overlap for t in tested], gate=study.gate)
    compared = cache(partial(_unmatched, evidence))
    return tuple(
        _verdict(evidence, t, basis, all_holm=a, early_holm=e, null=null, compared=compared)
        for t, a, e, null in zip(tested, every, early, nulls, strict=True)
    )


def _test(evidence: Compared, policy: str, overlap: Recorded) -> _Tested:
    controls = evidence.labels("matched_random", of=policy)
    return _Tested(
        policy=policy,
        all_requests=compare(evidence, policy, controls, rate=violation_rate, name="placement"),
        not_yet_arrived=compare(
            evidence, policy, controls, rate=not_yet_arrived_rate, name="not yet arrived"
        ),
        overlap=overlap,
    )


def _adjusted(family: Sequence[Placement]) -> list[Both]:
    """Holm-adjusted p of sign flip and of labels, for each member of the family."""
    flips = [None if p.lacking or p.flip is None else p.flip.p_value for p in family]
    labels = [None if p.lacking or p.labels is None else p.labels.p_value for p in family]
    return [
        (None if a is None else adjusted_a, None if b is None else adjusted_b)
        for a, b, adjusted_a, adjusted_b in zip(
            flips, labels, holm(flips), holm(labels), strict=True
        )
    ]


def _verdict(
    evidence: Compared,
    tested: _Tested,
    basis: Basis,
    *,
    all_holm: Both,
    early_holm: Both,
    null: Condition,
    compared: Unmatched,
) -> Verdict:
    policy = tested.policy
    conditions = (
        *basis.shared,
        basis.transfer(policy),
        basis.exposure(policy),
        placement_condition(
            "matched_random",
            tested.all_requests,
            evidence,
            p_holm=all_holm[0],
            labels_holm=all_holm[1],
            note=basis.control,
        ),
        placement_condition(
            "not_yet_arrived",
            tested.not_yet_arrived,
            evidence,
            p_holm=early_holm[0],
            labels_holm=early_holm[1],
            note=basis.control,
        ),
        null,
        _negative(evidence, policy, compared),
        basis.replay(policy),
    )
    return rule(
        evidence.study,
        policy,
        conditions=conditions,
        placement=tested.all_requests,
        early=tested.not_yet_arrived,
        overlap=tested.overlap.both,
        p_holm=all_holm[0],
        engine=basis.engine,
        emulated=basis.emulated(policy),
        scope=basis.scope,
        held_out=basis.held_out,
    )


def _unmatched(evidence: Compared, arm: str, others: tuple[str, ...], name: str) -> Placement:
    """Two arms without a draw between them."""
    return compare(evidence, arm, others, rate=violation_rate, name=name)


def _negative(evidence: Compared, policy: str, compared: Unmatched) -> Condition:
    """Its own placebo, or any: a placebo depends on the corridor alone."""
    placebo = evidence.labels("placebo", of=policy) or evidence.labels("placebo")
    base = evidence.labels("no_sync")
    same = _same(evidence, policy)
    return negative_controls(
        evidence,
        same=None if same is None else compared(same[0], (same[1],), "aa"),
        placebo=compared(placebo[0], base, "placebo") if placebo else None,
    )


def _same(evidence: Compared, policy: str) -> tuple[str, str] | None:
    """Two arms that differ by chance alone: the policy and its A/A, or those of another judged one,
    or two draws of matched random, which are schedules of one law.
    """
    for name in (policy, *evidence.study.judge):
        again = evidence.labels("aa", of=name)
        if again:
            return again[0], name
    draws = evidence.labels("matched_random", of=policy)
    return (draws[0], draws[1]) if len(draws) > 1 else None
