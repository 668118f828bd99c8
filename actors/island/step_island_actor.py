"""Ray shell of an island that is told each of its steps (actors/island/step_runner.py)."""

from pathlib import Path
from typing import Any

import ray
from ray.util import get_node_ip_address

from actors.config import IslandsConfig, MergeConfig
from actors.island.island import GlobalState
from actors.island.step_runner import StepRunner
from actors.merge_messages import (
    CheckpointFile,
    Formation,
    Introduction,
    Ready,
    Reduced,
    RoundPlan,
    Saved,
    SegmentName,
)
from policies.observation import IslandProgress


@ray.remote(max_concurrency=4)  # type: ignore[call-overload]
class StepIslandActor:
    """A reduction runs beside the steps where merges overlap with training."""

    def __init__(self, islands: IslandsConfig, merge: MergeConfig, island: int) -> None:
        self._runner = StepRunner(islands, merge, island)

    def process_id(self) -> int:
        return self._runner.process_id()

    def reset(self, seed: int, folder: str | None, shards: tuple[int, ...] | None) -> str:
        path = None if folder is None else Path(folder)
        return self._runner.reset(seed=seed, folder=path, shards=shards)

    def introduce(self) -> Introduction:
        return self._runner.introduce(address=get_node_ip_address())

    def can_share_with(self, segments: tuple[SegmentName, ...]) -> bool:
        return self._runner.can_share_with(segments)

    def form(self, formation: Formation) -> SegmentName | None:
        return self._runner.form(formation)

    def advance(self, steps: int, from_s: float) -> IslandProgress:
        return self._runner.advance(steps=steps, from_s=from_s)

    def progress(self, at_s: float) -> IslandProgress:
        return self._runner.progress(at_s=at_s)

    def ready(self, round: int, fragment: int) -> Ready:
        return self._runner.ready(round_=round, fragment=fragment)

    def reduce(self, plan: RoundPlan) -> Reduced:
        return self._runner.reduce(plan)

    def rescale(self, plan: RoundPlan) -> None:
        self._runner.rescale(plan)

    def commit(self, plan: RoundPlan, end_s: float) -> str:
        return self._runner.commit(plan, end_s=end_s)

    def abort(self, round: int) -> None:
        self._runner.abort(round_=round)

    def global_state(self) -> GlobalState:
        return self._runner.global_state()

    def adopt(self, given: GlobalState, keep_steps: bool, cursor: int, at_s: float) -> None:
        self._runner.adopt(given, keep_steps=keep_steps, cursor=cursor, at_s=at_s)

    def save(self, folder: str, round: int, lead: bool) -> Saved:
        return self._runner.save(Path(folder), round_=round, lead=lead)

    def load(self, folder: str, files: tuple[CheckpointFile, ...], own: str) -> str:
        return self._runner.load(Path(folder), files, own=own)

    def load_optimizer(self, folder: str, files: tuple[CheckpointFile, ...], own: str) -> None:
        self._runner.load_optimizer(Path(folder), files, own=own)

    def write_merged(self, folder: str, round: int) -> CheckpointFile:
        return self._runner.write_merged(Path(folder), round_=round)

    def validation_loss(self, local: bool) -> float | None:
        return self._runner.validation_loss(local=local)

    def drain_rows(self) -> list[dict[str, Any]]:
        return self._runner.drain_rows()

    def summary(self) -> dict[str, Any]:
        return self._runner.summary()

    def close(self) -> None:
        self._runner.close()
