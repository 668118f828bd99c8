"""`lull run` of a study with clock: steps, and `lull run --resume RUN`."""

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.console import print_json, say, user_input, warn
from orchestrator.endings import BadInput
from orchestrator.finish import hold_study
from orchestrator.record_files import read_json, write_json
from orchestrator.signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.config import StudyConfig
    from orchestrator.training.result import StepResult

_SOURCE = "source.json"  # where the study's YAML lay: its paths are relative to that


def run_on_steps(
    source: Path,
    config: "StudyConfig",
    study_dir: Path,
    *,
    folder: Path,
    say: "Callable[[str], None]",
    most_runs: int | None,
    only: Path | None = None,
) -> "tuple[StepResult, bool]":
    """The study's table, and whether everything that was to run did.

    ``source`` is named where the input is bad; ``folder``: what the study's paths are relative to.
    """
    from orchestrator.plan import data_notes, study_histories, study_requests
    from orchestrator.training.result import study_result

    with user_input(source):
        _check_can_run(config)
        requests = study_requests(config, folder)
        histories = study_histories(config, folder)
    for note in data_notes(config):
        say(note)
    with hold_study(study_dir), Signals().installed() as signals:
        from orchestrator.training.study_run import run_steps

        write_json(study_dir / _SOURCE, {"folder": str(folder.resolve())})
        if not (config.merge.checkpoint and config.merge.checkpoint_content == "full"):
            say("merge.checkpoint_content is not 'full': a run that is killed begins anew")
        with user_input(source):
            outcome = run_steps(
                config,
                requests,
                study_dir,
                histories=histories,
                say=say,
                warn=warn,
                signals=signals,
                most_runs=most_runs,
                only=only,
            )
        for fault in outcome.faults:
            warn(fault)
        if outcome.left:
            warn(f"{outcome.left} runs are not trained yet; the same command goes on with them")
        if outcome.interrupted:
            warn("interrupted; the same command goes on from the newest checkpoint")
        with user_input(study_dir):
            result = study_result(study_dir)
    return result, not outcome.faults and not outcome.interrupted


def _check_can_run(config: "StudyConfig") -> None:
    """ValueError for what would fail only when all islands are up."""
    from orchestrator.arms import expand_arms, study_corridor
    from orchestrator.plan import data_problem
    from orchestrator.training.step_plan import check_faults_happen

    study_corridor(config)
    expand_arms(config)
    problem = data_problem(config)
    if problem is not None:
        raise ValueError(problem)
    if config.islands.device == "cuda" and config.islands.num_gpus == 0:
        raise ValueError("islands.device: cuda with num_gpus: 0; give each island a share of a GPU")
    check_faults_happen(config)


def resumed_study(place: Path) -> "tuple[StudyConfig, Path, Path, Path | None]":
    """Study, study folder, folder of the study's YAML, and the run that was named, if one was."""
    from orchestrator.rundir import read_study_config

    place = place.resolve()
    only = place if (place / "config.json").is_file() else None
    study_dir = place.parent if only is not None else place
    if not (study_dir / "study.json").is_file():
        raise BadInput(
            f"{place}: is neither a run nor a study folder that `lull run` made; give one of "
            "these, or a study YAML"
        )
    with user_input(study_dir):
        study = read_study_config(study_dir)
        if study.clock != "steps":
            raise ValueError(
                "was measured on the wall clock, where an arm that was cut cannot go on in its "
                "middle; give the study's YAML with --resume: its complete runs are kept"
            )
        where = read_json(study_dir / _SOURCE)
        if not (isinstance(where, dict) and isinstance(where.get("folder"), str)):
            raise ValueError(f"{study_dir / _SOURCE}: does not say where the study's YAML lay")
    return study, study_dir, Path(where["folder"]), only


def resume_folder(
    place: Path, *, resume: bool, require: str | None, most_runs: int | None, as_json: bool
) -> None:
    """`lull run --resume RUN`: a run, or all of a study, goes on."""
    if not resume:
        raise BadInput(
            f"{place}: is a folder; give a study YAML, or --resume {place} to go on with it"
        )
    config, study_dir, folder, only = resumed_study(place)
    train_study(
        place,
        config,
        study_dir,
        folder=folder,
        require=require,
        most_runs=most_runs,
        as_json=as_json,
        only=only,
    )


def train_study(
    source: Path,
    config: "StudyConfig",
    study_dir: Path,
    *,
    folder: Path,
    require: str | None,
    most_runs: int | None,
    as_json: bool,
    only: Path | None = None,
) -> None:
    """Train what is missing and print the table; SystemExit(1) when not everything ran."""
    if require is not None:
        raise BadInput(
            f"--require {require}: {source} serves nothing (clock: steps), so nothing is judged; "
            "leave it out"
        )
    from orchestrator.training.result import result_lines

    result, whole = run_on_steps(
        source,
        config,
        study_dir,
        folder=folder,
        say=warn if as_json else say,
        most_runs=most_runs,
        only=only,
    )
    if as_json:
        print_json(result)
    else:
        for line in result_lines(result):
            say(line)
    if not whole:
        raise SystemExit(1)


def plan_steps(source: Path, config: "StudyConfig", *, as_json: bool) -> None:
    """`lull plan` of a study on the step clock."""
    from orchestrator.plan import data_notes
    from orchestrator.training.step_plan import step_summary

    with user_input(source):
        summary = step_summary(config, notes=data_notes(config))
    if as_json:
        print_json(summary)
    else:
        for line in summary.lines():
            say(line)
    with user_input(source):
        _check_can_run(config)
