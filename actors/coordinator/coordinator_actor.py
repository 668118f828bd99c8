"""Ray shell of the coordinator: gathers samples, hands them in, sends the commands out.

It holds the handles of islands, load, telemetry and sidecars; no actor calls another one.
"""

import asyncio
from dataclasses import replace
from typing import Any

import ray

from actors.brief import brief
from actors.clock import ClockProbe, MonotonicClock, probe_clock
from actors.config import TelemetryConfig
from actors.coordinator.coordinator import Coordinator
from actors.coordinator.sampling import SampleBuilder
from actors.events import (
    ArmStarted,
    EndArm,
    Event,
    Faulted,
    HistoryTold,
    MergeFinished,
    StartMerge,
    Ticked,
)
from actors.priority import take_instrument_priority
from policies.wrapper import CorridorWrapper


@ray.remote
class CoordinatorActor:
    """Runs one arm at a time."""

    def __init__(
        self, *, islands: list[Any], sidecars: list[Any], load: Any, telemetry: Any
    ) -> None:
        self._warning = take_instrument_priority()
        self._islands = islands
        self._sidecars = sidecars
        self._load = load
        self._telemetry = telemetry
        self._clock = MonotonicClock()
        self._coordinator: Coordinator | None = None
        self._merge: asyncio.Task[None] | None = None
        self._end: EndArm | None = None

    async def clock_probe(self) -> ClockProbe:
        return probe_clock()

    async def warning(self) -> str | None:
        return self._warning

    async def run_arm(
        self,
        *,
        arm: str,
        seed: int,
        wrapper: CorridorWrapper | None,
        telemetry: TelemetryConfig,
        offsets_s: dict[str, float],
        zero_monotonic_s: float,
        tick_s: float,
        width_ticks: int,
        horizon_ticks: int,
        suppressed: bool,
        history: HistoryTold | None = None,
    ) -> tuple[str, str | None]:
        """Tick from zero to the horizon; the status and why. Events are fetched by drain_events."""
        self._zero_s = zero_monotonic_s
        self._end = None
        self._builder = SampleBuilder(telemetry, zero_s=zero_monotonic_s, offsets_s=offsets_s)
        self._coordinator = coordinator = Coordinator(
            wrapper,
            tick_s=tick_s,
            width_ticks=width_ticks,
            horizon_ticks=horizon_ticks,
            suppressed=suppressed,
        )
        members = tuple(range(len(self._islands)))
        self._handle(
            ArmStarted(
                event_id=coordinator.next_id(),
                at_s=self._now_s(),
                arm=arm,
                seed=seed,
                islands=members,
            )
        )
        if history is not None:
            self._handle(replace(history, event_id=coordinator.next_id()))
        for tick in range(horizon_ticks + 1):
            await asyncio.sleep(max(0.0, tick * tick_s - self._now_s()))
            sample = await self._builder.collect(
                tick,
                load=self._load,
                telemetry=self._telemetry,
                islands=self._islands,
                now_s=self._now_s,
                timeout_s=0.4 * tick_s,
            )
            self._handle(Ticked(event_id=coordinator.next_id(), sample=sample))
            if self._end is not None:
                break
        if self._merge is not None:
            await self._merge
        end = self._end
        assert end is not None
        return end.status, end.why

    async def drain_events(self) -> list[Event]:
        return [] if self._coordinator is None else self._coordinator.drain_log()

    async def fault(self, kind: str, what: str) -> None:
        """The driver saw a fault: the arm ends as invalid."""
        if self._coordinator is not None:
            self._handle(
                Faulted(
                    event_id=self._coordinator.next_id(), at_s=self._now_s(), kind=kind, what=what
                )
            )

    def _now_s(self) -> float:
        return self._clock.now_s() - self._zero_s

    def _handle(self, event: Event) -> None:
        assert self._coordinator is not None
        for command in self._coordinator.handle(event):
            if isinstance(command, EndArm):
                self._end = command
            elif not command.suppressed:
                self._merge = asyncio.create_task(self._run_merge(command))

    async def _run_merge(self, command: StartMerge) -> None:
        """Send the merge to all islands; a lost one is a fault, never a hang."""
        assert self._coordinator is not None
        for sidecar in self._sidecars:
            sidecar.mark_merge.remote(True)
        calls = [
            self._islands[i].merge.remote(command.round, command.start_s, command.end_s)
            for i in command.islands
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for sidecar in self._sidecars:
            sidecar.mark_merge.remote(False)
        failed = [
            (i, r)
            for i, r in zip(command.islands, results, strict=True)
            if isinstance(r, BaseException)
        ]
        if failed:  # the one that is gone, not the peers that missed it
            gone = [(i, r) for i, r in failed if not isinstance(r, ray.exceptions.RayTaskError)]
            i, error = (gone or failed)[0]
            await self.fault(
                "island_lost", f"island {i} lost in merge {command.round}: {brief(error)}"
            )
            return
        parts = [r for r in results if not isinstance(r, BaseException)]
        self._handle(
            MergeFinished(
                event_id=self._coordinator.next_id(),
                cause_id=command.cause_id,
                round=command.round,
                at_s=self._now_s(),
                overran=any(p.ended_at_s > command.end_s for p in parts),
                parts=tuple(parts),
            )
        )
