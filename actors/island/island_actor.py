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
from actors.island.comm import free_port
from actors.island.runner import IslandRunner
from actors.priority import take_priority
from policies.observation import IslandProgress


@ray.remote(max_concurrency=8)  # type: ignore[call-overload]
class IslandActor:
    def __init__(self, islands: IslandsConfig, merge: MergeConfig, island: int) -> None:
        self._runner = IslandRunner(
            islands,
            merge,
            island,
            clock=MonotonicClock(),
            priority=take_priority(islands.autogroup_nice),
        )

    def clock_probe(self) -> ClockProbe:
        return probe_clock()

    def address(self) -> tuple[str, int]:
        node_ip: str = get_node_ip_address()
        return node_ip, free_port(node_ip)

    def join(self, master_addr: str, master_port: int, world_size: int, timeout_s: float) -> None:
        self._runner.join(
            master_addr=master_addr,
            master_port=master_port,
            world_size=world_size,
            timeout_s=timeout_s,
        )

    def reset(self, *, seed: int, checkpoint_dir: str | None) -> str:
        folder = None if checkpoint_dir is None else Path(checkpoint_dir)
        return self._runner.reset(seed=seed, checkpoint_dir=folder)

    def start(self, zero_monotonic_s: float) -> None:
        self._runner.start(zero_monotonic_s=zero_monotonic_s)

    def progress(self) -> IslandProgress:
        return self._runner.progress()

    def merge(self, round: int, start_s: float, end_s: float) -> MergePart:
        return self._runner.merge(round_=round, start_s=start_s, end_s=end_s)

    def finish(self) -> dict[str, Any]:
        return self._runner.finish()

    def shutdown(self) -> None:
        self._runner.shutdown()
