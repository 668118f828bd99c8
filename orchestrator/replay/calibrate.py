"""A study's measured runs to plant.json: split, fit, errors on both parts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.arms import expand_arms
from orchestrator.config import StudyConfig
from orchestrator.records import RunRecord
from orchestrator.replay.calibrated import Calibration, Fit, FittedOn
from orchestrator.replay.compare import figure_errors, pair_up, seed_errors
from orchestrator.replay.fit import STARTS, fit_plant
from orchestrator.replay.level import levelled
from orchestrator.replay.likeness import server_settings
from orchestrator.replay.machine import machine_speed
from orchestrator.replay.measured import measured_run
from orchestrator.replay.noise import with_noise
from orchestrator.replay.split import Split, default_selection, split_runs
from orchestrator.replay.transfer import check_transfer

HOST_FACTS = ("cores", "cpu_model", "kernel", "memory_bytes")  # a name says nothing of the speed


def calibrate_runs(
    study: StudyConfig,
    records: Sequence[RunRecord],
    *,
    selection: str | None,
    seed: int,
    study_dir: Path | None,
) -> Calibration:
    """The calibration of a study run; ValueError where its runs cannot carry one.

    ``selection``: which runs are fitted (split.py); the rest is held out. Runs that are not
    complete are left out of both.
    """
    whole = [r for r in records if r.status == "complete"]
    if not whole:
        raise ValueError("holds no complete run; measure the study first (`lull run`)")
    facts = _common(whole)
    runs = [measured_run(r) for r in whole]
    split = split_runs(runs, selection=selection)
    fitted = fit_plant(split.fit, slots=study.sidecars.engine.max_num_seqs, seed=seed)
    level = levelled(with_noise(fitted, split.fit), split.fit)
    plant = level.plant
    pairs = pair_up(split.fit, plant=plant)
    transfer = check_transfer(
        study, split.held_out, plant=plant, study_dir=study_dir, resample_seed=seed
    )
    if transfer is not None:
        machine = machine_speed(split.fit, split.held_out)
        transfer = transfer.model_copy(update={"machine": machine})
    return Calibration(
        plant=plant,
        fitted_on=_fitted_on(study, split, facts, by_hand=split.words != default_selection(runs)),
        fit=Fit(
            objective=fitted.objective,
            evaluations=fitted.evaluations,
            starts=STARTS,
            seed=seed,
            requests=fitted.requests,
            merge_level=level.by,
            figures=figure_errors(pairs, resample_seed=seed),
            by_seed=seed_errors(pairs),
        ),
        transfer=transfer,
    )


def missing_runs(study: StudyConfig, records: Sequence[RunRecord]) -> list[str]:
    """What the study asks for and nobody measured, in words."""
    have = {(r.arm.label, r.seed) for r in records}
    return [
        f"{arm.label} seed {seed}"
        for seed in study.seeds
        for arm in expand_arms(study)
        if (arm.label, seed) not in have
    ]


def _common(records: Sequence[RunRecord]) -> dict[str, Any]:
    """What all runs share; ValueError where two servers were measured."""
    first = records[0].provenance
    keys = ("source", "engine", "engine_version")
    for record in records[1:]:
        for key in keys:
            if record.provenance.get(key) != first.get(key):
                raise ValueError(
                    f"{record.path.name}: {key} is {record.provenance.get(key)!r}, that of "
                    f"{records[0].path.name} {first.get(key)!r}; a plant is fitted to one server: "
                    "measure the study anew, or move the odd runs away"
                )
    host = first.get("host") or {}
    facts: dict[str, Any] = {key: str(first.get(key, "unknown")) for key in keys}
    return {**facts, "host": {key: host[key] for key in HOST_FACTS if key in host}}


def _fitted_on(
    study: StudyConfig, split: Split, facts: dict[str, Any], *, by_hand: bool
) -> FittedOn:
    return FittedOn(
        study=study.study,
        regime=study.regime,
        selection=split.words,
        by_hand=by_hand,
        runs=tuple(r.key for r in split.fit),
        seeds=tuple(sorted({r.key.seed for r in split.fit})),
        window_s=study.merge.window_s,
        fill=study.merge.fill.model_dump(mode="json"),
        server=server_settings(study),
        sidecars=study.sidecars.count,
        islands=study.islands.count,
        **facts,
    )
