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
from actors.serving.refresh import RefreshRefused, refreshed_event
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
        self._refreshes: list[asyncio.Task[None]] = []
        self._letting_go: set[asyncio.Task[None]] = set()
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
        self._taking = [0] * len(sidecars)  # refreshes that each has not ended
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
        self._merges, self._refreshes = [], []
        self._taking = [0] * len(self._sidecars)
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
                islands={i: self._islands[i] for i in self._keeper.here},
                now_s=self._now_s,
                timeout_s=0.4 * tick_s,
            )
            self._handle(Ticked(event_id=coordinator.next_id(), sample=sample))
            if self._end is not None:
                break
        await asyncio.gather(*self._merges)
        end = self._end
        assert end is not None
        if end.status != "partial":  # whoever interrupts a study does not wait for a server
            await asyncio.gather(*self._refreshes)
        return end.status, end.why

    async def drain_events(self) -> list[Event]:
        return [] if self._coordinator is None else self._coordinator.drain_log()

    async def fault(self, kind: str, what: str) -> None:
        """The driver saw a fault: the arm ends as invalid."""
        self._fault(kind, what)

    def _fault(self, kind: str, what: str) -> None:
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
        for island in self._keeper.out:  # by the arm before, which the reset has undone
            self._keeper.back(island)
        await self._keeper.ensure(self._keeper.here)

    async def _run_merge(self, command: StartMerge) -> None:
        """The round, and new weights for the servers, which may outlast the window."""
        for sidecar in self._sidecars:
            sidecar.mark_merge.remote(True)
        # After the mark: a sidecar does one thing at a time, and waits for the weights first.
        refreshing = self._begin_refresh(command)
        merged = await self._merge_round(command)
        for sidecar in self._sidecars:
            sidecar.mark_merge.remote(False)
        self._refreshes += [
            asyncio.create_task(self._end_refresh(sidecar, told, command, merged=merged))
            for sidecar, told in refreshing.items()
        ]

    async def _merge_round(self, command: StartMerge) -> bool:
        """The round over all islands; a lost one is a fault, never a hang. True: all went well."""
        coordinator = self._coordinator
        assert coordinator is not None
        outcome = await self._rounds.merge(
            command.round, ready_args=(command.start_s,), commit_args=(command.end_s,)
        )
        if self._elastic:
            self._say_dropped(outcome)
            self._let_go(outcome)
        elif outcome.dropped or not outcome.merged:
            self._fault("island_lost", self._what_was_lost(outcome))
            return False
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
            return False
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
        return True

    # New weights for the servers

    def _begin_refresh(self, command: StartMerge) -> dict[int, Any]:
        """Each sidecar waits for the exported weights and takes them, inside the window."""
        due = (command.round + 1) % self._refresh.every_merges == 0
        if self._refresh.kind == "none" or not due or self._served is None:
            return {}
        folder = str(round_folder(Path(self._served), command.round))
        wait_s = max(0.0, command.end_s - self._now_s())
        begun = {}
        for i, sidecar in enumerate(self._sidecars):
            if self._taking[i] >= self._refresh.keep_rounds:
                self._fault("refresh_refused", self._too_often(i, command.round))
                continue
            self._taking[i] += 1
            begun[i] = sidecar.refresh.remote(folder, command.round, wait_s)
        return begun

    def _too_often(self, sidecar: int, round_: int) -> str:
        """Its turn would come when the folder is gone, or half read."""
        return (
            f"merge {round_}: sidecar {sidecar} still takes the weights of {self._taking[sidecar]} "
            f"merges before it (refresh.keep_rounds={self._refresh.keep_rounds}): raise "
            "refresh.every_merges, or keep more rounds"
        )

    async def _end_refresh(
        self, sidecar: int, refreshing: Any, command: StartMerge, *, merged: bool
    ) -> None:
        """What a server serves now; one that does not serve the new weights ends the arm."""
        assert self._coordinator is not None
        done: Any = (await asyncio.gather(refreshing, return_exceptions=True))[0]
        self._taking[sidecar] -= 1
        if isinstance(done, BaseException):
            refused = isinstance(getattr(done, "cause", done), RefreshRefused)
            if merged or not refused:  # else there were no weights to take
                kind = "refresh_refused" if refused else "refresh_failed"
                self._fault(kind, f"merge {command.round}: {brief(done)}")
            return
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

    # Islands that are gone

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
        if not self._keeper.here:
            self._fault("island_lost", f"no island is left: {self._what_was_lost(outcome)}")

    def _let_go(self, outcome: Outcome) -> None:
        """The run does not wait for them."""
        task = asyncio.create_task(self._rounds.let_go(outcome))
        self._letting_go.add(task)  # or it might be collected on its way
        task.add_done_callback(self._letting_go.discard)

    def _what_was_lost(self, outcome: Outcome) -> str:
        """The one that is gone, not the peers that missed it."""
        gone = [i for i in outcome.dropped if self._keeper.members[i].gone]
        for island in (*gone, *sorted(outcome.dropped)):
            why = outcome.dropped[island]
            return f"island {island} lost in merge {outcome.round}: {why}"
        return f"merge {outcome.round}: {outcome.why}"
