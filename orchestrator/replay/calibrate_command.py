"""`lull calibrate`: a model of the measured server, and its own error on runs held out.

Heavy imports stand inside, as in cli.py.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.console import JsonOption, check_output, out, print_json, say, user_input, warn
from orchestrator.endings import BadInput

if TYPE_CHECKING:
    from orchestrator.replay.calibrated import Calibration


def calibrate(
    source: Annotated[
        Path, typer.Argument(help="study run folder, or a study YAML that is measured first")
    ],
    fit: Annotated[
        str | None,
        typer.Option(
            help="runs to fit: seeds=0-5 arms=no_sync-*,matched_random-*; default: every other "
            "seed. The others are held out"
        ),
    ] = None,
    out_file: Annotated[Path, typer.Option("--out", help="the file to write")] = Path("plant.json"),
    runs: Annotated[Path, typer.Option(help="folder for the runs of a study YAML")] = Path("runs"),
    study_dir: Annotated[
        Path | None, typer.Option(help="folder of the study file, which a trace's path starts from")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the starts and of the resampling")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Fit the replay's server model to measured runs; state its error there and on the others.

    Example: lull calibrate runs/quickstart --out plant.json
    """
    from orchestrator.replay.calibrate import calibrate_runs, missing_runs
    from orchestrator.replay.calibrated import write_plant
    from orchestrator.replay.judge import is_replay
    from orchestrator.rundir import read_study

    check_output("--out", out_file)
    if study_dir is not None and not study_dir.is_dir():
        raise BadInput(f"--study-dir {study_dir}: is no folder; give the one of the study file")
    folder, study_folder = source, study_dir
    if source.is_file():
        folder, study_folder = _measured(source, runs, fit=fit, as_json=as_json), source.parent
    elif not source.exists():
        raise BadInput(
            f"{source}: does not exist; give the folder that `lull run` printed, or a study YAML"
        )
    elif not (source / "study.json").is_file():
        raise BadInput(
            f"{source}: is no study run (it has no study.json) and no study file; give the folder "
            "that `lull run` printed, or a study YAML"
        )
    if is_replay(folder):
        raise BadInput(f"{folder}: is a replay; a plant is fitted to a server that was measured")
    with user_input(folder):
        study, records = read_study(folder)
        made = calibrate_runs(study, records, selection=fit, seed=seed, study_dir=study_folder)
    left_out = [r for r in records if r.status != "complete"]
    for record in left_out:
        warn(f"{record.path.name}: left out, it is {record.status}: {record.why}")
    if missing := missing_runs(study, records):
        warn(
            f"{folder}: {len(missing)} of the study's runs are not there, so neither fitted nor "
            f"held out: {', '.join(missing[:6])}{', ...' if len(missing) > 6 else ''}"
        )
    write_plant(out_file, made)
    if as_json:
        print_json({**made.model_dump(mode="json"), "file": str(out_file)})
        return
    _print(made)
    say(f"written: {out_file}")


def _measured(study: Path, runs: Path, *, fit: str | None, as_json: bool) -> Path:
    """The study's run folder, measured now as far as it is not there yet."""
    from orchestrator.plan import make_plan
    from orchestrator.replay.split import check_selection
    from orchestrator.running import run_live
    from orchestrator.study import load_study
    from orchestrator.terminal import QuietReporter, TerminalReporter

    with user_input(study):
        config = load_study(study)
        if fit is not None:
            check_selection(fit, config)
        plan, requests = make_plan(config, study.parent)
    if plan.problems:
        raise BadInput("\n".join(f"{study}: {p}" for p in plan.problems))
    reporter = QuietReporter() if as_json else TerminalReporter(out, engine=plan.engine)
    folder = runs / config.study
    ran = run_live(study, config, requests, folder, reporter=reporter, track=False)
    if ran.interrupted:
        warn(ran.interrupted)
    if not ran.whole:
        raise SystemExit(1)
    return folder


def _print(made: "Calibration") -> None:
    from orchestrator.replay.calibrate_words import errors_table, facts_lines, transfer_lines

    for line in facts_lines(made):
        say(line)
    assert made.fit is not None
    out.print(errors_table("fit (these runs took part)", made.fit.figures))
    if made.transfer is not None:
        out.print(errors_table("transfer (these runs did not)", made.transfer.figures))
        if made.transfer.replayed:
            out.print(errors_table("policies decide in the replay", made.transfer.replayed))
    for line in transfer_lines(made):
        say(line)
