"""`lull sweep`: settings of a policy searched on some traffic, the best judged on other traffic.

Heavy imports stand inside, as in cli.py.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.console import (
    MOST_WORKERS,
    JsonOption,
    OutOption,
    StudyArg,
    at_most,
    print_json,
    say,
    user_input,
    warn,
)
from orchestrator.endings import BadInput, NothingFound

if TYPE_CHECKING:
    from orchestrator.sweep.result import SweepResult

MOST_SETTINGS = 1_000_000


class Search(StrEnum):
    OPTUNA = "optuna"
    GRID = "grid"
    RANDOM = "random"


def sweep(
    study: StudyArg,
    space: Annotated[Path, typer.Option(help="SPACE.yaml: parameters, blocks, search")],
    plant: Annotated[
        Path | None,
        typer.Option(help="plant.json of `lull calibrate`; default: the study's replay.plant"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the sweep that lies in --out")
    ] = False,
    search: Annotated[Search | None, typer.Option(help="default: the space's")] = None,
    settings: Annotated[
        int | None, typer.Option(min=1, help="how many to try; default: the space's")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="cores; 1: this process alone, without Ray; default: all"),
    ] = None,
    track: Annotated[bool, typer.Option(help="log to MLflow at the end")] = True,
    out_dir: OutOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Search a policy's settings in replay on tuning blocks; judge the best on held-out blocks.

    Example: lull sweep study.yaml --space space.yaml --plant plant.json --settings 60
    """
    from orchestrator.finish import hold_study
    from orchestrator.signals import Signals
    from orchestrator.sweep.drive import read_input, run_sweep
    from orchestrator.sweep.page import summary_lines
    from orchestrator.sweep.result import result_json

    at_most("--settings", settings, most=MOST_SETTINGS)
    at_most("--workers", workers, most=MOST_WORKERS)
    with user_input(study):
        plant_file = _plant_file(study, plant)
    with user_input(study, space, plant_file):
        given = read_input(
            study,
            space,
            plant_file,
            search=None if search is None else search.value,
            settings=settings,
        )
    folder = out_dir / f"{given.study.study}-sweep"
    with hold_study(folder), Signals().installed() as signals, user_input(folder):
        result = run_sweep(
            given,
            folder,
            resume=resume,
            workers=workers,
            say=_quiet if as_json else say,
            signals=signals,
        )
    if as_json:
        print_json(result_json(result))
    else:
        for line in summary_lines(result):
            say(line)
        say(f"record: {folder}")
    if track:
        _track(folder, quiet=as_json)
    _require_a_setting(result, space)


def _plant_file(study: Path, plant: Path | None) -> Path:
    from orchestrator.study import load_study

    if plant is not None:
        return plant
    own = load_study(study).replay
    if own is None:
        raise ValueError(
            "no plant to replay on; give --plant plant.json (of `lull calibrate`), or "
            "replay: {plant: ...} in the study"
        )
    return study.parent / own.plant


def _require_a_setting(result: "SweepResult", space: Path) -> None:
    """The sweep is written in any case; without one usable setting it is no success."""
    from orchestrator.sweep.result import why_nothing

    why = why_nothing(result)
    if why is None:
        return
    if result.counts["refused"] == len(result.settings):
        raise BadInput(f"{space}: {why}")
    raise NothingFound(why)


def _track(folder: Path, *, quiet: bool) -> None:
    """An unreachable tracking server costs nothing of the sweep."""
    from orchestrator.tracking_runs import TrackingFailed
    from orchestrator.tracking_sweep import track_sweep

    try:
        made = track_sweep(folder)
    except (TrackingFailed, TimeoutError) as error:
        warn(str(error))
        return
    if not quiet:
        say(f"MLflow: {made.runs} runs in experiment {made.experiment}; {made.ui_command}")


def _quiet(_line: str) -> None: ...
