"""One arm of one seed on a stage: reset, settle, measure, and its run folder.

The driver is the only writer of the record. It polls; nothing is pushed at it.
"""

import time
from pathlib import Path
from typing import Any, Protocol

import ray

from actors.brief import brief, in_brief
from actors.deadlines import START
from actors.events import (
    Event,
    Faulted,
    HistoryTold,
    IslandDropped,
    IslandFinished,
    MergeFinished,
    Ticked,
)
from actors.load.request import Request
from actors.merge_messages import SERVED
from actors.serving.exported import INITIAL_ROUND
from actors.serving.log_tail import in_one_line
from orchestrator.arm_policy import arm_wrapper
from orchestrator.arms import study_corridor
from orchestrator.calibration.validity import MAX_BLIND_SHARE
from orchestrator.cluster.limits import FORM_LIMIT_S, end_limit_s, refresh_limit_s
from orchestrator.cluster.stage import RPC_TIMEOUT_S, Stage
from orchestrator.config import StudyConfig
from orchestrator.provenance import wall_clock_utc
from orchestrator.records import ArmSpec
from orchestrator.run_config import run_config
from orchestrator.rundir import RunWriter, run_hash, run_name
from orchestrator.signals import Interrupted, Signals

POLL_S = 0.5  # how often the driver fetches events and rows
START_DELAY_S = 1.0  # from the call to the run's zero: all actors get it in time
IDLE_TIMEOUT_S = 60.0  # the server's queue empties between arms


class Reporter(Protocol):
    """What a terminal shows while a study runs."""

    def say(self, line: str) -> None: ...
    def arm_started(self, arm: str, seed: int, index: int, total: int) -> None: ...
    def arm_progress(self, now_s: float, horizon_s: float, merges: int, finished: int) -> None: ...
    def arm_finished(self, status: str, why: str | None) -> None: ...


class ArmRun:
    """One arm of one seed, from reset to its folder."""

    def __init__(
        self,
        stage: Stage,
        study: StudyConfig,
        arm: ArmSpec,
        seed: int,
        requests: tuple[Request, ...],
        study_dir: Path,
        provenance: dict[str, Any],
        position: int,
        *,
        history: HistoryTold | None = None,
    ) -> None:
        self._stage = stage
        self._study = study
        self.arm = arm
        self.seed = seed
        self._requests = requests
        self._corridor = study_corridor(study)
        self._hash = run_hash(study, arm)
        self._folder = study_dir / run_name(arm, seed, self._hash)
        self._checkpoints = (self._folder / "checkpoint").resolve()  # actors have other folders
        self._provenance = provenance
        self._position = position
        self._history = history
        self.lost: set[str] = set()  # of island, server: what the next arm needs anew
        self._merges = 0
        self._finished = 0
        self._zero_s: float | None = None  # of the run clock, once the run has begun
        self._last_event_id = 0
        self._ticks = 0
        self._blind_ticks = 0
        self._marks: list[str] = []  # what makes a whole run invalid
        if study.islands.faults:
            self._marks.append("islands.faults plans faults: such a run shows what becomes of it")

    def run(self, signals: Signals, reporter: Reporter) -> tuple[str, str | None]:
        """Status and why; the folder is written whatever happens."""
        status: str = "partial"
        why: str | None = "the driver ended early"
        writer = None
        try:
            start_hashes = self._reset_islands()
            if not self.lost:
                self._serve_start()
            if not self.lost:
                self._settle()
            writer = self._open_writer(start_hashes)
            signals.graceful = True
            status, why = self._measure(writer, signals, reporter)
        finally:
            signals.graceful = False
            if writer is not None:
                writer.finish(status, why, max(0.0, self._now_s()), self._requests)
        if signals.asked is not None and status != "partial":
            raise Interrupted(signals.asked)
        return status, why

    def _reset_islands(self) -> list[str]:
        try:
            hashes: list[str] = ray.get(
                [
                    island.reset.remote(seed=self.seed, checkpoint_dir=str(self._checkpoints))
                    for island in self._stage.islands
                ],
                timeout=START.limit_s,  # burners and replicas are processes too
            )
        except ray.exceptions.RayError as error:
            self.lost.add("island")
            self._marks.append(f"island lost before the start: {brief(error)}")
            return []
        if len(set(hashes)) != 1:
            self._marks.append(f"islands start from different parameters: {sorted(set(hashes))}")
        self._form_group()
        return hashes

    def _form_group(self) -> None:
        """Before the run's clock begins: the first merge does not pay for it."""
        try:
            ray.get(self._stage.coordinator.form_group.remote(), timeout=FORM_LIMIT_S)
        except ray.exceptions.RayError as error:
            self.lost.add("island")
            self._marks.append(f"the islands formed no group: {brief(error)}")

    def _serve_start(self) -> None:
        """The servers begin an arm with the weights that its islands begin with."""
        if self._study.sidecars.refresh.kind == "none":
            return
        stage, served = self._stage, str(self._checkpoints / SERVED)
        try:
            folder = ray.get(
                stage.islands[0].export_start.remote(served, self.seed), timeout=RPC_TIMEOUT_S
            )
            asked = [s.refresh.remote(folder, INITIAL_ROUND) for s in stage.sidecars]
            ray.get(asked, timeout=refresh_limit_s(self._study) + RPC_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            self.lost.add("server")
            self._marks.append(f"the server did not take the arm's first weights: {brief(error)}")

    def _settle(self) -> None:
        """Request file, warm-up requests, then an empty queue: the same start for every arm."""
        stage = self._stage
        urls, models = [i.url for i in stage.infos], [i.model for i in stage.infos]
        try:
            ray.get(
                stage.load.prepare.remote(list(self._requests), urls, models),
                timeout=RPC_TIMEOUT_S,
            )
            ray.get(
                stage.load.warm_up.remote(self._study.sidecars.warmup_requests),
                timeout=IDLE_TIMEOUT_S,
            )
            ray.get(
                [s.wait_idle.remote(IDLE_TIMEOUT_S) for s in self._stage.sidecars],
                timeout=2 * IDLE_TIMEOUT_S,
            )
        except ray.exceptions.RayError as error:
            self.lost.add("server")
            self._marks.append(f"server not ready before the start: {brief(error)}")

    def _open_writer(self, start_hashes: list[str]) -> RunWriter:
        config = run_config(self._study, self.arm, seed=self.seed, requests=self._requests)
        infos = self._stage.infos
        provenance = {
            **self._provenance,
            "source": "live",
            "engine": infos[0].engine,
            "engine_version": infos[0].engine_version,
            "sidecars": [{"url": i.url, "model": i.model, "pid": i.pid} for i in infos],
            "started_at_utc": wall_clock_utc(),
            "block_position": self._position,
            "priority_warnings": self._stage.warnings,
            "clock_offsets_s": self._stage.offsets_s,
            "start_parameter_hashes": start_hashes,
        }
        return RunWriter(self._folder, config=config, provenance=provenance)

    def _now_s(self) -> float:
        """Run clock, also after a loss; 0 before the run has begun."""
        return 0.0 if self._zero_s is None else time.monotonic() - self._zero_s

    def _measure(
        self, writer: RunWriter, signals: Signals, reporter: Reporter
    ) -> tuple[str, str | None]:
        stage, offsets = self._stage, self._stage.offsets_s
        if self.lost:
            self._note(writer, f"{min(self.lost)}_lost", self._marks[-1])
            return "invalid", self._marks[-1]
        self._zero_s = zero_s = time.monotonic() + START_DELAY_S
        starts = [
            actor.start.remote(zero_s + offsets[f"island-{i}"])
            for i, actor in enumerate(stage.islands)
        ]
        starts.append(stage.telemetry.start.remote(zero_s + offsets["telemetry"]))
        load_ref = stage.load.run.remote(zero_s + offsets["load"])
        arm_ref = stage.coordinator.run_arm.remote(
            arm=self.arm.label,
            seed=self.seed,
            wrapper=arm_wrapper(
                self._study,
                self.arm,
                seed=self.seed,
                scheduled_at_s=[r.scheduled_at_s for r in self._requests],
            ),
            telemetry=self._study.telemetry,
            offsets_s=offsets,
            zero_monotonic_s=zero_s + offsets["coordinator"],
            tick_s=self._study.tick_s,
            width_ticks=self._corridor.width_ticks,
            horizon_ticks=self._corridor.horizon_ticks,
            suppressed=self.arm.kind == "placebo",
            history=self._history,
            served=str(self._checkpoints / SERVED),
        )
        self._follow(arm_ref, writer, signals, reporter, started=starts, zero_s=zero_s)
        status, why = self._arm_result(arm_ref)
        self._finish_load(load_ref, writer, aborted=None if status == "complete" else why)
        self._fetch(writer)
        self._finish_islands(writer)
        if self._blind_ticks > MAX_BLIND_SHARE * self._ticks:
            blind = f"telemetry blind at {self._blind_ticks} of {self._ticks} ticks"
            self._marks.append(blind + self._why_blind())
        if status == "complete" and self._marks:
            status, why = "invalid", "; ".join(self._marks)
        return status, why

    def _why_blind(self) -> str:
        """What the probes say now, to follow a statement; nothing when all read well again."""
        try:
            snapshot = ray.get(self._stage.telemetry.latest.remote(), timeout=RPC_TIMEOUT_S)
        except ray.exceptions.RayError:
            return ""
        return f": {in_brief(snapshot.error)}" if snapshot.error else ""

    def _follow(
        self,
        arm_ref: Any,
        writer: RunWriter,
        signals: Signals,
        reporter: Reporter,
        *,
        started: list[Any],
        zero_s: float,
    ) -> None:
        """Poll until the coordinator ends the arm; watch actors and server meanwhile."""
        told = False
        watch = list(started)
        alive = [s.alive.remote() for s in self._stage.sidecars]
        deadline_s = zero_s + self._study.horizon_s + end_limit_s(self._study)
        while True:
            done, _ = ray.wait([arm_ref], timeout=POLL_S)
            self._fetch(writer)
            reporter.arm_progress(
                self._now_s(), self._study.horizon_s, self._merges, self._finished
            )
            if done:
                return
            if time.monotonic() > deadline_s:
                self._tell("coordinator_lost", "the coordinator gave no end of the arm in time")
                return
            if signals.asked is not None and not told:
                told = True
                self._tell("interrupted", f"interrupted by {signals.asked}")
            watch = self._check_starts(watch)
            alive = self._check_servers(alive)

    def _check_starts(self, watch: list[Any]) -> list[Any]:
        ready, pending = ray.wait(watch, num_returns=len(watch), timeout=0) if watch else ([], [])
        for ref in ready:
            try:
                ray.get(ref)
            except ray.exceptions.RayError as error:
                self.lost.add("island")
                self._tell("island_lost", f"an island or probe failed to start: {brief(error)}")
        return list(pending)

    def _check_servers(self, alive: list[Any]) -> list[Any]:
        asked = []
        for i, ref in enumerate(alive):
            ready, _ = ray.wait([ref], timeout=0)
            if not ready:  # it may be taking new weights, one thing at a time
                asked.append(ref)
                continue
            problem = _problem(ref)
            if problem is not None and "server" not in self.lost:
                self.lost.add("server")
                self._tell("server_lost", in_one_line(problem))
            asked.append(self._stage.sidecars[i].alive.remote())
        if self._study.islands.elastic is None:  # else the next merge drops who is gone
            self._check_islands()
        return asked

    def _check_islands(self) -> None:
        for i, ref in enumerate([island.progress.remote() for island in self._stage.islands]):
            ready, _ = ray.wait([ref], timeout=0.05)
            problem = _problem(ref, quiet=True) if ready else None
            if problem is not None and "island" not in self.lost:
                self.lost.add("island")
                self._tell("island_lost", f"island {i} lost: {problem}")

    def _tell(self, kind: str, what: str) -> None:
        self._stage.coordinator.fault.remote(kind, what)

    def _arm_result(self, arm_ref: Any) -> tuple[str, str | None]:
        try:
            status, why = ray.get(arm_ref, timeout=RPC_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            return "invalid", f"coordinator lost: {brief(error)}"
        return status, why

    def _finish_islands(self, writer: RunWriter) -> None:
        for i, actor in enumerate(self._stage.islands):
            try:
                report = ray.get(actor.finish.remote(), timeout=RPC_TIMEOUT_S)
            except ray.exceptions.RayError as error:
                self.lost.add("island")
                self._marks.append(f"island {i} lost: {brief(error)}")
                continue
            writer.train_rows(report["rows"])
            self._last_event_id += 1
            writer.event(
                IslandFinished(
                    event_id=self._last_event_id,
                    at_s=self._now_s(),
                    island=i,
                    steps=report["steps"],
                    tokens=report["tokens"],
                    late_steps=report["late_steps"],
                    cpu_s=report["cpu_s"],
                    parameter_hash=report["parameter_hash"],
                    warnings=tuple(report["warnings"]),
                )
            )

    def _finish_load(self, load_ref: Any, writer: RunWriter, *, aborted: str | None) -> None:
        load = self._stage.load
        try:
            if aborted is not None:
                ray.get(load.abort.remote(aborted), timeout=RPC_TIMEOUT_S)
            limit_s = self._study.client.request_timeout_s + self._study.client.drain_timeout_s
            ray.get(load_ref, timeout=limit_s + RPC_TIMEOUT_S)
            writer.pressure_rows(
                ray.get(self._stage.telemetry.drain_rows.remote(), timeout=RPC_TIMEOUT_S)
            )
        except ray.exceptions.RayError as error:
            self.lost.add("server")
            self._marks.append(f"load client or telemetry lost: {brief(error)}")

    def _fetch(self, writer: RunWriter) -> None:
        """Events and finished rows since the last fetch, to disk."""
        try:
            events, rows = ray.get(
                [
                    self._stage.coordinator.drain_events.remote(),
                    self._stage.load.drain_rows.remote(),
                ],
                timeout=RPC_TIMEOUT_S,
            )
        except ray.exceptions.RayError as error:
            self.lost.add("server")
            self._marks.append(f"coordinator or load client lost: {brief(error)}")
            return
        for event in events:
            self._on_event(event)
            writer.event(event)
        self._finished += len(rows)
        writer.request_rows(rows)

    def _on_event(self, event: Event) -> None:
        self._last_event_id = event.event_id
        if isinstance(event, Ticked):
            self._ticks += 1
            self._blind_ticks += event.sample.blind
        if isinstance(event, Faulted):
            self._on_fault(event)
        if isinstance(event, IslandDropped):
            self.lost.add("island")  # it never joins again: the next arm has to start with all
            self._marks.append(
                f"island {event.island} was dropped from merge {event.round}: {event.why}"
            )
        if isinstance(event, MergeFinished):
            self._on_merge(event)

    def _on_fault(self, event: Faulted) -> None:
        if event.kind == "island_lost":
            self.lost.add("island")
        if event.kind == "refresh_failed":  # nobody knows what the server serves now
            self.lost.add("server")
        if event.kind != "interrupted":  # also what came after the horizon, as a server's new start
            self._marks.append(event.what)

    def _on_merge(self, event: MergeFinished) -> None:
        self._merges += 1
        if event.overran:
            longest = max(p.real_s for p in event.parts)
            self._marks.append(
                f"merge_overran: round {event.round} worked {longest:.2f} s in a window of "
                f"{self._study.merge.window_s:g} s"
            )
        hashes = {p.parameter_hash for p in event.parts}
        if len(hashes) > 1 and self._study.merge.leaves_islands_equal:
            self._marks.append(f"islands differ after merge {event.round}")

    def _note(self, writer: RunWriter, kind: str, what: str) -> None:
        self._last_event_id += 1
        writer.event(Faulted(event_id=self._last_event_id, at_s=0.0, kind=kind, what=what))


def _problem(ref: Any, *, quiet: bool = False) -> str | None:
    """None when the call answered well; else why not."""
    try:
        answer = ray.get(ref, timeout=RPC_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        return brief(error)
    return None if quiet else answer
