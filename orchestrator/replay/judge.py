"""Replayed runs to a judgement: the live gate's conditions, words and thresholds, from rows alone.

No tier above 0, and none unless the plant was fitted to a real server and held on other runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from orchestrator.calibration.conditions import effect_transfer
from orchestrator.calibration.effects import effect_row
from orchestrator.calibration.exposure import exposure_match
from orchestrator.calibration.family import Basis, judge_family
from orchestrator.calibration.gate import gate_hash
from orchestrator.calibration.held_out import disjoint_from_tuning
from orchestrator.calibration.pooled import Emulation, trace_caveat, trace_scope
from orchestrator.calibration.prediction import plant_condition
from orchestrator.calibration.rates import rate_caveats, rate_effects
from orchestrator.calibration.verdict import Judgement
from orchestrator.config import StudyConfig
from orchestrator.record_files import read_json, write_json
from orchestrator.replay.arms import replay_arms
from orchestrator.replay.calibrated import Calibration, load_plant
from orchestrator.replay.conditions import (
    DRAWS_WANTED,
    replay_effects,
    replay_exposure,
    replay_load,
    replay_overlap,
    replay_validity,
)
from orchestrator.replay.evidence import ReplayEvidence, gather_rows
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.standing import (
    mismatch_words,
    plant_version,
    plant_words,
    standing_of,
)
from orchestrator.replay.table import NAME, PARTS, read_rows, table_sha256
from orchestrator.rundir import read_study_config

SOURCE, ENGINE = "replay", "model"
PROVENANCE = "provenance.json"


def judge_replay(
    study: StudyConfig,
    rows: Iterable[ReplayFigures],
    calibration: Calibration,
    *,
    problems: Sequence[str] = (),
) -> Judgement:
    """Judge every policy of the study's family on replayed runs.

    ``study``: as replayed, with its seeds and draws; ``problems``: what makes the replay as a whole
    invalid. ValueError for rows that cannot be its runs.
    """
    evidence = gather_rows(study, rows)
    of = dict.fromkeys(a.of for a in evidence.arms if a.kind == "matched_random" and a.of)
    effects = {policy: replay_effects(evidence, policy) for policy in of}
    exposures, standing = replay_exposure(evidence), standing_of(calibration, study=study)
    shared = (replay_validity(evidence, told=problems), replay_load(evidence))
    basis = Basis(
        shared=shared,
        transfer=lambda policy: effect_transfer(
            evidence, effects.get(policy, ()), replay="replay: these are its own runs"
        ),
        exposure=lambda policy: exposure_match(
            policy,
            controls=evidence.labels("matched_random", of=policy),
            seeds=study.seeds,
            of=exposures,
        ),
        overlap=lambda policy: replay_overlap(evidence, policy),
        replay=lambda policy: plant_condition(standing),
        emulated=lambda policy: _emulation(calibration),
        engine=(SOURCE, ENGINE),
        control=control_words(evidence),
        scope=trace_scope(study),
        held_out=disjoint_from_tuning(study),
    )
    return Judgement(
        study=study.study,
        regime=study.regime,
        source=SOURCE,
        engine=ENGINE,
        engine_version=plant_version(calibration.plant),
        gate_hash=gate_hash(study),
        seeds=study.seeds,
        verdicts=judge_family(evidence, basis),
        effects=tuple(effect_row(e, p) for p, found in effects.items() for e in found),
        arms=replay_arms(evidence),
        caveats=(*rate_caveats(evidence, shared), *caveats(evidence, calibration)),
        rate_effects=rate_effects(evidence),
    )


def control_words(evidence: ReplayEvidence) -> str:
    """How many draws the control of a seed is the mean of."""
    counts = {
        len(found)
        for policy in evidence.study.judge
        if (found := evidence.labels("matched_random", of=policy))
    }
    if not counts:
        return ""
    least = min(counts)
    text = f"control: mean of {least} draws a seed"
    return text if least >= DRAWS_WANTED else f"{text}, fewer than the {DRAWS_WANTED} wanted"


def _emulation(calibration: Calibration) -> Emulation | None:
    """What slowed the server in the runs that the plant learned its windows from."""
    fitted = calibration.fitted_on
    kind = None if fitted is None else fitted.fill.get("kind")
    if kind is None or kind == "none":
        return None
    return Emulation(kind=f"{kind} where the plant was fitted", share=None)


def caveats(evidence: ReplayEvidence, calibration: Calibration) -> tuple[str, ...]:
    """What a reader has to know beside every verdict of a replay."""
    study = evidence.study
    notes = [
        "source=replay, engine=model: a model of the server answered, no server was measured; no "
        "claim above tier 0",
        *mismatch_words(study, calibration),
        *plant_words(calibration),
    ]
    control = control_words(evidence)
    notes += [control] if "fewer" in control else []
    notes.append("training is a paced count of steps and a made-up loss: nothing is learned")
    return (*notes, *trace_caveat(study))


def is_replay(folder: Path) -> bool:
    """Whether the folder holds a table of replayed runs, or is to hold one."""
    return (folder / NAME).is_file() or _unfinished(folder)


def refuse_unfinished(folder: Path) -> None:
    """ValueError for a replay that was stopped: what is there already could be any part of it."""
    if _unfinished(folder):
        raise ValueError(
            f"{folder}: the replay is unfinished: run the same `lull replay` command again; it "
            "goes on where it stood"
        )


def _unfinished(folder: Path) -> bool:
    """Batches lie beside the table, or provenance.json was not sealed with a table's hash."""
    path = folder / PROVENANCE
    made = read_json(path) if path.is_file() and not (folder / PARTS).is_dir() else None
    unsealed = isinstance(made, dict) and made.get("source") == SOURCE
    return (folder / PARTS).is_dir() or (unsealed and "table_sha256" not in (made or {}))


def judge_replay_folder(folder: Path) -> Judgement:
    """The verdicts of study.json, plant.json and replay.parquet alone; verdicts.json rewritten."""
    _, _, judgement = judged_replay(folder)
    write_json(folder / "verdicts.json", asdict(judgement))
    return judgement


def judged_replay(folder: Path) -> tuple[StudyConfig, list[ReplayFigures], Judgement]:
    """The same with the rows that it was made of."""
    refuse_unfinished(folder)
    study, calibration = read_study_config(folder), load_plant(folder / "plant.json")
    rows = [row for group in read_rows(folder / NAME) for row in group]
    problems = _changed(folder, study, calibration)
    try:
        judgement = judge_replay(study, rows, calibration, problems=problems)
    except ValueError as error:
        raise ValueError(f"{folder / NAME}: {error}") from error
    if _sealed(folder) != table_sha256(folder / NAME):
        raise ValueError(
            f"{folder / NAME}: is not the table that the replay wrote (provenance.json has another "
            "table_sha256); replay again"
        )
    return study, rows, judgement


def _sealed(folder: Path) -> object:
    return read_json(folder / PROVENANCE).get("table_sha256")


def _changed(folder: Path, study: StudyConfig, calibration: Calibration) -> list[str]:
    """What was fixed when the replay was made, and is another thing now."""
    made = read_json(folder / PROVENANCE)
    if not isinstance(made, dict):
        raise ValueError(f"{folder / 'provenance.json'}: holds no mapping; replay again")
    plant, then = plant_version(calibration.plant), made.get("engine_version")
    if plant != then:
        raise ValueError(
            f"{folder / 'plant.json'}: is {plant}, the table was replayed on {then}; put that one "
            "back, or replay again"
        )
    if made.get("gate_hash") == gate_hash(study):
        return []
    return [
        "gate thresholds, family or regime were changed after the replay: they are to be fixed "
        "beforehand"
    ]
