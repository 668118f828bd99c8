"""Runs on the step clock on Ray: islands and a coordinator, no server; the driver keeps the record.

A coordinator that is lost begins anew from the newest checkpoint, a driver that was killed does so
when the run is asked for again; an island that is lost is started by Ray and comes back by itself.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.brief import brief
from actors.coordinator.step_clock import ResumeFrom, StepPlan
from actors.coordinator.step_clock_actor import StepClockActor
from actors.deadlines import ANSWER, RESTART, START
from actors.events import IslandFinished
from actors.island.step_island_actor import StepIslandActor
from orchestrator.arm_policy import arm_wrapper
from orchestrator.cluster.limits import islands_limit_s
from orchestrator.cluster.nodes import cluster_nodes
from orchestrator.cluster.placement import Placement, island_placement, why_infeasible
from orchestrator.cluster.stage import connect, islands_are_there
from orchestrator.config import StudyConfig
from orchestrator.endings import StageFailed
from orchestrator.record_files import write_json
from orchestrator.records import ArmSpec
from orchestrator.signals import Signals
from orchestrator.training.record import StepWriter, go_on
from policies.wrapper import CorridorWrapper

POLL_S = 0.25  # how often the driver fetches events and rows
JOIN_POLL_S = 5.0  # how often it looks whether the cluster has room for an island more
MOST_COORDINATORS = 5  # in one arm: when the fifth is lost, it is no accident
LOST = (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError)  # of the coordinator
_CUT = ("partial", "the driver ended early")
Say = Callable[[str], None]


class StepStage:
    """The islands of a study, for all its arms."""

    def __init__(self, study: StudyConfig, *, say: Say) -> None:
        self._study = study
        self._say = say
        self._placement: Placement = island_placement(study)
        self._group: PlacementGroup | None = None
        self.islands: dict[int, Any] = {}

    def start(self) -> None:
        """Ray, a placement group, the islands; ValueError when they fit nowhere."""
        connect()
        problem = why_infeasible(self._placement, cluster_nodes())
        if problem is not None:
            raise ValueError(f"resources: {problem}")
        limit_s = self._study.resources.ready_timeout_s
        self._group = placement_group(
            list(self._placement.bundles), strategy=self._placement.strategy
        )
        if not self._group.wait(limit_s):
            raise StageFailed(
                f"placement group of {len(self._placement.bundles)} islands not ready within "
                f"{limit_s:g} s: other jobs hold the resources; wait for them, or raise "
                "resources.ready_timeout_s"
            )
        for island in range(self._study.islands.count):
            self.islands[island] = self._island(island, self._in_bundle(island))
        self._await_islands()
        self._say(islands_are_there(len(self.islands)))

    def _island(self, island: int, strategy: Any) -> Any:
        config = self._study.islands
        return StepIslandActor.options(  # type: ignore[attr-defined]
            num_cpus=config.num_cpus,
            num_gpus=config.num_gpus,
            scheduling_strategy=strategy,
            max_restarts=0 if config.elastic is None else -1,
        ).remote(config, self._study.merge, island)

    def _await_islands(self) -> None:
        calls = [actor.process_id.remote() for actor in self.islands.values()]
        try:
            ray.get(calls, timeout=islands_limit_s(self._study))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ValueError):
                raise error.cause from None
            raise StageFailed(f"an island failed to start: {brief(error)}") from error
        except ray.exceptions.RayError as error:
            raise StageFailed(f"an island did not start: {brief(error)}") from error

    def one_more(self) -> tuple[int, Any] | None:
        """An island beyond the study's count, where text and the cluster have room for it."""
        config = self._study.islands
        number = len(self.islands)
        if config.elastic is None or number >= (config.shards or config.count):
            return None
        free = ray.available_resources()
        if free.get("CPU", 0.0) < config.num_cpus or free.get("GPU", 0.0) < config.num_gpus:
            return None
        self.islands[number] = self._island(number, "DEFAULT")
        self._say(f"island {number} joins")
        return number, self.islands[number]

    def process_ids(self) -> dict[str, int]:
        """Of the islands that answer."""
        found = {}
        for island, actor in self.islands.items():
            with contextlib.suppress(ray.exceptions.RayError):
                found[f"island-{island}"] = ray.get(
                    actor.process_id.remote(), timeout=ANSWER.limit_s
                )
        return found

    def stop(self) -> None:
        """End everything; never raises for what is already gone."""
        for actor in self.islands.values():
            ray.kill(actor)
        self.islands = {}
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _in_bundle(self, index: int) -> PlacementGroupSchedulingStrategy:
        assert self._group is not None
        return PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=index
        )


class StepArm:
    """One arm of one seed, from its start or its newest checkpoint to its end."""

    def __init__(
        self,
        stage: StepStage,
        study: StudyConfig,
        arm: ArmSpec,
        plan: StepPlan,
        *,
        requests_at_s: list[float],
        say: Say,
        warn: Say,
    ) -> None:
        self._stage = stage
        self._study = study
        self._arm = arm
        self._plan = plan
        self._requests_at_s = requests_at_s
        self._say = say
        self._warn = warn
        self._folder = Path(plan.folder)
        self._coordinator: Any = None
        self._looked_at_s = 0.0

    def run(
        self,
        signals: Signals,
        *,
        config: Mapping[str, Any],
        provenance: Mapping[str, Any],
        resume: ResumeFrom | None,
    ) -> tuple[str, str | None]:
        """Status and why; the folder is written whatever happens."""
        status: str
        why: str | None
        status, why = _CUT
        writer = self._writer(resume)
        if resume is None:
            writer.begin(config=config, provenance=provenance)
        signals.graceful = True
        try:
            for attempt in range(1, MOST_COORDINATORS + 1):
                try:
                    status, why = self._follow(writer, signals, resume)
                    break
                except LOST as error:
                    lost = f"coordinator lost: {brief(error)}"
                    self._end_coordinator()
                    writer.close()
                    if signals.asked is not None:
                        status, why = "partial", f"interrupted by {signals.asked}, {lost}"
                        break
                    if attempt == MOST_COORDINATORS:
                        status, why = "invalid", lost
                        break
                    resume = go_on(self._folder, warn=self._warn)
                    begins = "the start" if resume is None else f"merge {resume.checkpoint.round}"
                    self._warn(f"{lost}; going on from {begins}")
                    writer = self._writer(resume)
            if status == "complete":
                status, why = self._finish_islands(writer)
        finally:
            signals.graceful = False
            self._end_coordinator()
            if status == "partial":  # it may go on: nothing says that it has ended
                writer.close()
            else:
                writer.finish(status, why, self._plan.horizon_ticks * self._plan.tick_s)
        return status, why

    def _writer(self, resume: ResumeFrom | None) -> StepWriter:
        after = 0 if resume is None else resume.checkpoint.event_id
        keep = self._study.merge.checkpoint_keep
        return StepWriter(self._folder, keep=keep, after=after)

    def _end_coordinator(self) -> None:
        """One that only seemed lost must not go on beside its successor."""
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            ray.kill(coordinator)

    def _wrapper(self) -> CorridorWrapper | None:
        return arm_wrapper(
            self._study, self._arm, seed=self._plan.seed, scheduled_at_s=self._requests_at_s
        )

    def _follow(
        self, writer: StepWriter, signals: Signals, resume: ResumeFrom | None
    ) -> tuple[str, str | None]:
        """Until the coordinator ends the arm; one of LOST when it is gone or gives no answer."""
        options = StepClockActor.options(num_cpus=0)  # type: ignore[attr-defined]
        self._coordinator = coordinator = options.remote()
        members = self._members()
        running = coordinator.run.remote(
            handles=members,
            wrapper=self._wrapper(),
            plan=self._plan,
            islands=self._study.islands,
            merge=self._study.merge,
            resume=resume,
        )
        self._write_process_ids(coordinator)
        told = False
        while True:
            done, _ = ray.wait([running], timeout=POLL_S)
            writer.take(*ray.get(coordinator.drain.remote(), timeout=RESTART.limit_s))
            if done:
                try:
                    status, why = ray.get(running)
                except ray.exceptions.RayTaskError as error:
                    return "invalid", brief(error)
                writer.take(*ray.get(coordinator.drain.remote(), timeout=ANSWER.limit_s))
                return status, why
            if signals.asked is not None and not told:
                told = True
                ray.get(
                    coordinator.fault.remote("interrupted", f"interrupted by {signals.asked}"),
                    timeout=ANSWER.limit_s,
                )
            self._let_join(coordinator)

    def _members(self) -> dict[int, Any]:
        if self._plan.data_parallel:
            return {0: self._stage.islands[0]}
        return dict(self._stage.islands)

    def _write_process_ids(self, coordinator: Any) -> None:
        """For a person (or a fault test) who wants to look at, or end, one of them."""
        ids = {"driver": os.getpid(), **self._stage.process_ids()}
        ids["coordinator"] = ray.get(coordinator.process_id.remote(), timeout=START.limit_s)
        write_json(self._folder / "processes.json", ids)

    def _let_join(self, coordinator: Any) -> None:
        now_s = time.monotonic()
        if self._plan.data_parallel or now_s - self._looked_at_s < JOIN_POLL_S:
            return
        self._looked_at_s = now_s
        joined = self._stage.one_more()
        if joined is not None:
            ray.get(coordinator.join.remote(*joined), timeout=ANSWER.limit_s)

    def _finish_islands(self, writer: StepWriter) -> tuple[str, str | None]:
        """The last rows and totals."""
        at_s = self._plan.horizon_ticks * self._plan.tick_s
        for island, actor in self._members().items():
            try:
                report = ray.get(actor.summary.remote(), timeout=ANSWER.limit_s)
            except ray.exceptions.RayError as error:
                if self._study.islands.elastic is None:
                    return "invalid", f"island {island} lost: {brief(error)}"
                self._warn(f"island {island} gave no summary: {brief(error)}")
                continue
            writer.train_rows(report["rows"])
            writer.event(
                IslandFinished(
                    event_id=writer.next_id(),
                    at_s=at_s,
                    island=island,
                    steps=report["steps"],
                    tokens=report["tokens"],
                    late_steps=0,
                    cpu_s=report["cpu_s"],
                    parameter_hash=report["parameter_hash"],
                    warnings=(),
                )
            )
        return "complete", None
