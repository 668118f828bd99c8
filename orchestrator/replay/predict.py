"""What a calibrated plant says of a live study: the same requests and windows, other latencies.

The runs are read as they were recorded, their answers put in by the plant; then the gate's own
effect ratio and gain are taken of them. Seeds that the fit saw are left out.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from actors.load.request import Outcome
from orchestrator.calibration.effects import seed_effects
from orchestrator.calibration.evidence import Evidence, gather, violation_rate
from orchestrator.calibration.placement import compare
from orchestrator.calibration.pooled import engine_of
from orchestrator.calibration.prediction import Predicted, Prediction
from orchestrator.config import StudyConfig
from orchestrator.metrics import run_metrics
from orchestrator.record_tables import planned_windows, requests_table
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.replay.calibrated import AIMS, Calibration
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.measured import measured_run, predicted, run_key
from orchestrator.replay.standing import plant_words, standing_of


def predict(
    study: StudyConfig,
    records: Sequence[RunRecord],
    metrics: Sequence[RunMetrics],
    calibration: Calibration,
) -> Prediction:
    """The prediction for ``calibration.gate.judge``. Incomplete runs predict nothing."""
    source, engine, version = engine_of(gather(study, records, metrics))
    words = plant_words(calibration)
    if source == "replay":  # nothing to foresee: the plant made these runs
        return Prediction(
            standing=standing_of(calibration),
            aim=AIMS["effect_ratio"],
            policies=None,
            words=words,
        )
    fitted = {r.seed for r in records if _took_part(r, calibration)}
    outside = tuple(s for s in study.seeds if s not in fitted)
    asked = [a.of for a in study.arms if a.kind == "matched_random"]
    policies = {}
    if outside:
        evidence = _answered(study, records, outside, plant=calibration.plant)
        policies = {of: _of(evidence, of, fitted=tuple(sorted(fitted))) for of in asked}
    else:
        policies = {
            of: Predicted(effects={}, fitted_seeds=tuple(sorted(fitted)), gain=None) for of in asked
        }
    return Prediction(
        standing=standing_of(calibration, engine=engine, engine_version=version),
        aim=AIMS["effect_ratio"],
        policies=policies,
        words=words,
    )


def _took_part(record: RunRecord, calibration: Calibration) -> bool:
    return record.status == "complete" and run_key(record).content_sha256 in calibration.took_part


def _answered(
    study: StudyConfig, records: Sequence[RunRecord], seeds: Sequence[int], *, plant: PlantConfig
) -> Evidence:
    """The complete runs of these seeds, answered by the plant."""
    labels = {"no_sync", "policy", "matched_random"}
    made = [
        answered(record, plant=plant)
        for record in records
        if record.seed in seeds and record.status == "complete" and record.arm.kind in labels
    ]
    outside = study.model_copy(update={"seeds": tuple(seeds)})
    return gather(outside, made, [run_metrics(record) for record in made])


def answered(record: RunRecord, *, plant: PlantConfig) -> RunRecord:
    """A complete run with the plant's answers instead of the server's: all succeed, none late."""
    run = measured_run(record)
    said = predicted(run, plant=plant)
    times = {
        int(i): (float(at + ttft), float(at + e2e))
        for i, at, ttft, e2e in zip(run.request_id, run.at_s, said.ttft_s, said.e2e_s, strict=True)
    }
    rows = record.requests.to_pylist()
    for row in rows:
        first_s, done_s = times[row["request_id"]]
        assert np.isfinite(done_s)
        row.update(
            sent_at_s=row["scheduled_at_s"],
            first_token_at_s=first_s,
            done_at_s=done_s,
            completion_tokens=row["output_tokens"],
            outcome=str(Outcome.OK),
            error=None,
            itl_s=[],
        )
    table: pa.Table = requests_table(
        rows,
        windows=planned_windows(record.events),
        e2e_limit_s=float(record.config["study"]["slo"]["e2e_s"]),
    )
    return replace(record, requests=table)


def _of(evidence: Evidence, of: str, *, fitted: tuple[int, ...]) -> Predicted:
    effects = {e.seed: e.whole.value for e in seed_effects(evidence, of)}
    controls = evidence.labels("matched_random", of=of)
    placed = compare(evidence, of, controls, rate=violation_rate, name="predicted")
    gain = None if placed.lacking or placed.gain is None else placed.gain.estimate
    return Predicted(effects=effects, fitted_seeds=fitted, gain=gain)
