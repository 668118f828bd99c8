"""Whole run folders of a replay, which gate, redecide, report and track read like live ones.

Every arm goes tick by tick here, so that its events hold what it decided from. Latencies of single
tokens are not modelled: itl_s is empty.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.events import Event, IslandFinished
from actors.load.request import Outcome, RequestRow
from actors.serving.metrics import ServerGauges
from actors.telemetry.pressure import serving_pressure
from orchestrator.arms import block_order
from orchestrator.provenance import study_provenance, wall_clock_utc
from orchestrator.records import ArmSpec
from orchestrator.replay.block import replayed_arms
from orchestrator.replay.islands import PARAMETER_HASH, PacedIslands
from orchestrator.replay.load import Answers
from orchestrator.replay.player import Scene, make_scene, play
from orchestrator.replay.scale import ReplayJob, replay_facts
from orchestrator.replay.state import ServerState
from orchestrator.run_config import run_config
from orchestrator.rundir import RunWriter, existing_run, run_name

SIMULATED = "replay: no island trained; steps are paced and the loss is a stated curve"


def write_folders(job: ReplayJob, folder: Path) -> int:
    """A folder for each arm and seed of the replay; complete identical ones stay. How many.

    ValueError where another run holds a place.
    """
    base = {**study_provenance(), **replay_facts(job.plant)}
    labels = {arm.label for arm in replayed_arms(job.study, job.arms)}
    written = 0
    for seed in job.study.seeds:
        scene = make_scene(job.study, seed=seed, plant=job.plant, study_dir=job.study_dir)
        for position, arm in enumerate(block_order(job.study, seed)):
            if arm.label in labels:
                write_folder(scene, arm, folder, provenance=base, position=position)
                written += 1
    return written


def write_folder(
    scene: Scene, arm: ArmSpec, study_dir: Path, *, provenance: dict[str, Any], position: int
) -> None:
    """One run, unless the complete identical one is there."""
    study, seed = scene.study, scene.seed
    recorder = Recorder(scene)
    answers = play(scene, arm, watcher=recorder).answers
    same = existing_run(
        study_dir,
        arm,
        seed,
        study,
        request_hash=answers.request_hash,
        inputs={},  # no text is trained on, no model is loaded
    )
    if same is not None:
        return
    config = run_config(study, arm, seed=seed, requests=answers.requests)
    writer = RunWriter(
        study_dir / run_name(arm, seed, config["run_hash"]),
        config=config,
        provenance={
            **provenance,
            "started_at_utc": wall_clock_utc(),
            "block_position": position,
        },
    )
    for event in recorder.all_events():
        writer.event(event)
    writer.request_rows(request_rows(answers))
    writer.train_rows(recorder.train)
    writer.pressure_rows(recorder.pressure)
    writer.finish("complete", None, study.horizon_s, answers.requests)


class Recorder:
    """Watches a run and keeps what its folder holds."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._full = scene.study.telemetry.serving_full_requests
        self._events: list[Event] = []
        self._ends: list[Event] = []
        self.train: list[dict[str, Any]] = []
        self.pressure: list[dict[str, Any]] = []

    def all_events(self) -> list[Event]:
        """In order, the islands' ends last."""
        return self._events + self._ends

    def tick(self, *, now_s: float, servers: Sequence[ServerState], merging: bool) -> None:
        """A row of pressure.parquet; rates in bytes and the cache are not modelled."""
        gauges = [ServerGauges(running=s.running, waiting=s.waiting, kv_usage=0.0) for s in servers]
        host = 1.0 if merging else 0.0
        self.pressure.append(
            {
                "at_s": now_s,
                "running": sum(g.running for g in gauges),
                "waiting": sum(g.waiting for g in gauges),
                "kv_usage": None,
                "serving": serving_pressure(gauges, full_requests=self._full),
                "network": host,
                "checkpoint": host,
                "network_bytes_per_s": None,
                "checkpoint_bytes_per_s": None,
                "blind": False,
            }
        )

    def events(self, events: Sequence[Event]) -> None:
        self._events += events

    def end(self, islands: PacedIslands) -> None:
        """Training rows, and what each island says at the end of an arm."""
        self.train = list(islands.train_rows(horizon_ticks=self._scene.corridor.horizon_ticks))
        steps, tokens = islands.totals()
        last_id = self._events[-1].event_id
        self._ends = [
            IslandFinished(
                event_id=last_id + 1 + i,
                at_s=self._scene.study.horizon_s,
                island=i,
                steps=steps,
                tokens=tokens,
                late_steps=0,
                cpu_s=0.0,
                parameter_hash=PARAMETER_HASH,
                warnings=(SIMULATED,),
            )
            for i in range(self._scene.study.islands.count)
        ]


def request_rows(answers: Answers) -> list[RequestRow]:
    """One row a request: sent when due, answered with just the tokens asked for."""
    return [
        RequestRow(
            request_id=request.request_id,
            sidecar=request.sidecar,
            scheduled_at_s=request.scheduled_at_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            prompt_seed=request.prompt_seed,
            sent_at_s=request.scheduled_at_s,
            first_token_at_s=first_s,
            done_at_s=done_s,
            completion_tokens=request.output_tokens,
            outcome=Outcome.OK,
            error=None,
            itl_s=(),
        )
        for request, first_s, done_s in zip(
            answers.requests,
            answers.first_token_at_s.tolist(),
            answers.done_at_s.tolist(),
            strict=True,
        )
    ]
