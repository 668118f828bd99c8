"""Ray shell of a run on the step clock (actors/coordinator/step_clock.py)."""

import os
from typing import Any

import ray

from actors.config import IslandsConfig, MergeConfig
from actors.coordinator.calls import Caller
from actors.coordinator.coordinator import Coordinator
from actors.coordinator.gone_actor import is_gone
from actors.coordinator.group_keeper import GroupKeeper
from actors.coordinator.step_clock import ResumeFrom, StepClockRun, StepPlan
from actors.events import Event
from policies.wrapper import CorridorWrapper


@ray.remote
class StepClockActor:
    """Runs one arm at a time."""

    def __init__(self) -> None:
        self._run: StepClockRun | None = None

    async def run(
        self,
        *,
        handles: dict[int, Any],
        wrapper: CorridorWrapper | None,
        plan: StepPlan,
        islands: IslandsConfig,
        merge: MergeConfig,
        resume: ResumeFrom | None,
    ) -> tuple[str, str | None]:
        """Status and why, at the end of the arm."""
        coordinator = Coordinator(
            wrapper,
            tick_s=plan.tick_s,
            width_ticks=plan.width_ticks,
            horizon_ticks=plan.horizon_ticks,
            suppressed=plan.suppressed,
        )
        caller = Caller(is_gone=is_gone)
        keeper = GroupKeeper(handles, islands=islands, merge=merge, caller=caller)
        self._run = StepClockRun(coordinator, keeper, plan=plan, islands=islands, merge=merge)
        return await self._run.run(resume)

    async def process_id(self) -> int:
        return os.getpid()

    async def drain(self) -> tuple[list[Event], dict[int, list[dict[str, Any]]]]:
        return ([], {}) if self._run is None else self._run.drain()

    async def join(self, island: int, handle: Any) -> None:
        if self._run is not None:
            self._run.join(island, handle)

    async def fault(self, kind: str, what: str) -> None:
        if self._run is not None:
            self._run.fault(kind, what)
