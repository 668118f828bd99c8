"""The gate: a study's record to conditions, verdicts and caveats; pure, nothing read or written.

Every condition is computed; the first that is not met names the verdict.
"""

import hashlib
import json
from collections.abc import Sequence

from orchestrator.calibration.asked import Asked
from orchestrator.calibration.conditions import effect_transfer
from orchestrator.calibration.effects import SeedEffects, effect_row, seed_effects
from orchestrator.calibration.evidence import Evidence, gather
from orchestrator.calibration.exact_null import recorded_overlap
from orchestrator.calibration.exposure import exposure_match, live_exposure
from orchestrator.calibration.family import Basis, judge_family
from orchestrator.calibration.held_out import held_out
from orchestrator.calibration.pooled import (
    NO_REPLAY,
    arm_rows,
    caveats,
    emulation,
    engine_of,
    trace_scope,
)
from orchestrator.calibration.prediction import Prediction, replay_beside, replay_condition
from orchestrator.calibration.rates import rate_caveats, rate_effects
from orchestrator.calibration.validity import load_match, run_validity
from orchestrator.calibration.verdict import Condition, Judgement
from orchestrator.config import StudyConfig
from orchestrator.records import RunMetrics, RunRecord


def judge(
    study: StudyConfig,
    records: Sequence[RunRecord],
    metrics: Sequence[RunMetrics],
    *,
    prediction: Prediction | None = None,
) -> Judgement:
    """Judge every policy of the study's family, fixed beforehand by ``judge:``.

    ``prediction``: what a calibrated replay of the same study says; None: there is no replay.
    """
    evidence = gather(study, records, metrics)
    shared = (run_validity(evidence), load_match(evidence))
    controlled = dict.fromkeys(a.of for a in evidence.arms if a.kind == "matched_random" and a.of)
    effects = {of: seed_effects(evidence, of) for of in controlled}
    source, engine, version = engine_of(evidence)
    return Judgement(
        study=study.study,
        regime=study.regime,
        source=source,
        engine=engine,
        engine_version=version,
        gate_hash=gate_hash(study),
        seeds=study.seeds,
        verdicts=judge_family(evidence, _basis(evidence, shared, effects, prediction)),
        effects=tuple(effect_row(e, of) for of, rows in effects.items() for e in rows),
        arms=arm_rows(evidence),
        caveats=(
            *rate_caveats(evidence, shared),
            *caveats(evidence, replay=(NO_REPLAY,) if prediction is None else prediction.words),
        ),
        rate_effects=rate_effects(evidence),
    )


def _basis(
    evidence: Evidence,
    shared: tuple[Condition, ...],
    effects: dict[str, tuple[SeedEffects, ...]],
    prediction: Prediction | None,
) -> Basis:
    """The live record's answers, policy by policy."""
    exposures = live_exposure(evidence)
    return Basis(
        shared=shared,
        transfer=lambda policy: effect_transfer(
            evidence,
            effects.get(policy, ()),
            replay=replay_beside(prediction, policy, effects.get(policy, ())),
        ),
        exposure=lambda policy: exposure_match(
            policy,
            controls=evidence.labels("matched_random", of=policy),
            seeds=evidence.study.seeds,
            of=exposures,
        ),
        overlap=lambda policy: recorded_overlap(evidence, policy),
        replay=lambda policy: replay_condition(prediction, policy, effects.get(policy, ())),
        emulated=lambda policy: emulation(evidence, policy),
        engine=engine_of(evidence)[:2],
        scope=trace_scope(evidence.study),
        held_out=held_out(evidence),
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
