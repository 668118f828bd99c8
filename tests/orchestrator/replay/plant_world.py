"""Whole studies whose latencies come from a known plant: what a calibration has to find again."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from orchestrator.record_tables import planned_windows, requests_table
from orchestrator.records import RunRecord
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.measured import measured_run, predicted
from tests.synthetic import World, synthetic_records, synthetic_study

TRUTH = PlantConfig(
    slots=16,
    step_base_s=0.002,
    step_per_seq_s=0.0004,
    prefill_per_token_s=0.0001,
    overhead_s=0.004,
    merge_factor=1.8,
    merge_step_s=0.012,
)
NOISE = {"pace_log_sd": 0.15, "overhead_log_sd": 0.4, "merge_factor_log_sd": 0.2}
VLLM = {"source": "live", "engine": "vllm", "engine_version": "0.32.0", "host": {"cores": 2}}
LOAD: dict[str, Any] = {
    "kind": "bursts",
    "quiet_rate_per_s": 2.0,
    "burst_rate_per_s": 12.0,
    "period_s": 10.0,
    "burst_s": 4.0,
    "random_phase": True,
    "prompt_tokens": {"low": 10, "high": 200},
    "output_tokens": {"low": 8, "high": 80},
}


def plant_records(
    plant: PlantConfig, *, seeds: list[int], provenance: dict[str, Any] = VLLM, **changes: Any
) -> list[RunRecord]:
    """All runs of a study, answered by the plant with the noise that a replay of the seed has."""
    changed = {"slo": {"e2e_s": 0.5}, "load": LOAD, **changes}
    study = synthetic_study(seeds=seeds, **changed)
    records = synthetic_records(World(placement="random"), study)
    return [answered(record, plant, provenance) for record in records]


def answered(record: RunRecord, plant: PlantConfig, provenance: dict[str, Any]) -> RunRecord:
    """The same run with the plant's latencies."""
    run = measured_run(record)
    answer = predicted(run, plant=plant)
    served = {
        request_id: (at_s + ttft_s, at_s + e2e_s)
        for request_id, at_s, ttft_s, e2e_s in zip(
            run.request_id.tolist(), run.at_s, answer.ttft_s, answer.e2e_s, strict=True
        )
    }
    table = requests_table(
        list(_rows(record, served)),
        windows=planned_windows(record.events),
        e2e_limit_s=record.config["study"]["slo"]["e2e_s"],
    )
    return replace(record, requests=table, provenance=provenance)


def _rows(
    record: RunRecord, served: dict[int, tuple[np.float64, np.float64]]
) -> Iterator[dict[str, Any]]:
    for row in record.requests.to_pylist():
        first_s, done_s = served[row["request_id"]]
        times = {"first_token_at_s": float(first_s), "done_at_s": float(done_s)}
        yield {**row, **times, "sent_at_s": row["scheduled_at_s"], "itl_s": []}
