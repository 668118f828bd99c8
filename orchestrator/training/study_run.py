"""A study on the step clock: which runs are missing, which go on, and what became of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from actors.events import HistoryTold
from actors.load.request import Request
from orchestrator.cluster.stage import connect, disconnect
from orchestrator.cluster.step_run import StepArm, StepStage
from orchestrator.config import StudyConfig
from orchestrator.endings import StageFailed
from orchestrator.inputs import input_fingerprints
from orchestrator.provenance import study_provenance, wall_clock_utc
from orchestrator.record_files import RecordFailed, read_json
from orchestrator.records import ArmSpec
from orchestrator.run_config import run_config
from orchestrator.rundir import (
    check_same_inputs,
    check_unedited,
    refuse_other_config,
    run_hash,
    run_name,
    write_study,
)
from orchestrator.signals import Interrupted, Signals
from orchestrator.training.manifest import as_json, read_manifest
from orchestrator.training.marks import run_marks
from orchestrator.training.record import go_on, read_step_run, same_config
from orchestrator.training.step_plan import step_arms, step_plan
from orchestrator.workload.requests import request_hash

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


@dataclass(frozen=True, kw_only=True)
class _Missing:
    """A run that is to be trained, or to go on."""

    seed: int
    arm: ArmSpec
    folder: Path


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

    ``only``: a run folder; the others stay as they are. ValueError when a run of another config,
    trace or folder holds a place: nothing was trained.
    """
    outcome = StepOutcome(study_dir=study_dir)
    inputs = input_fingerprints(study)
    todo: list[_Missing] = []
    for seed in study.seeds:
        for arm in step_arms(study, seed):
            folder = study_dir / run_name(arm, seed, run_hash(study, arm))
            if only is not None and folder.name != only.name:
                continue
            if _is_complete(study, arm, seed, requests[seed], folder, inputs=inputs):
                outcome.reused += 1
            else:
                todo.append(_Missing(seed=seed, arm=arm, folder=folder))
    if only is not None and not todo and not outcome.reused:
        raise ValueError(f"{only}: is no run of study {study.study!r} as it stands in study.json")
    if outcome.reused:
        say(f"{outcome.reused} complete runs reused; --out NEW trains again")
    write_study(study_dir, study)
    if most_runs is not None:
        outcome.left = max(0, len(todo) - most_runs)
        todo = todo[:most_runs]
    if todo:
        runs = _Runs(
            study, requests, histories, inputs, outcome=outcome, say=say, warn=warn, signals=signals
        )
        runs.all_of(todo)
    return outcome


class _Runs:
    """The missing runs, one after another, on one stage while nothing breaks."""

    def __init__(
        self,
        study: StudyConfig,
        requests: Mapping[int, tuple[Request, ...]],
        histories: Mapping[int, HistoryTold | None],
        inputs: Mapping[str, str],
        *,
        outcome: StepOutcome,
        say: Say,
        warn: Say,
        signals: Signals,
    ) -> None:
        self._study = study
        self._requests = requests
        self._histories = histories
        self._inputs = inputs
        self._outcome = outcome
        self._say = say
        self._warn = warn
        self._signals = signals
        self._stage = StepStage(study, say=say)

    def all_of(self, todo: list[_Missing]) -> None:
        """Until one was interrupted, or failed where the study stops then."""
        outcome, signals = self._outcome, self._signals
        try:
            connect()
            signals.take()  # Ray has set its own handlers
            self._stage.start()
            base = {**study_provenance(), "inputs": self._inputs}
            for index, missing in enumerate(todo):
                name = f"[{index + 1}/{len(todo)}] seed {missing.seed} {missing.arm.label}"
                self._say(f"{name}: started")
                status, why = self._one(missing, base)
                self._say(f"{name}: {status}")
                if status == "complete":
                    self._tell_marks(missing)
                if not self._goes_on(missing, status, why, last=index == len(todo) - 1):
                    break
        except Interrupted as signal_name:
            outcome.interrupted = True
            outcome.faults.append(f"interrupted by {signal_name}")
        except (StageFailed, RecordFailed) as error:
            outcome.faults.append(str(error))
        finally:
            signals.held = True
            self._stage.stop()
            disconnect()

    def _tell_marks(self, missing: _Missing) -> None:
        """What the table does not show."""
        for line in run_marks(read_step_run(missing.folder).events):
            self._warn(f"{missing.arm.label} seed {missing.seed}: {line}")

    def _goes_on(self, missing: _Missing, status: str, why: str | None, *, last: bool) -> bool:
        outcome = self._outcome
        if status == "complete":
            outcome.complete += 1
        else:
            label = f"{missing.arm.label} seed {missing.seed}"
            outcome.faults.append(f"{label}: {status}: {why}")
        if status == "partial" or self._signals.asked is not None:
            outcome.interrupted = True
            return False
        if status == "complete" or last:
            return True
        if self._study.on_fault == "stop":
            return False
        self._stage.stop()
        self._stage = StepStage(self._study, say=self._say)
        self._stage.start()
        return True

    def _one(self, missing: _Missing, base: Mapping[str, object]) -> tuple[str, str | None]:
        study, arm, seed, folder = self._study, missing.arm, missing.seed, missing.folder
        requests = self._requests[seed]
        resume = None
        begun = (folder / "config.json").exists()
        if begun:
            resume = go_on(folder, warn=self._warn)
        if resume is not None:
            self._outcome.resumed += 1
            where = as_json(read_manifest(folder / resume.checkpoint.folder))
            self._say(f"  goes on after merge {where['round']} (tick {where['tick']})")
        elif begun:
            self._say("  begins anew: no whole checkpoint is there")
        plan = step_plan(
            study,
            arm,
            seed=seed,
            requests=requests,
            history=self._histories[seed],
            folder=str(folder.resolve()),
        )
        run = StepArm(
            self._stage,
            study,
            arm,
            plan,
            requests_at_s=[r.scheduled_at_s for r in requests],
            say=self._say,
            warn=self._warn,
        )
        provenance = {
            **base,
            "source": "training",
            "engine": "none",
            "engine_version": None,
            "started_at_utc": wall_clock_utc(),
        }
        config = run_config(study, arm, seed=seed, requests=requests)
        return run.run(self._signals, config=config, provenance=provenance, resume=resume)


def _is_complete(
    study: StudyConfig,
    arm: ArmSpec,
    seed: int,
    requests: tuple[Request, ...],
    folder: Path,
    *,
    inputs: Mapping[str, str],
) -> bool:
    """The run is there to its end. ValueError when another run holds its place."""
    refuse_other_config(folder.parent, arm, seed, want=run_hash(study, arm))
    if not (folder / "config.json").exists():
        return False
    check_same_inputs(
        folder,
        arm,
        seed,
        config=read_json(folder / "config.json"),
        provenance=read_json(folder / "provenance.json"),
        request_hash=request_hash(requests),
        inputs=inputs,
    )
    if not same_config(folder, run_config(study, arm, seed=seed, requests=requests)):
        raise ValueError(
            f"{folder}: its config.json is another run's; give the folder its name back, give "
            "another --out, or move it away"
        )
    check_unedited(folder / "config.json", read_json(folder / "config.json"))
    return read_step_run(folder).status == "complete"
