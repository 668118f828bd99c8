"""config.json of a run: the same whoever makes the run, live or replay."""

from collections.abc import Sequence
from typing import Any

from actors.load.request import Request
from orchestrator.arms import study_corridor
from orchestrator.config import StudyConfig
from orchestrator.records import ArmSpec
from orchestrator.rundir import run_hash
from orchestrator.workload.requests import request_hash


def run_config(
    study: StudyConfig, arm: ArmSpec, *, seed: int, requests: Sequence[Request]
) -> dict[str, Any]:
    """Study, arm, seed, and what follows from them."""
    corridor = study_corridor(study)
    return {
        "study": study.model_dump(mode="json"),
        "arm": {
            "kind": arm.kind,
            "label": arm.label,
            "policy": arm.policy,
            "of": arm.of,
            "draw": arm.draw,
            "position": arm.position,
        },
        "seed": seed,
        "request_hash": request_hash(requests),
        "run_hash": run_hash(study, arm),
        "corridor": {
            "floor_ticks": corridor.floor_ticks,
            "ceiling_ticks": corridor.ceiling_ticks,
            "width_ticks": corridor.width_ticks,
            "horizon_ticks": corridor.horizon_ticks,
            "budget": study.corridor.budget_merges,
        },
    }
