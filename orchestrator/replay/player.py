"""One arm of one seed on the virtual clock: the plain Coordinator against the plant.

    servers to the tick --> Sample --> Coordinator --StartMerge--> window on every server
           ^                                                            |
           +------------------------ next tick -------------------------+

A Sample means what it means live (actors/coordinator/sampling.py): what came and what is in flight
before the tick, pressures of age 0, each island's progress.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from actors.coordinator.coordinator import Coordinator
from actors.events import ArmStarted, Decided, Event, HistoryTold, MergeFinished, StartMerge, Ticked
from orchestrator.arm_policy import arm_wrapper, control_starts, schedule_wrapper
from orchestrator.arms import study_corridor
from orchestrator.config import StudyConfig
from orchestrator.metrics import FORCED
from orchestrator.records import ArmSpec
from orchestrator.replay.islands import Pace, PacedIslands, make_pace, merge_parts
from orchestrator.replay.load import Answers, ReplayLoad, make_load
from orchestrator.replay.measure import Played
from orchestrator.replay.plant import PlantConfig, slow_windows
from orchestrator.replay.state import ServerState
from orchestrator.workload.history import told_history
from policies.corridor import Corridor
from policies.observation import Action, Reading, Sample, SidecarLoad

QUIET = Reading(value=0.0, age_s=0.0)  # network and checkpoint, outside a merge
BUSY = Reading(value=1.0, age_s=0.0)  # and inside one


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is the same in every arm of a seed."""

    study: StudyConfig
    seed: int
    plant: PlantConfig
    corridor: Corridor
    pace: Pace
    load: ReplayLoad
    history: HistoryTold | None


def make_scene(study: StudyConfig, *, seed: int, plant: PlantConfig, study_dir: Path) -> Scene:
    """ValueError for a study that cannot be replayed, or a seed that it has no traffic for."""
    corridor = study_corridor(study)
    return Scene(
        study=study,
        seed=seed,
        plant=plant,
        corridor=corridor,
        pace=make_pace(study, seed=seed, horizon_ticks=corridor.horizon_ticks),
        load=make_load(study, seed=seed, plant=plant, study_dir=study_dir),
        history=told_history(study, seed=seed, study_dir=study_dir),
    )


class Watcher(Protocol):
    """Who wants more than the figures: a record."""

    def tick(self, *, now_s: float, servers: Sequence[ServerState], merging: bool) -> None: ...

    def events(self, events: Sequence[Event]) -> None: ...

    def end(self, islands: PacedIslands) -> None: ...


def play(scene: Scene, arm: ArmSpec, *, watcher: Watcher | None = None) -> Played:
    """The arm tick by tick, from zero to the horizon, then until every request is answered."""
    run = _Run(scene, arm, watcher)
    for tick in range(scene.corridor.horizon_ticks + 1):
        run.tick(tick)
    return run.end()


class _Run:
    """The state of ``play``."""

    def __init__(self, scene: Scene, arm: ArmSpec, watcher: Watcher | None) -> None:
        self._scene = scene
        self._watcher = watcher
        self._tick_s = scene.study.tick_s
        self._full = scene.study.telemetry.serving_full_requests
        self._coordinator = Coordinator(
            arm_wrapper(scene.study, arm, seed=scene.seed, scheduled_at_s=_foreseen(scene, arm)),
            tick_s=self._tick_s,
            width_ticks=scene.corridor.width_ticks,
            horizon_ticks=scene.corridor.horizon_ticks,
            suppressed=arm.kind == "placebo",
        )
        self._servers = scene.load.servers()
        self._islands = PacedIslands(scene.pace)
        self._arrived = [0] * len(self._servers)
        self._merge: StartMerge | None = None  # that the islands are in
        self._merge_steps = 0
        self._starts: list[int] = []
        self._merges = self._forced = 0
        self._begin(arm)

    def _begin(self, arm: ArmSpec) -> None:
        coordinator, scene = self._coordinator, self._scene
        coordinator.handle(
            ArmStarted(
                event_id=coordinator.next_id(),
                at_s=0.0,
                arm=arm.label,
                seed=scene.seed,
                islands=tuple(range(scene.study.islands.count)),
            )
        )
        if scene.history is not None:
            coordinator.handle(replace(scene.history, event_id=coordinator.next_id()))

    def tick(self, tick: int) -> None:
        now_s, coordinator = tick * self._tick_s, self._coordinator
        for server in self._servers:
            server.advance(now_s)
        if self._merge is not None and now_s >= self._merge.end_s:
            self._finish_merge(self._merge)
        sample = self._sample(tick, now_s)
        if self._watcher is not None:
            self._watcher.tick(now_s=now_s, servers=self._servers, merging=self._merge is not None)
        commands = coordinator.handle(Ticked(event_id=coordinator.next_id(), sample=sample))
        events = coordinator.drain_log()
        for command in commands:
            if isinstance(command, StartMerge):
                self._start(command, events)
        if self._watcher is not None:
            self._watcher.events(events)

    def _sample(self, tick: int, now_s: float) -> Sample:
        loads = []
        arrivals = in_flight = 0
        for i, server in enumerate(self._servers):
            count = server.scheduled_so_far
            flying = count - server.done_so_far
            came = count - self._arrived[i]
            self._arrived[i] = count
            loads.append(SidecarLoad(sidecar=i, arrivals=came, in_flight=flying))
            arrivals += came
            in_flight += flying
        host = QUIET if self._merge is None else BUSY
        return Sample(
            tick=tick,
            now_s=now_s,
            arrivals=arrivals,
            in_flight=in_flight,
            # Running and waiting of any one sidecar are in flight for the client: never more.
            serving=Reading(value=min(1.0, in_flight / self._full), age_s=0.0),
            network=host,
            checkpoint=host,
            islands=self._islands.progress(tick, now_s=now_s),
            blind=False,
            by_sidecar=tuple(loads),
        )

    def _start(self, command: StartMerge, events: Sequence[Event]) -> None:
        scene = self._scene
        self._starts.append(command.tick)
        self._forced += any(
            e.decision.action is Action.MERGE and e.decision.reason in FORCED
            for e in events
            if isinstance(e, Decided)
        )
        if command.suppressed:
            return
        self._merges += 1
        self._merge = command
        edges, factors = slow_windows(
            scene.plant,
            seed=scene.seed,
            ticks=[command.tick],
            windows=np.array([[command.start_s, command.end_s]]),
        )
        for server in self._servers:
            server.add_windows(edges, factors)
        self._merge_steps = self._islands.pause(
            start_tick=command.tick,
            end_tick=command.tick + scene.corridor.width_ticks,
            round_=command.round,
        )

    def _finish_merge(self, command: StartMerge) -> None:
        self._merge = None
        self._coordinator.handle(
            MergeFinished(
                event_id=self._coordinator.next_id(),
                cause_id=command.cause_id,
                round=command.round,
                at_s=command.end_s,
                overran=False,
                parts=merge_parts(command, self._islands, steps=self._merge_steps)
                if self._watcher is not None
                else (),
            )
        )

    def end(self) -> Played:
        if self._watcher is not None:
            self._watcher.end(self._islands)
        return Played(
            answers=self._scene.load.end(self._servers),
            starts=tuple(self._starts),
            forced=self._forced,
            merges=self._merges,
        )


def play_schedule(scene: Scene, arm: ArmSpec) -> Played:
    """An arm whose windows are known beforehand (no_sync and the controls): no tick loop.

    The wrapper is asked at the starts alone, for it forces or forbids nothing else on a feasible
    schedule; a test finds ``play``'s bits.
    """
    if arm.kind == "no_sync":
        return Played(answers=_served(scene, ()), starts=(), forced=0, merges=0)
    starts = control_starts(scene.study, arm, seed=scene.seed, scheduled_at_s=_foreseen(scene, arm))
    marks = arm.kind == "placebo"
    return Played(
        answers=_served(scene, () if marks else starts),
        starts=starts,
        forced=_forced(scene, starts),
        merges=0 if marks else len(starts),
    )


def _foreseen(scene: Scene, arm: ArmSpec) -> list[float]:
    """The seed's arrivals, for the one arm that looks at them."""
    return scene.load.scheduled_at_s if arm.kind == "oracle" else []


def _served(scene: Scene, starts: Sequence[int]) -> Answers:
    tick_s, width = scene.study.tick_s, scene.corridor.width_ticks
    windows = np.array([(t * tick_s, (t + width) * tick_s) for t in starts]).reshape(-1, 2)
    edges, factors = slow_windows(scene.plant, seed=scene.seed, ticks=starts, windows=windows)
    servers = scene.load.servers()
    for server in servers:
        server.add_windows(edges, factors)
    return scene.load.end(servers)


def _forced(scene: Scene, starts: tuple[int, ...]) -> int:
    """How many of a schedule's starts the wrapper would have forced at that very tick."""
    wrapper, end_tick, forced = schedule_wrapper(scene.study, starts), 0, 0
    for done, tick in enumerate(starts):
        decision, _, _ = wrapper.decide(
            unknown_sample(tick, now_s=tick * scene.study.tick_s),
            merges_done=done,
            last_end_tick=end_tick,
            in_window=False,
        )
        assert decision.action is Action.MERGE, f"start {tick} of {starts} is none of the wrapper's"
        forced += decision.reason in FORCED
        end_tick = tick + scene.corridor.width_ticks
    return forced


def unknown_sample(tick: int, *, now_s: float) -> Sample:
    """A tick of which nothing is measured: a schedule looks at none of it."""
    return Sample(
        tick=tick,
        now_s=now_s,
        arrivals=None,
        in_flight=None,
        serving=None,
        network=None,
        checkpoint=None,
        islands=(),
        blind=False,
    )
