"""A whole sweep: check the input, play the tuning blocks, judge the best on held-out ones, write.

Only this process writes. Killed at any point, ``resume`` plays what lacks and ends equal.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.calibration.verdict import Judgement
from orchestrator.config import StudyConfig
from orchestrator.ray_address import names_cluster
from orchestrator.replay.calibrated import load_plant
from orchestrator.replay.judge import judge_replay_folder
from orchestrator.replay.scale import ReplayJob, Spread, in_this_process, run_replay
from orchestrator.replay.staged import PLANT
from orchestrator.signals import Signals
from orchestrator.study import load_study
from orchestrator.sweep.blocks import check_disjoint, loads_of
from orchestrator.sweep.config import SpaceConfig, load_space
from orchestrator.sweep.figures import Bench, ReplayEvaluator, known_controls
from orchestrator.sweep.folder import begin, drop_words, next_attempt, write_tables
from orchestrator.sweep.here import Plan, play_here
from orchestrator.sweep.importance import importances
from orchestrator.sweep.judging import JudgeFolder, check_unspent, judge_held_out
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.page import write_markdown, write_page
from orchestrator.sweep.plots import plot_importance, plot_response
from orchestrator.sweep.progress import Progress, Proposer, best_of
from orchestrator.sweep.recheck import recheck_setting, recheck_some
from orchestrator.sweep.result import SweepResult, sweep_result, tuned_of
from orchestrator.sweep.settings import check_space, grid_values, random_values

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class SweepInput:
    """Files and what they hold, checked against each other."""

    study: StudyConfig
    study_dir: Path
    space: SpaceConfig
    plant_file: Path


def read_input(
    study_file: Path,
    space_file: Path,
    plant_file: Path,
    *,
    search: str | None,
    settings: int | None,
) -> SweepInput:
    """ValueError with file, key and what to do; ``search`` and ``settings`` override the space."""
    study, space = load_study(study_file), load_space(space_file)
    changes = {k: v for k, v in (("search", search), ("settings", settings)) if v is not None}
    space = space.model_copy(update=changes)
    load_plant(plant_file)
    # Workers of a cluster have a folder of their own, which relative paths lead into.
    study_dir = study_file.parent if names_cluster() else study_file.resolve().parent
    try:
        check_space(study, space)
        if space.search == "grid":
            next(grid_values(study, space))
        check_disjoint(study, space, study_dir=study_dir)
    except ValueError as error:
        raise ValueError(f"{space_file}: {error}") from error
    return SweepInput(study=study, study_dir=study_dir, space=space, plant_file=plant_file)


def run_sweep(
    given: SweepInput,
    folder: Path,
    *,
    resume: bool,
    workers: int | None,
    say: Say,
    signals: Signals,
) -> SweepResult:
    """Play, judge and write; ``workers`` 1: in this process, without Ray. The folder is held."""
    calibration = load_plant(given.plant_file)
    ledger = begin(
        folder,
        given.study,
        given.space,
        calibration=calibration,
        study_dir=given.study_dir,
        resume=resume,
    )
    if not (folder / PLANT).exists():
        shutil.copyfile(given.plant_file, folder / PLANT)
    try:
        plan = _plan(given, ledger, plant=folder / PLANT)
        progress = Progress(
            given.study, given.space, ledger=ledger, proposer=proposer(given.study, given.space)
        )
        if ledger.rows:
            say(f"{len(ledger.rows)} blocks are known and not played again")
        if not progress.finished:
            drop_words(folder)
        if again := recheck_some(progress.tried, ledger, plan=plan):
            say(f"{again} of them were played again to check {ledger.path.name}: equal to the bit")
        if workers == 1:
            play_here(progress, plan=plan, say=say)
            return _finish(given, folder, progress, plan, ledger, spread=in_this_process, say=say)
        from orchestrator.cluster.replay_pool import spread_on_ray
        from orchestrator.cluster.sweep_cluster import connected
        from orchestrator.cluster.tuning import run_trials

        with connected(workers, say=say):
            signals.take()  # Ray has set its own handlers
            run_trials(
                progress, plan=plan, storage=folder / "tune", name=next_attempt(folder), say=say
            )
            return _finish(
                given,
                folder,
                progress,
                plan,
                ledger,
                spread=partial(spread_on_ray, workers=workers),
                say=say,
            )
    finally:
        ledger.close()


def _plan(given: SweepInput, ledger: Ledger, *, plant: Path) -> Plan:
    evaluator = ReplayEvaluator(plant=load_plant(plant).plant, study_dir=given.study_dir)
    bench = Bench(
        evaluator=evaluator,
        policy=given.space.policy,
        loads=loads_of(given.study, given.space.tuning),
        draws=given.space.tuning.draws,
        controls=known_controls(ledger.rows),
    )
    return Plan(study=given.study, space=given.space, bench=bench)


class Listed:
    """Grid and random: nothing is learned from what is told."""

    def __init__(self, study: StudyConfig, space: SpaceConfig) -> None:
        make = grid_values if space.search == "grid" else random_values
        self._values = make(study, space)

    def ask(self, number: int) -> dict[str, int | float | str | bool] | None:
        return next(self._values, None)

    def tell(self, number: int, gain: float | None) -> None:
        pass


def proposer(study: StudyConfig, space: SpaceConfig) -> Proposer:
    """The search that the space names."""
    if space.search != "optuna":
        return Listed(study, space)
    from orchestrator.cluster.optuna_search import OptunaProposer

    return OptunaProposer(study, space)


def _finish(
    given: SweepInput,
    folder: Path,
    progress: Progress,
    plan: Plan,
    ledger: Ledger,
    *,
    spread: Spread,
    say: Say,
) -> SweepResult:
    """Judge the best and write everything that follows."""
    study, space = given.study, given.space
    judgements: list[Judgement] = []
    best, tuned = best_of(progress.tried), tuned_of(study, progress.tried, ledger=ledger)
    if best is not None and tuned is not None and best.setting.study is not None:
        check_unspent(folder, ledger, setting=tuned.setting)
        recheck_setting(best, ledger, plan=plan)
        say(f"judging setting {tuned.setting} on {space.judging.seeds.count} held-out seeds")
        judgements = judge_held_out(
            folder,
            study,
            space,
            ledger=ledger,
            chosen=best.setting.study,
            tuned=tuned,
            judge_folder=_gate(given, plant_file=folder / PLANT, spread=spread, say=say),
        )
    result = sweep_result(study, space, progress.tried, judgements, ledger=ledger)
    paths = write_tables(folder, result, ledger.rows)
    shares = importances(space, result.settings)
    paths += [
        plot_importance(result, shares, folder / "importance.png"),
        plot_response(study, space, result, folder / "response.png"),
    ]
    paths += [write_page(folder, result), write_markdown(folder, result)]
    for path in paths:
        say(f"written: {path}")
    return result


def _gate(given: SweepInput, *, plant_file: Path, spread: Spread, say: Say) -> JudgeFolder:
    """Replay what lacks of a held-out folder, then the gate on its table."""
    calibration = load_plant(plant_file)

    def judged(study: StudyConfig, folder: Path) -> Judgement:
        job = ReplayJob(study=study, plant=calibration.plant, study_dir=given.study_dir, arms=None)
        folder.mkdir(parents=True, exist_ok=True)
        table = run_replay(
            job, folder, spread=spread, plant_file=plant_file, progress=lambda _done, _all: None
        )
        say(f"held-out replay: {table}")
        return judge_replay_folder(folder)

    return judged
