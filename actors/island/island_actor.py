"""Ray shell of an island: receives, calls the runner, answers.

Resources are given where the run is composed (``IslandActor.options``). Several calls may run at
once, so that ``progress`` answers during a merge.
"""

from pathlib import Path
from typing import Any

import ray
from ray.util import get_node_ip_address

from actors.clock import ClockProbe, MonotonicClock, probe_clock
from actors.config import IslandsConfig, MergeConfig
from actors.events import MergePart
from actors.island.runner import IslandRunner
from actors.merge_messages import (
    Formation,
    Introduction,
    Ready,
    Reduced,
    RoundPlan,
    SegmentName,
    ServeExport,
)
from actors.priority import take_priority
from policies.observation import IslandProgress


@ray.remote(max_concurrency=8)  # type: ignore[call-overload]
class IslandActor:
    def __init__(
        self,
        islands: IslandsConfig,
        merge: MergeConfig,
        island: int,
        export: ServeExport | None = None,
    ) -> None:
        self._runner = IslandRunner(
            islands,
            merge,
            island,
            clock=MonotonicClock(),
            priority=take_priority(islands.autogroup_nice),
            export=export,
        )

    def clock_probe(self) -> ClockProbe:
        return probe_clock()

    def introduce(self) -> Introduction:
        return self._runner.introduce(address=get_node_ip_address())

    def can_share_with(self, segments: tuple[SegmentName, ...]) -> bool:
        return self._runner.can_share_with(segments)

    def form(self, formation: Formation) -> SegmentName | None:
        return self._runner.form(formation)

    def reset(self, *, seed: int, checkpoint_dir: str | None) -> str:
        folder = None if checkpoint_dir is None else Path(checkpoint_dir)
        return self._runner.reset(seed=seed, folder=folder)

    def export_start(self, folder: str, seed: int) -> str:
        return str(self._runner.export_start(Path(folder), seed=seed))

    def start(self, zero_monotonic_s: float) -> None:
        self._runner.start(zero_monotonic_s=zero_monotonic_s)

    def progress(self) -> IslandProgress:
        return self._runner.progress()

    def ready(self, round: int, fragment: int, start_s: float) -> Ready:
        return self._runner.ready(round_=round, fragment=fragment, start_s=start_s)

    def reduce(self, plan: RoundPlan) -> Reduced:
        return self._runner.reduce(plan)

    def rescale(self, plan: RoundPlan) -> None:
        self._runner.rescale(plan)

    def commit(self, plan: RoundPlan, end_s: float) -> MergePart:
        return self._runner.commit(plan, end_s=end_s)

    def abort(self, round: int) -> None:
        self._runner.abort(round_=round)

    def finish(self) -> dict[str, Any]:
        return self._runner.finish()

    def shutdown(self) -> None:
        self._runner.shutdown()
