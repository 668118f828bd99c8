"""Composition root of live runs: which runs are missing, and what became of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import ray

from actors.events import HistoryTold
from actors.load.request import Request
from actors.serving.engine import ServerFailed
from orchestrator.arms import block_order
from orchestrator.cluster.arm_run import ArmRun, Reporter
from orchestrator.cluster.stage import Stage, connect
from orchestrator.config import StudyConfig
from orchestrator.endings import StageFailed
from orchestrator.inputs import input_fingerprints
from orchestrator.provenance import study_provenance
from orchestrator.records import ArmSpec
from orchestrator.rundir import RecordFailed, existing_run, write_study
from orchestrator.signals import Interrupted, Signals
from orchestrator.workload.requests import request_hash


@dataclass
class StudyOutcome:
    """What happened to a study's runs."""

    study_dir: Path
    complete: int = 0
    reused: int = 0
    begun: bool = False
    faults: list[str] = field(default_factory=list)
    interrupted: bool = False
    left: int = 0  # runs put off by ``most_runs``


def run_study(
    study: StudyConfig,
    requests: dict[int, tuple[Request, ...]],
    study_dir: Path,
    *,
    histories: Mapping[int, HistoryTold | None],
    reporter: Reporter,
    signals: Signals,
    most_runs: int | None = None,
) -> StudyOutcome:
    """Run what is missing of a study; every run folder is complete, invalid or partial.

    ``most_runs``: so many of them at most, seed by seed; the others stay missing.

    ValueError when a run of another config, trace or folder holds a place: nothing was measured.
    """
    outcome = StudyOutcome(study_dir=study_dir)
    todo: list[tuple[int, int, ArmSpec]] = []
    inputs = input_fingerprints(study)
    for seed in study.seeds:
        asked = request_hash(requests[seed])
        for position, arm in enumerate(block_order(study, seed)):
            same = existing_run(study_dir, arm, seed, study, request_hash=asked, inputs=inputs)
            if same is not None:
                outcome.reused += 1
            else:
                todo.append((seed, position, arm))
    if outcome.reused:
        reporter.say(f"{outcome.reused} complete identical runs reused; --out NEW measures again")
    write_study(study_dir, study)
    if most_runs is not None:
        outcome.left = max(0, len(todo) - most_runs)
        todo = todo[:most_runs]
    if not todo:
        return outcome
    connect()
    signals.take()  # Ray has set its own handlers
    stage = Stage(study, study_dir / "logs", say=reporter.say)
    try:
        stage.start()
        base = {**study_provenance(), "inputs": inputs}
        for index, (seed, position, arm) in enumerate(todo):
            outcome.begun = True
            reporter.arm_started(arm.label, seed, index, len(todo))
            run = ArmRun(
                stage,
                study,
                arm,
                seed,
                requests[seed],
                study_dir,
                base,
                position,
                history=histories[seed],
            )
            status, why = run.run(signals, reporter)
            reporter.arm_finished(status, why)
            if not _go_on(outcome, stage, study, run, status, why, last=index == len(todo) - 1):
                break
    except Interrupted as signal_name:
        outcome.interrupted = True
        outcome.faults.append(f"interrupted by {signal_name}")
    except (ServerFailed, StageFailed, RecordFailed) as error:
        if not outcome.begun:
            raise
        outcome.faults.append(str(error))  # what was recorded before is judged all the same
    finally:
        signals.held = True
        stage.stop()
        ray.shutdown()
    return outcome


def _go_on(
    outcome: StudyOutcome,
    stage: Stage,
    study: StudyConfig,
    run: "ArmRun",
    status: str,
    why: str | None,
    *,
    last: bool,
) -> bool:
    if status == "complete":
        outcome.complete += 1
        return True
    outcome.faults.append(f"{run.arm.label} seed {run.seed}: {status}: {why}")
    if status == "partial":
        outcome.interrupted = True
        return False
    if study.on_fault == "stop":
        return False
    if not last and run.lost:
        stage.restart(run.lost)
    return True
