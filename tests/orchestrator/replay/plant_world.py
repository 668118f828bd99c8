"""Whole studies whose latencies come from a known plant: what a calibration has to find again."""

from dataclasses import replace
from typing import Any

from orchestrator.records import RunRecord
from orchestrator.replay.config import PlantConfig
from tests.replayed import answered
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
    "burst_rate_per_s": 9.0,
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
    study = synthetic_study(seeds=seeds, **{"slo": {"e2e_s": 0.5}, "load": LOAD, **changes})
    records = synthetic_records(World(placement="random"), study)
    return [replace(answered(r, plant=plant), provenance=provenance) for r in records]
