"""`lull replay`: a study on a calibrated model of its server, on a virtual clock.

Heavy imports stand inside, as in cli.py.
"""

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.console import (
    MOST_WORKERS,
    JsonOption,
    OutOption,
    StudyArg,
    at_most,
    out,
    print_json,
    say,
    user_input,
)
from orchestrator.ray_address import names_cluster
from policies.units import MOST_DRAWS, MOST_SEEDS

if TYPE_CHECKING:
    from orchestrator.replay.scale import ReplayJob, Spread

SAY_EVERY_S = 10.0
FEW_SEEDS = 16  # are done before Ray has started


def replay(
    study: StudyArg,
    plant: Annotated[
        Path | None,
        typer.Option(help="plant.json of `lull calibrate`; default: the study's replay.plant"),
    ] = None,
    replicates: Annotated[
        int | None, typer.Option(min=1, help="seeds 0..N-1 instead of the study's")
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(min=1, help="matched_random draws a policy and seed; default: the study's"),
    ] = None,
    arms: Annotated[
        list[str] | None, typer.Option(help="labels, comma-separated; default: all of the study")
    ] = None,
    folders: Annotated[
        bool, typer.Option("--folders", help="whole run folders too, as a live run leaves them")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="cores; 1: this process alone, without Ray; default: all"),
    ] = None,
    out_dir: OutOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Replay a study: same policies, corridor, metrics, on a model of the server; no claim.

    Example: lull replay experiments/quickstart/study.yaml --plant plant.json --draws 99
    """
    from orchestrator.finish import hold_study
    from orchestrator.replay.folders import write_folders
    from orchestrator.replay.scale import run_replay
    from orchestrator.replay.standing import plant_version
    from orchestrator.replay.summary import summarise, summary_table
    from orchestrator.replay.table import PARTS

    at_most("--replicates", replicates, most=MOST_SEEDS)
    at_most("--draws", draws, most=MOST_DRAWS)
    at_most("--workers", workers, most=MOST_WORKERS)
    job, plant_file = _job(
        study, plant, replicates=replicates, draws=draws, arms=",".join(arms) if arms else None
    )
    folder = out_dir / f"{job.study.study}-replay"
    with hold_study(folder), user_input(study):
        table = run_replay(
            job,
            folder,
            spread=_spread(job, workers),
            plant_file=plant_file,
            progress=_quiet if as_json else _Progress(),
        )
        if folders:
            write_folders(job, folder)
    summaries, version = summarise(table, gate=job.study.gate), plant_version(job.plant)
    if not as_json:
        out.print(summary_table(summaries, engine_version=version))
        say(f"record: {folder}")
        if (folder / PARTS).exists():
            say("a longer replay is begun there; its own command goes on with it")
        return
    print_json(
        {
            "study": job.study.study,
            "source": "replay",
            "engine": "model",
            "engine_version": version,
            "seeds": len(job.study.seeds),
            "table": str(table),
            "arms": [asdict(s) for s in summaries],
        }
    )


def _job(
    study: Path,
    plant: Path | None,
    *,
    replicates: int | None,
    draws: int | None,
    arms: str | None,
) -> tuple["ReplayJob", Path]:
    """What is to be replayed, and the plant's file; BadInput for what cannot be."""
    from orchestrator.arms import check_warmup, study_corridor
    from orchestrator.replay.block import replayed_arms, with_draws
    from orchestrator.replay.calibrated import load_plant
    from orchestrator.replay.scale import ReplayJob
    from orchestrator.study import load_study

    with user_input(study):
        config = load_study(study)
        own = config.replay
        if plant is None and own is None:
            raise ValueError(
                "no plant to replay on; give --plant plant.json (of `lull calibrate`), or "
                "replay: {plant: ...} in the study"
            )
    plant_file = plant or study.parent / (own.plant if own else "")
    with user_input(plant_file):
        numbers = load_plant(plant_file).plant
    with user_input(study):
        config = with_draws(config, draws or (own.draws if own else None))
        if replicates is not None:
            config = config.model_copy(update={"seeds": tuple(range(replicates))})
        labels = None if arms is None else tuple(a.strip() for a in arms.split(",") if a.strip())
        replayed_arms(config, labels)
        check_warmup(config, study_corridor(config))
    # Workers of a cluster have a folder of their own, which relative paths lead into.
    folder = study.parent if names_cluster() else study.parent.resolve()
    return ReplayJob(study=config, plant=numbers, study_dir=folder, arms=labels), plant_file


def _spread(job: "ReplayJob", workers: int | None) -> "Spread":
    """Who computes: this process, or Ray."""
    from orchestrator.replay.scale import in_this_process

    few = workers is None and not names_cluster() and len(job.study.seeds) < FEW_SEEDS
    if workers == 1 or few:
        return in_this_process
    from orchestrator.cluster.replay_pool import spread_on_ray

    return partial(spread_on_ray, workers=workers)


def _quiet(done: int, total: int) -> None: ...


class _Progress:
    """A line now and then."""

    def __init__(self) -> None:
        self._said_at_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._said_at_s >= SAY_EVERY_S:
            self._said_at_s = now_s
            say(f"replayed {done} of {total} seeds")
