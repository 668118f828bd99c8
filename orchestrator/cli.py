"""The command line: `lull plan | run | advise | replay | sweep | calibrate | gate | ...`.

Exit codes: 0 ok; 1 the run failed or the claim asked for by --require was not reached; 2 bad
input. Heavy imports stand inside the commands.
"""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.advise_command import advise
from orchestrator.console import (
    JsonOption,
    OutOption,
    StudyArg,
    StudyRunArg,
    check_output,
    out,
    print_json,
    say,
    user_input,
    warn,
)
from orchestrator.endings import BadInput
from orchestrator.replay.calibrate_command import calibrate
from orchestrator.replay.command import replay
from orchestrator.sweep.command import sweep

if TYPE_CHECKING:
    from orchestrator.calibration.verdict import Judgement
    from orchestrator.plan import Plan

UsageError: Any = typer.BadParameter.__base__  # typer brings its own click, under no public name
INTERRUPTED = 130  # what typer makes of Ctrl-C
app = typer.Typer(
    name="lull",
    help="When is it safe to run a DiLoCo outer merge on hardware that also serves users?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Require(StrEnum):
    PASS = "pass"


@app.command()
def plan(
    study: StudyArg,
    gain: Annotated[
        float | None,
        typer.Option(help="relative gain to state the power for; default twice the gate's floor"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a study will do, cost and be able to show, without running it.

    Example: lull plan experiments/quickstart/study.yaml --gain 0.3
    """
    from orchestrator.plan import make_plan
    from orchestrator.study import load_study

    with user_input(study):
        config = load_study(study)
    if config.clock == "steps":
        from orchestrator.training.command import plan_steps

        plan_steps(study, config, as_json=as_json)
        return
    with user_input(study):
        made, _ = make_plan(config, study.parent, gain=gain)
    if as_json:
        print_json(made.to_json())
    else:
        _print_plan(made)
    _refuse_problems(study, made)


@app.command()
def run(
    study: StudyArg,
    out_dir: OutOption = Path("runs"),
    require: Annotated[
        Require | None, typer.Option("--require", help="exit 1 unless every judged policy has it")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="the study in --out goes on; an error where there is none"),
    ] = False,
    most_runs: Annotated[
        int | None,
        typer.Option(min=1, help="measure so many runs at most; the rest another time"),
    ] = None,
    track: Annotated[bool, typer.Option(help="log to MLflow at the end")] = True,
    as_json: JsonOption = False,
) -> None:
    """Run a study live on Ray: islands, servers, load; record, judge, report.

    Complete runs that are there are kept, with --resume or without it.
    A study with clock: steps serves nothing: its islands train, and a run that was killed goes on
    from its newest checkpoint, to the bit (also by its folder: lull run --resume RUN).

    Example: lull run experiments/quickstart/study.yaml --out runs
    """
    from orchestrator.plan import make_plan
    from orchestrator.running import run_live
    from orchestrator.study import load_study
    from orchestrator.terminal import QuietReporter, TerminalReporter
    from orchestrator.training.command import resume_folder, train_study

    if os.path.isdir(study):  # noqa: PTH112 - Path.is_dir raises at a name that is too long
        resume_folder(study, resume=resume, require=require, most_runs=most_runs, as_json=as_json)
        return
    with user_input(study):
        config = load_study(study)
        if config.clock == "wall":
            made, requests = make_plan(config, study.parent)
    if config.clock == "wall":
        _refuse_problems(study, made)
    study_dir = out_dir / config.study
    if resume and not (study_dir / "study.json").is_file():
        raise BadInput(f"{study_dir}: holds no study to resume; leave --resume out, or see --out")
    if config.clock == "steps":
        train_study(
            study,
            config,
            study_dir,
            folder=study.parent,
            require=require,
            most_runs=most_runs,
            as_json=as_json,
        )
        return
    reporter = QuietReporter() if as_json else TerminalReporter(out, engine=made.engine)
    if not as_json:
        _print_plan(made)
    ran = run_live(
        study, config, requests, study_dir, reporter=reporter, track=track, most_runs=most_runs
    )
    if as_json:
        print_json(ran.judgement)
    else:
        _print_judgement(study_dir)
    if ran.interrupted:
        warn(ran.interrupted)
    if not ran.whole:
        raise SystemExit(1)
    _require(ran.judgement, require)


app.command()(advise)
app.command()(replay)
app.command()(sweep)
app.command()(calibrate)


@app.command()
def gate(
    study_run: StudyRunArg,
    require: Annotated[
        Require | None, typer.Option("--require", help="exit 1 unless every judged policy has it")
    ] = None,
    plant: Annotated[
        Path | None,
        typer.Option(help="plant.json of `lull calibrate`: put beside the runs, tiers rest on it"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute all metrics and verdicts again from the runs alone; nothing is read back.

    Of a replay: from its replay.parquet.

    Example: lull gate runs/quickstart --plant plant.json --json
    """
    from orchestrator.judge import attach_plant, judge_study
    from orchestrator.replay.judge import is_replay, judge_replay_folder, refuse_unfinished

    replayed = is_replay(_study_run(study_run))
    if not (replayed or _has_run(study_run)):
        raise BadInput(
            f"{study_run}: holds no run folder and no replay.parquet, so nothing can be judged; "
            "run or replay the study again"
        )
    if replayed:
        with user_input(study_run):
            refuse_unfinished(study_run)
    if plant is not None:
        with user_input(plant):
            attach_plant(study_run, plant)
    with user_input(study_run):
        judgement = judge_replay_folder(study_run) if replayed else judge_study(study_run)
    if as_json:
        print_json(judgement)
    elif replayed:
        _print_replay(study_run, judgement)
    else:
        _print_judgement(study_run)
    _require(judgement, require)


@app.command()
def redecide(
    folder: Annotated[Path, typer.Argument(help="run folder, or study run folder: all its runs")],
    policy: Annotated[
        str | None,
        typer.Option(help="counterfactual: a policy of the study, or a file with one's config"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Decide a run again from its logged measurements alone; exit 1 unless bit for bit equal.

    With --policy: what another policy would have decided on them (counterfactual).

    Example: lull redecide runs/quickstart
    """
    from dataclasses import asdict

    from orchestrator import redecide as again
    from orchestrator.redecide_words import counterfactual_lines, redecision_lines

    with user_input(folder):
        records = again.read_records(folder)
        if policy is not None:
            answers = [again.counterfactual(record, policy) for record in records]
        else:
            checked = [again.redecide(record) for record in records]
    if policy is not None:
        if as_json:
            print_json({"label": "counterfactual", "runs": [asdict(a) for a in answers]})
        for line in [] if as_json else counterfactual_lines(answers):
            say(line)
        return
    equal = again.all_equal(checked)
    if as_json:
        print_json({"equal": equal, "runs": [asdict(c) for c in checked]})
    for line in [] if as_json else redecision_lines(checked):
        say(line)
    if not equal:
        raise SystemExit(1)


@app.command()
def report(study_run: StudyRunArg, as_json: JsonOption = False) -> None:
    """Write the plots and report.html again from the run folders, or from replay.parquet.

    Example: lull report runs/quickstart
    """
    from orchestrator.finish import write_outputs

    with user_input(study_run):
        _, paths = write_outputs(_study_run(study_run))
    if as_json:
        print_json({"files": [str(p) for p in paths]})
    for path in [] if as_json else paths:
        say(str(path))


@app.command()
def track(
    study_run: StudyRunArg,
    uri: Annotated[
        str | None, typer.Option(help="MLflow tracking URI; default MLFLOW_TRACKING_URI or SQLite")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Upload a study run to MLflow; a second call changes nothing twice.

    Example: lull track runs/quickstart --uri http://127.0.0.1:5000
    """
    from dataclasses import asdict

    from orchestrator.tracking import track_study
    from orchestrator.tracking_sweep import track_sweep

    with user_input(study_run):
        if (study_run / "sweep.json").is_file():
            result = track_sweep(study_run, uri=uri)
        else:
            result = track_study(_study_run(study_run), uri=uri)
    if as_json:
        print_json(asdict(result))
    else:
        say(f"{result.runs} MLflow runs in experiment {result.experiment} at {result.uri}")
        say(f"look at it: {result.ui_command}")


@app.command()
def trace(
    file: Annotated[Path, typer.Argument(help="CSV, JSONL or Parquet, also .gz")],
    format_: Annotated[
        str,
        typer.Option("--format", help="auto, azure, burstgpt, mooncake, servegen, csv, jsonl, ..."),
    ] = "auto",
    columns: Annotated[
        str | None,
        typer.Option(help="time=NAME,time_unit=iso|s|ms|us|ns,prompt_tokens=..,output_tokens=.."),
    ] = None,
    failed: Annotated[str, typer.Option(help="keep or drop failed requests (BurstGPT)")] = "keep",
    dequantise_seed: Annotated[
        int | None, typer.Option(help="spread times on a coarse grid over its step")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="draw the rate as a PNG")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a request trace holds: rows, rate, dispersion, memory, tokens, what is odd.

    Example: lull trace experiments/traces/AzureLLMInferenceTrace_code.csv --plot rate.png
    """
    from orchestrator.workload.describe import described_lines, load_described, parse_columns
    from orchestrator.workload.rate_plot import plot_rate

    if plot is not None:
        check_output("--plot", plot)
    with user_input(file):
        read, found = load_described(
            file,
            format=format_,
            columns=parse_columns(columns),
            failed=failed,
            dequantise_seed=dequantise_seed,
        )
    if plot is not None:
        with user_input(plot):
            plot_rate(read, found, plot)
    if as_json:
        print_json(found)
        return
    for line in described_lines(read, found):
        say(line)
    for warning in read.notes:
        warn(f"warning: {warning}")


@app.command()
def doctor(out_dir: OutOption = Path("runs"), as_json: JsonOption = False) -> None:
    """Check versions, ports, memory and leftover processes, and say what to do.

    Example: lull doctor
    """
    from dataclasses import asdict

    from orchestrator.doctor import diagnose

    findings = diagnose(runs_dir=out_dir)
    if as_json:
        print_json({"findings": [asdict(f) for f in findings]})
    else:
        for finding in findings:
            advice = f" -> {finding.advice}" if finding.advice else ""
            say(f"{finding.status:>4}  {finding.name}: {finding.found}{advice}")
    if any(f.status == "bad" for f in findings):
        raise SystemExit(1)


@app.command()
def schema(
    as_json: Annotated[bool, typer.Option("--json", help="the same: a schema is JSON")] = True,
) -> None:
    """Print the JSON schema of a study file.

    Example: lull schema > study.schema.json
    """
    from orchestrator.config import StudyConfig

    try:
        made = StudyConfig.model_json_schema()
    except ValueError as error:  # a policy plugin that cannot be read
        raise BadInput(str(error)) from error
    print_json(made)


def _study_run(path: Path) -> Path:
    if not (path / "study.json").is_file():
        raise BadInput(
            f"{path}: is no study run (it has no study.json); give the folder that `lull run` "
            "printed, e.g. runs/quickstart"
        )
    return path


def _has_run(study_run: Path) -> bool:
    return any(study_run.glob("*/config.json"))


def _refuse_problems(study: Path, made: "Plan") -> None:
    if made.problems:
        raise BadInput("\n".join(f"{study}: {p}" for p in made.problems))


def _require(judgement: "Judgement", require: Require | None) -> None:
    if require is None:
        return
    from orchestrator.endings import ClaimNotReached

    short = [f"{v.policy}: {v.verdict}" for v in judgement.verdicts if v.verdict != "PASS"]
    if short or not judgement.verdicts:
        raise ClaimNotReached(f"--require pass: {', '.join(short) or 'nothing was judged'}")


def _print_plan(made: "Plan") -> None:
    minutes = made.expected_wall_s / 60
    requests = ", ".join(f"seed {s}: {n}" for s, n in made.requests.items())
    corridor = ", ".join(f"{k} {v}" for k, v in made.corridor_ticks.items())
    needs = ", ".join(str(b) for b in made.bundles)
    have = ", ".join(str(n) for n in made.nodes)
    say(f"study {made.study}: {made.question}")
    say(f"  runs       {len(made.arms)} arms x {len(made.seeds)} seeds = {made.runs}")
    say(f"  wall time  about {minutes:.1f} min, with the start of engine={made.engine}")
    say(f"  requests   {requests}")
    say(
        f"  longest    {made.longest_request_tokens} tokens of {made.max_model_len_tokens} "
        "that the model takes"
    )
    budget = f"budget {made.budget_merges} merges: {made.feasible_schedules} feasible schedules"
    if made.budget_merges is None:
        budget = "no budget (free cadence)"
    say(f"  corridor   ticks: {corridor}; {budget}")
    say(f"  resources  needed {needs} ({made.strategy}); present {have}")
    say(
        f"  judge      {', '.join(made.judge) or 'nothing'}; least attainable p "
        f"{made.least_attainable_p:.4g}, alpha {made.alpha:g}"
    )
    if made.power is not None:
        say(f"  power      {made.power.words}")
    for note in made.notes:
        say(f"  note       {note}")


def _print_judgement(study_dir: Path) -> None:
    from orchestrator.finish import recompute
    from orchestrator.report.tables import (
        arms_table,
        conditions_table,
        rates_table,
        verdict_sentence,
    )

    judged = recompute(study_dir)
    out.print(arms_table(judged.metrics))
    if judged.judgement.rate_effects:
        out.print(rates_table(judged.judgement))
    else:
        out.print(conditions_table(judged.judgement))
    for caveat in judged.judgement.caveats:
        say(f"note: {caveat}")
    say(verdict_sentence(judged.judgement))
    say(f"record: {study_dir}")


def _print_replay(folder: Path, judgement: "Judgement") -> None:
    from orchestrator.report.tables import (
        conditions_table,
        rates_table,
        replay_table,
        verdict_sentence,
    )

    out.print(replay_table(judgement))
    out.print((rates_table if judgement.rate_effects else conditions_table)(judgement))
    for caveat in judgement.caveats:
        say(f"note: {caveat}")
    say(verdict_sentence(judgement))
    say(f"source: {judgement.source}, engine: {judgement.engine}; record: {folder}")


def _call() -> int:
    """The command's exit code; BadInput, in one line, for options that cannot be used."""
    try:
        ended = app(standalone_mode=False)  # else three lines of usage come before the reason
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # `lull` alone; typer exports no name
            error.show()
            return 2
        where = error.ctx.command_path if error.ctx else app.info.name
        reason = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
        raise BadInput(f"{reason}; see `{where} --help`") from error
    return ended if isinstance(ended, int) else 0


def main() -> None:
    """Console script: one clear line for each known failure, a traceback only for our own bugs."""
    from orchestrator.errors import KNOWN_FAILURES
    from orchestrator.signals import Signals

    try:
        with Signals().installed():  # SIGTERM ends a command as Ctrl-C does
            raise SystemExit(_call())
    except BadInput as error:
        warn(f"error: {error}")
        raise SystemExit(2) from error
    except KNOWN_FAILURES as error:
        warn(f"failed: {error}")
        raise SystemExit(1) from error
    except MemoryError as error:
        warn(f"failed: memory does not suffice ({str(error) or 'no more is given'}); ask for less")
        raise SystemExit(1) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        warn(f"failed: {where}{error.strerror or error}")
        raise SystemExit(1) from error
    except SystemExit as ended:
        if ended.code != INTERRUPTED:
            raise
        warn("interrupted; what was recorded is kept")
        raise SystemExit(1) from ended
