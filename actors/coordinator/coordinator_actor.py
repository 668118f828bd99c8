"""Ray shell of the coordinator: gathers samples, hands them in, sends the commands out.

It holds the handles of islands, load, telemetry and sidecars; no actor calls another one.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from actors.brief import brief
from actors.clock import ClockProbe, MonotonicClock, probe_clock
from actors.config import IslandsConfig, MergeConfig, RefreshConfig, TelemetryConfig
from actors.coordinator.calls import Caller
from actors.coordinator.coordinator import Coordinator
from actors.coordinator.gone_actor import is_gone
from actors.coordinator.group_keeper import GroupKeeper
from actors.coordinator.rounds import Outcome, Rounds
from actors.coordinator.sampling import SampleBuilder
from actors.events import (
    ArmStarted,
    EndArm,
    Event,
    Faulted,
    HistoryTold,
    IslandDropped,
    MergeFailed,
    MergeFinished,
    StartMerge,
    Ticked,
)
from actors.priority import take_instrument_priority
from actors.serving.exported import round_folder
from actors.serving.refresh import refreshed_event
from policies.wrapper import CorridorWrapper


@ray.remote
class CoordinatorActor:
    """Runs one arm at a time."""

    def __init__(
        self,
        *,
        islands: list[Any],
        sidecars: list[Any],
        load: Any,
        telemetry: Any,
        islands_config: IslandsConfig,
        merge_config: MergeConfig,
        refresh: RefreshConfig,
    ) -> None:
        self._warning = take_instrument_priority()
        self._islands = islands
        self._sidecars = sidecars
        self._load = load
        self._telemetry = telemetry
        self._clock = MonotonicClock()
        self._coordinator: Coordinator | None = None
        self._merges: list[asyncio.Task[None]] = []
        self._end: EndArm | None = None
        self._elastic = islands_config.elastic is not None
        self._keeper = GroupKeeper(
            dict(enumerate(islands)),
            islands=islands_config,
            merge=merge_config,
            caller=Caller(is_gone=is_gone),
        )
        self._rounds = Rounds(self._keeper, islands=islands_config, merge=merge_config)
        self._refresh = refresh
        self._served: str | None = None  # folder of exported weights
        self._offsets_s: dict[str, float] = {}

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
        served: str | None = None,
    ) -> tuple[str, str | None]:
        """Tick from zero to the horizon; the status and why. Events are fetched by drain_events."""
        self._zero_s = zero_monotonic_s
        self._served = served
        self._merges = []
        self._offsets_s = offsets_s
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
        await asyncio.gather(*self._merges)
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
                self._merges.append(asyncio.create_task(self._run_merge(command)))

    async def form_group(self) -> None:
        """The islands' group, before a run's clock begins; each must have been reset."""
        await self._keeper.ensure(self._keeper.here)

    async def _run_merge(self, command: StartMerge) -> None:
        """The round, and new weights for the servers, which may outlast the window."""
        for sidecar in self._sidecars:  # first: a refresh keeps its actor busy until it is done
            sidecar.mark_merge.remote(True)
        refreshing = self._begin_refresh(command)
        await self._merge_round(command)
        await self._end_refresh(refreshing, command)

    async def _merge_round(self, command: StartMerge) -> None:
        """The round over all islands; a lost one is a fault, never a hang."""
        coordinator = self._coordinator
        assert coordinator is not None
        outcome = await self._rounds.merge(
            command.round, ready_args=(command.start_s,), commit_args=(command.end_s,)
        )
        for sidecar in self._sidecars:
            sidecar.mark_merge.remote(False)
        if self._elastic:
            self._say_dropped(outcome)
        elif outcome.dropped or not outcome.merged:
            await self.fault("island_lost", self._what_was_lost(outcome))
            return
        if not outcome.merged:
            self._handle(
                MergeFailed(
                    event_id=coordinator.next_id(),
                    cause_id=command.cause_id,
                    round=command.round,
                    at_s=self._now_s(),
                    why=outcome.why or "no reason was given",
                )
            )
            return
        norm = outcome.norm
        assert norm is not None  # it was merged
        parts = tuple(
            replace(part, pseudo_gradient_norm=norm, transport=outcome.transport)
            for _, part in sorted(outcome.committed.items())
        )
        self._handle(
            MergeFinished(
                event_id=coordinator.next_id(),
                cause_id=command.cause_id,
                round=command.round,
                at_s=self._now_s(),
                overran=any(p.ended_at_s > command.end_s for p in parts),
                parts=parts,
            )
        )

    def _begin_refresh(self, command: StartMerge) -> list[Any]:
        """Each sidecar waits for the exported weights and takes them, inside the window."""
        due = (command.round + 1) % self._refresh.every_merges == 0
        if self._refresh.kind == "none" or not due or self._served is None:
            return []
        folder = str(round_folder(Path(self._served), command.round))
        wait_s = max(0.0, command.end_s - self._now_s())
        return [s.refresh.remote(folder, command.round, wait_s) for s in self._sidecars]

    async def _end_refresh(self, refreshing: list[Any], command: StartMerge) -> None:
        """What each serves now; one that does not serve the new weights ends the arm."""
        assert self._coordinator is not None
        results = await asyncio.gather(*refreshing, return_exceptions=True)
        for sidecar, done in enumerate(results):
            if isinstance(done, BaseException):
                what = f"merge {command.round}: {brief(done)}"
                await self.fault("refresh_failed", what)
                continue
            zero_s = self._zero_s + self._offsets_s[f"sidecar-{sidecar}"]
            zero_s -= self._offsets_s["coordinator"]
            self._handle(
                refreshed_event(
                    done,
                    event_id=self._coordinator.next_id(),
                    cause_id=command.cause_id,
                    sidecar=sidecar,
                    zero_monotonic_s=zero_s,
                )
            )

    def _say_dropped(self, outcome: Outcome) -> None:
        assert self._coordinator is not None
        for island, why in sorted(outcome.dropped.items()):
            self._handle(
                IslandDropped(
                    event_id=self._coordinator.next_id(),
                    at_s=self._now_s(),
                    island=island,
                    round=outcome.round,
                    why=why,
                )
            )

    def _what_was_lost(self, outcome: Outcome) -> str:
        """The one that is gone, not the peers that missed it."""
        gone = [i for i in outcome.dropped if self._keeper.members[i].gone]
        for island in (*gone, *sorted(outcome.dropped)):
            why = outcome.dropped[island]
            return f"island {island} lost in merge {outcome.round}: {why}"
        return f"merge {outcome.round}: {outcome.why}"
