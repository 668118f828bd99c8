"""`python -m experiments.paper_regimes`: the paper's settings in replay, exposure as published."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.paper_regimes.effects import (
    BURSTY,
    STEADY,
    Arm,
    effects,
    matched_arms,
    published_bursty,
    published_steady,
    replayed_arms,
)
from experiments.paper_regimes.looped import (
    LEAST_DISTANCE_S,
    bursty_load,
    paper_plant,
    replayed,
    steady_load,
)
from experiments.paper_regimes.matched import replay_matched, study_of
from experiments.paper_regimes.page import write_page
from experiments.paper_regimes.published import Exposure, read_published
from orchestrator.record_files import strict_json, write_atomic

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def regimes(
    out: Annotated[Path | None, typer.Option("--out", help="folder for README.md and plot")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object for machines")] = False,
    replicates: Annotated[
        int,
        typer.Option(min=5, max=100_000, help="runs of each policy at its published exposure"),
    ] = 100,
    seed: Annotated[int, typer.Option(min=0, help="of the placements")] = 1,
) -> None:
    """Replay the paper's loads, and print which published ratios come out.

    Example: python -m experiments.paper_regimes --out experiments/paper_regimes
    """
    if out is not None:
        _make_folder(out)
    published = read_published()
    given = {STEADY: published_steady(published), BURSTY: published_bursty(published)}
    exposures: dict[str, Mapping[str, Sequence[Exposure]]] = {
        STEADY: {p: [r.exposure for r in runs] for p, runs in published.steady.items()},
        BURSTY: {p: arm.exposures for p, arm in published.bursty.items()},
    }
    loads = {STEADY: steady_load(published), BURSTY: bursty_load(published)}
    again = {
        load: replayed_arms(
            replayed(published, loads[load], exposures[load], replicates=replicates, seed=seed)
        )
        for load in loads
    }
    plant = paper_plant(published)
    studies = {load: study_of(load) for load in loads}
    matched = {load: replay_matched(study, plant) for load, study in studies.items()}
    found = effects(given, again, {load: matched_arms(m) for load, m in matched.items()})
    page = write_page(
        published,
        {"published": given, "replayed": again},
        found,
        matched,
        replicates=replicates,
        seed=seed,
        least_s=LEAST_DISTANCE_S,
        corridor=studies[STEADY].corridor,
    )
    if out is not None:
        from experiments.paper_regimes.plot import draw

        draw(given, again, matched, window_s=published.window_s, path=out / "exposure.png")
        write_atomic(out / "README.md", page.encode())
    figures = {
        "source": "replay",
        "engine": "model",
        "plant": plant.model_dump(),
        "effects": [{**asdict(e), "reproduced": e.reproduced} for e in found],
        "published": {
            load: {p: asdict(a) for p, a in arms.items()} for load, arms in given.items()
        },
        "replayed": {load: {p: asdict(a) for p, a in arms.items()} for load, arms in again.items()},
        "matched": {load: [asdict(m) for m in own] for load, own in matched.items()},
    }
    sys.stdout.write(strict_json(figures, where="figures", indent=2) + "\n" if as_json else page)


def _plain(arms: Mapping[str, Mapping[str, Arm]]) -> dict[str, dict[str, Any]]:
    return {load: {p: asdict(a) for p, a in own.items()} for load, own in arms.items()}


def _make_folder(out: Path) -> None:
    """Before the work, not after it: exit 2 where nothing can be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".tmp"
        probe.touch()
        probe.unlink()
    except OSError as error:
        sys.stderr.write(
            f"paper_regimes: error: --out {out}: {error.strerror}; give a folder's path\n"
        )
        raise typer.Exit(2) from error


if __name__ == "__main__":
    app()
