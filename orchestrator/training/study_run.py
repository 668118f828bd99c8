"""A study on the step clock: which runs are missing, which go on, and what became of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import ray

from actors.events import HistoryTold
from actors.load.request import Request
from orchestrator.cluster.step_run import StepArm, StepStage
from orchestrator.config import StudyConfig
from orchestrator.endings import StageFailed
from orchestrator.inputs import input_fingerprints
from orchestrator.provenance import study_provenance, wall_clock_utc
from orchestrator.record_files import RecordFailed
from orchestrator.records import ArmSpec
from orchestrator.run_config import run_config
from orchestrator.rundir import run_hash, run_name, write_study
from orchestrator.signals import Interrupted, Signals
from orchestrator.training.manifest import as_json, read_manifest
from orchestrator.training.record import go_on, read_step_run, same_config
from orchestrator.training.step_plan import step_arms, step_plan

Say = Callable[[str], None]


@dataclass
class StepOutcome:
    """What happened to a study's runs."""

    study_dir: Path
    complete: int = 0
    reused: int = 0
    resumed: int = 0
    faults: list[str] = field(default_factory=list)
    interrupted: bool = False
    left: int = 0


def run_steps(
    study: StudyConfig,
    requests: Mapping[int, tuple[Request, ...]],
    study_dir: Path,
    *,
    histories: Mapping[int, HistoryTold | None],
    say: Say,
    warn: Say,
    signals: Signals,
    most_runs: int | None = None,
    only: Path | None = None,
) -> StepOutcome:
    """Run what is missing; a run that was killed goes on from its newest whole checkpoint.

    ``only``: a run folder; the others stay as they are.
    """
    outcome = StepOutcome(study_dir=study_dir)
    todo: list[tuple[int, ArmSpec, Path]] = []
    for seed in study.seeds:
        for arm in step_arms(study, seed):
            folder = study_dir / run_name(arm, seed, run_hash(study, arm))
            if only is not None and folder.name != only.name:
                continue
            if _is_complete(study, arm, seed, requests[seed], folder):
                outcome.reused += 1
            else:
                todo.append((seed, arm, folder))
    if only is not None and not todo and not outcome.reused:
        raise ValueError(f"{only}: is no run of study {study.study!r} as it stands in study.json")
    if outcome.reused:
        say(f"{outcome.reused} complete runs reused; --out NEW trains again")
    write_study(study_dir, study)
    if most_runs is not None:
        outcome.left = max(0, len(todo) - most_runs)
        todo = todo[:most_runs]
    if not todo:
        return outcome
    stage = StepStage(study, say=say)
    try:
        stage.start()
        signals.take()  # Ray has set its own handlers
        base = {**study_provenance(), "inputs": input_fingerprints(study)}
        for index, (seed, arm, folder) in enumerate(todo):
            say(f"[{index + 1}/{len(todo)}] seed {seed} {arm.label}: started")
            status, why = _run_one(
                stage,
                study,
                arm,
                seed,
                requests[seed],
                histories[seed],
                folder,
                base,
                outcome=outcome,
                say=say,
                warn=warn,
                signals=signals,
            )
            say(f"[{index + 1}/{len(todo)}] seed {seed} {arm.label}: {status}")
            if status == "complete":
                outcome.complete += 1
                continue
            outcome.faults.append(f"{arm.label} seed {seed}: {status}: {why}")
            if status == "partial" or signals.asked is not None:
                outcome.interrupted = True
                break
            if study.on_fault == "stop":
                break
            stage.stop()
            stage = StepStage(study, say=say)
            stage.start()
    except Interrupted as signal_name:
        outcome.interrupted = True
        outcome.faults.append(f"interrupted by {signal_name}")
    except (StageFailed, RecordFailed) as error:
        outcome.faults.append(str(error))
    finally:
        signals.held = True
        stage.stop()
        ray.shutdown()
    return outcome


def _run_one(
    stage: StepStage,
    study: StudyConfig,
    arm: ArmSpec,
    seed: int,
    requests: tuple[Request, ...],
    history: HistoryTold | None,
    folder: Path,
    base: Mapping[str, object],
    *,
    outcome: StepOutcome,
    say: Say,
    warn: Say,
    signals: Signals,
) -> tuple[str, str | None]:
    resume = None
    if (folder / "config.json").exists():
        resume = go_on(folder, warn=warn)
        if resume is not None:
            outcome.resumed += 1
            where = as_json(read_manifest(folder / resume.checkpoint.folder))
            say(f"  goes on after merge {where['round']} (tick {where['tick']})")
    plan = step_plan(
        study,
        arm,
        seed=seed,
        requests=requests,
        history=history,
        folder=str(folder.resolve()),
    )
    run = StepArm(
        stage,
        study,
        arm,
        plan,
        requests_at_s=[r.scheduled_at_s for r in requests],
        say=say,
        warn=warn,
    )
    provenance = {
        **base,
        "source": "training",
        "engine": "none",
        "engine_version": None,
        "started_at_utc": wall_clock_utc(),
    }
    config = run_config(study, arm, seed=seed, requests=requests)
    return run.run(signals, config=config, provenance=provenance, resume=resume)


def _is_complete(
    study: StudyConfig, arm: ArmSpec, seed: int, requests: tuple[Request, ...], folder: Path
) -> bool:
    """The run is there to its end. ValueError when another run holds its place."""
    if not (folder / "config.json").exists():
        return False
    if not same_config(folder, run_config(study, arm, seed=seed, requests=requests)):
        raise ValueError(
            f"{folder}: holds a run of another config or of other requests; give another --out, or "
            "move the folder away"
        )
    return read_step_run(folder).status == "complete"
