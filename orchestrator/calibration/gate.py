"""The gate: a study's record to conditions, verdicts and caveats; pure, nothing read or written.

Every condition is computed; the first that is not met names the verdict.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.calibration.asked import Asked
from orchestrator.calibration.conditions import (
    effect_transfer,
    exposure_match,
    negative_controls,
    placement_condition,
    replay_prediction,
)
from orchestrator.calibration.effects import SeedEffects, effect_row, seed_effects
from orchestrator.calibration.evidence import (
    Evidence,
    gather,
    not_yet_arrived_rate,
    violation_rate,
)
from orchestrator.calibration.exact_null import Recorded, recorded_nulls, recorded_overlap
from orchestrator.calibration.placement import Placement, compare
from orchestrator.calibration.pooled import arm_rows, caveats, emulation, engine_of
from orchestrator.calibration.rates import rate_caveats, rate_effects
from orchestrator.calibration.ruling import rule
from orchestrator.calibration.statistics import holm
from orchestrator.calibration.validity import load_match, run_validity
from orchestrator.calibration.verdict import Condition, Judgement, Verdict
from orchestrator.config import StudyConfig
from orchestrator.records import RunMetrics, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tested:
    """A judged policy's two comparisons with its matched random, and its overlap."""

    policy: str
    all_requests: Placement
    not_yet_arrived: Placement
    overlap: Recorded


def judge(
    study: StudyConfig, records: Sequence[RunRecord], metrics: Sequence[RunMetrics]
) -> Judgement:
    """Judge every policy of the study's family, fixed beforehand by ``judge:``."""
    evidence = gather(study, records, metrics)
    tested = [_test(evidence, policy) for policy in study.judge]
    shared = (run_validity(evidence), load_match(evidence))
    holms = [
        _adjusted([t.all_requests for t in tested]),
        _adjusted([t.not_yet_arrived for t in tested]),
    ]
    controlled = dict.fromkeys(a.of for a in evidence.arms if a.kind == "matched_random" and a.of)
    effects = {of: seed_effects(evidence, of) for of in controlled}
    nulls = recorded_nulls(evidence, [t.overlap for t in tested])
    verdicts = [
        _verdict(evidence, t, shared, effects.get(t.policy, ()), all_holm, early_holm, null)
        for t, all_holm, early_holm, null in zip(tested, *holms, nulls, strict=True)
    ]
    source, engine, version = engine_of(evidence)
    return Judgement(
        study=study.study,
        regime=study.regime,
        source=source,
        engine=engine,
        engine_version=version,
        gate_hash=gate_hash(study),
        seeds=study.seeds,
        verdicts=tuple(verdicts),
        effects=tuple(effect_row(e, of) for of, rows in effects.items() for e in rows),
        arms=arm_rows(evidence),
        caveats=(*rate_caveats(evidence, shared), *caveats(evidence)),
        rate_effects=rate_effects(evidence),
    )


def gate_hash(study: Asked) -> str:
    """What was fixed beforehand: thresholds, family and regime."""
    fixed = {
        "gate": study.gate.model_dump(mode="json"),
        "judge": list(study.judge),
        "regime": study.regime,
    }
    text = json.dumps(fixed, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _test(evidence: Evidence, policy: str) -> _Tested:
    controls = evidence.labels("matched_random", of=policy)
    return _Tested(
        policy=policy,
        all_requests=compare(evidence, policy, controls, rate=violation_rate, name="placement"),
        not_yet_arrived=compare(
            evidence, policy, controls, rate=not_yet_arrived_rate, name="not yet arrived"
        ),
        overlap=recorded_overlap(evidence, policy),
    )


def _adjusted(family: Sequence[Placement]) -> list[tuple[float | None, float | None]]:
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
    evidence: Evidence,
    tested: _Tested,
    shared: tuple[Condition, ...],
    effects: tuple[SeedEffects, ...],
    all_holm: tuple[float | None, float | None],
    early_holm: tuple[float | None, float | None],
    null: Condition,
) -> Verdict:
    policy = tested.policy
    conditions = (
        *shared,
        effect_transfer(evidence, effects),
        exposure_match(evidence, policy),
        placement_condition(
            "matched_random",
            tested.all_requests,
            evidence,
            p_holm=all_holm[0],
            labels_holm=all_holm[1],
        ),
        placement_condition(
            "not_yet_arrived",
            tested.not_yet_arrived,
            evidence,
            p_holm=early_holm[0],
            labels_holm=early_holm[1],
        ),
        null,
        _negative(evidence, policy),
        replay_prediction(),
    )
    return rule(
        evidence.study,
        policy,
        conditions=conditions,
        placement=tested.all_requests,
        early=tested.not_yet_arrived,
        overlap=tested.overlap.both,
        p_holm=all_holm[0],
        engine=engine_of(evidence)[:2],
        emulated=emulation(evidence, policy),
    )


def _negative(evidence: Evidence, policy: str) -> Condition:
    """The policy's own A/A; its placebo, or any: a placebo depends on the corridor alone."""
    aa = evidence.labels("aa", of=policy)
    placebo = evidence.labels("placebo", of=policy) or evidence.labels("placebo")
    base = evidence.labels("no_sync")
    return negative_controls(
        evidence,
        same=compare(evidence, aa[0], (policy,), rate=violation_rate, name="aa") if aa else None,
        placebo=compare(evidence, placebo[0], base, rate=violation_rate, name="placebo")
        if placebo
        else None,
    )
