"""report.html of a replay: verdicts, conditions, gains and their spread over seeds.

Every number comes from the judgement, so ``lull gate`` gives each of them again.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.calibration.verdict import Judgement
from orchestrator.config import StudyConfig
from orchestrator.record_files import read_json, write_atomic
from orchestrator.replay.judge import judge_replay_folder
from orchestrator.report.gains import plot_gains
from orchestrator.report.html import comparison, comparison_title, conditions_blocks, head, rates
from orchestrator.report.markup import (
    Html,
    bullets,
    definitions,
    element,
    generic_table,
    page,
    picture,
    section,
)
from orchestrator.report.mirror import short_hash
from orchestrator.report.sections import flatten
from orchestrator.report.spread import spread_over_seeds
from orchestrator.report.style import CSS
from orchestrator.rundir import read_study_config

_ALT = "Relative gain of each judged policy over matched random, with interval and spread"


def write_replay_report(folder: Path) -> tuple[Judgement, list[Path]]:
    """Judge again, then write gains.png and report.html."""
    judgement, study = judge_replay_folder(folder), read_study_config(folder)
    plot = plot_gains(judgement, floor=study.gate.relative_gain_floor, folder=folder)
    path = folder / "report.html"
    write_atomic(path, _page(folder, study, judgement, plot).encode())
    return judgement, [plot, path]


def _page(folder: Path, study: StudyConfig, judgement: Judgement, plot: Path) -> str:
    return page(
        f"{study.study}: replay",
        *head(study, judgement),
        section("Arms", *_arms(judgement)),
        *rates(judgement),
        section("Conditions of the gate", *conditions_blocks(judgement)),
        section("Gain over matched random", picture(plot, alt=_ALT)),
        *_comparisons(judgement),
        section("Effect of a merge window", *_effects(judgement)),
        section("Caveats", bullets(judgement.caveats)),
        section("Provenance", _provenance(folder, study, judgement)),
        section("How to compute this again", *_again(folder)),
        style=CSS,
        made_from=figures_digest(judgement),
    )


def figures_digest(judgement: Judgement) -> str:
    """What the page names to say which figures it shows."""
    return f"figures-{short_hash(asdict(judgement))}"


def _arms(judgement: Judgement) -> list[Html]:
    note = (
        "Pooled over all runs; the draws of a matched_random arm are one row. Percentiles are the "
        "middle one of the runs' own. excess: latency above no_sync over all requests, for each "
        "merge. Controls are never deployable."
    )
    return [generic_table(judgement.arms), element("p", note, css="soft")]


def _comparisons(judgement: Judgement) -> list[Html]:
    return [
        section(comparison_title(v), comparison(v), generic_table(spread_over_seeds(v.per_seed)))
        for v in judgement.verdicts
    ]


def _effects(judgement: Judgement) -> list[Html]:
    note = (
        "p95 of the requests scheduled inside the windows of matched random, over p95 of the same "
        "request ids in that seed's no_sync, all draws pooled; quantiles over seeds."
    )
    blocks: list[Html] = [element("p", note, css="soft")]
    for of in dict.fromkeys(str(row["of"]) for row in judgement.effects):
        mine = [row for row in judgement.effects if row["of"] == of]
        blocks += [element("h3", of), generic_table(spread_over_seeds(mine))]
    return blocks


def _provenance(folder: Path, study: StudyConfig, judgement: Judgement) -> Html:
    facts: Mapping[str, Any] = read_json(folder / "provenance.json")
    own = [
        ("study", study.study),
        ("seeds", f"{len(study.seeds)}, {study.seeds[0]} to {study.seeds[-1]}"),
        ("hash of the gate's thresholds", judgement.gate_hash),
    ]
    return definitions([*own, *flatten(facts)])


def _again(folder: Path) -> list[Html]:
    name = folder.name
    commands = (
        f"lull gate {name} --json     # the verdicts from replay.parquet alone\n"
        f"lull report {name}          # this page and the plot\n"
        f"lull track {name}           # the MLflow mirror"
    )
    note = "The figures of every run stand in replay.parquet, those of every seed in verdicts.json."
    return [element("pre", element("code", commands)), element("p", note, css="soft")]
