"""A replay of many seeds: batches to whoever computes them, finished ones to disk, one table.

The driver alone writes. Where a batch is computed changes no bit of it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from orchestrator.calibration.gate import gate_hash
from orchestrator.config import StudyConfig
from orchestrator.differences import difference_words
from orchestrator.provenance import study_provenance
from orchestrator.record_files import read_json, write_atomic, write_json
from orchestrator.replay.block import replay_seed, replayed_arms
from orchestrator.replay.calibrated import load_plant
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.staged import PLANT, PROVENANCE, STUDY, is_finished, settle, swap
from orchestrator.replay.standing import plant_version
from orchestrator.replay.table import (
    NAME,
    PARTS,
    ReplayTable,
    cut_batches,
    table_sha256,
    to_table,
)
from orchestrator.rundir import write_study
from orchestrator.workload.config import ClosedLoopConfig
from orchestrator.workload.history import seed_requests
from orchestrator.workload.requests import request_hash

Batch = tuple[int, tuple[int, ...]]  # its number, its seeds
Spread = Callable[["ReplayJob", Sequence[Batch]], Iterator[tuple[int, pa.Table]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """What decides every row: the study as replayed (its seeds and draws), plant, arms."""

    study: StudyConfig
    plant: PlantConfig
    study_dir: Path  # that the study's paths are relative to
    arms: tuple[str, ...] | None  # labels; None: all of the study


def replay_batch(job: ReplayJob, seeds: Iterable[int]) -> pa.Table:
    """Rows of these seeds, in order."""
    return to_table(
        row
        for seed in seeds
        for row in replay_seed(
            job.study, seed=seed, plant=job.plant, study_dir=job.study_dir, arms=job.arms
        )
    )


def in_this_process(job: ReplayJob, batches: Sequence[Batch]) -> Iterator[tuple[int, pa.Table]]:
    """One batch after the other."""
    for number, seeds in batches:
        yield number, replay_batch(job, seeds)


def run_replay(
    job: ReplayJob,
    folder: Path,
    *,
    spread: Spread,
    plant_file: Path,
    progress: Callable[[int, int], None],
) -> Path:
    """Replay what is missing and write study.json, plant.json, provenance.json, replay.parquet.

    ``folder`` is held by the caller (finish.hold_study). A finished replay that is gone on with
    stays as it is until the longer one is whole. ``progress`` is told finished seeds and all.
    ValueError when the folder holds another replay.
    """
    settle(folder)
    facts = _facts(job)
    _refuse_another(folder, job, facts)
    finished = is_finished(folder)
    batches, arms = _batches(job)
    table = ReplayTable(folder, batches=batches, arms=arms, trusted=finished)
    made = study_provenance()
    fixed = {
        "gate_hash": gate_hash(job.study),  # thresholds and family stand before the results
        "commits": _commits(folder, made.get("commit")),
    }
    begun = {**facts, **fixed, **made}
    if finished and table.complete:
        write_atomic(folder / PLANT, plant_file.read_bytes())
        progress(len(job.study.seeds), len(job.study.seeds))
        return folder / NAME
    place = folder / PARTS if finished else folder
    write_study(place, job.study)
    write_atomic(place / PLANT, plant_file.read_bytes())
    write_json(place / PROVENANCE, begun)
    _fill(table, job, spread=spread, progress=progress)
    sealed = {"table_sha256": table_sha256(table.join())}
    write_json(folder / PARTS / PROVENANCE, {**begun, **sealed})
    swap(folder)
    return folder / NAME


def _batches(job: ReplayJob) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Seeds of each row group, and the rows of a seed."""
    arms = len(replayed_arms(job.study, job.arms))
    return cut_batches(job.study.seeds, arms=arms), arms


def _fill(
    table: ReplayTable,
    job: ReplayJob,
    *,
    spread: Spread,
    progress: Callable[[int, int], None],
) -> None:
    """Every batch that is missing."""
    batches, _ = _batches(job)
    total = len(job.study.seeds)
    todo = [(number, batches[number]) for number in table.missing()]
    done = total - sum(len(batch) for _, batch in todo)
    progress(done, total)
    for number, rows in spread(job, todo):
        table.add(number, rows)
        done += len(batches[number])
        progress(done, total)


def _commits(folder: Path, now: object) -> list[object]:
    """Of the code that made the rows: a table that is gone on with may have several."""
    known: list[object] = []
    for path in (folder / PROVENANCE, folder / PARTS / PROVENANCE):
        if path.exists():
            known += read_json(path).get("commits", [])
    return list(dict.fromkeys([*known, now]))


def replay_facts(plant: PlantConfig) -> dict[str, Any]:
    """How every record of a replay is labelled."""
    return {"source": "replay", "engine": "model", "engine_version": plant_version(plant)}


def _facts(job: ReplayJob) -> dict[str, Any]:
    """What a replay is told from another by, beside the study."""
    return {
        **replay_facts(job.plant),
        "arms": None if job.arms is None else list(job.arms),
        "first_request_hash": _first_hash(job),
    }


def _first_hash(job: ReplayJob) -> str | None:
    """Of the first seed's requests: a trace is told by its content, not by its name."""
    study = job.study
    if isinstance(study.load, ClosedLoopConfig):
        return None
    return request_hash(seed_requests(study, seed=study.seeds[0], study_dir=job.study_dir))


def _refuse_another(folder: Path, job: ReplayJob, facts: dict[str, Any]) -> None:
    """More seeds than before go on from them; anything else that differs is another replay."""
    if not (folder / STUDY).exists():
        return
    now, then = job.study.model_dump(mode="json"), read_json(folder / STUDY)
    if now["seeds"][: len(then["seeds"])] == then["seeds"]:
        then = {**then, "seeds": now["seeds"]}
    found = difference_words(then, now)
    if (folder / PLANT).exists():
        held = load_plant(folder / PLANT).plant.model_dump(mode="json")
        found += difference_words({"plant": held}, {"plant": job.plant.model_dump(mode="json")})
    if (folder / PROVENANCE).exists():
        known = read_json(folder / PROVENANCE)
        found += difference_words(*(_told(f, job.study) for f in (known, facts)))
    if found:
        raise ValueError(
            f"{folder}: holds another replay ({'; '.join(found)}); give another --out, or move it "
            "away"
        )


def _told(facts: Mapping[str, Any], study: StudyConfig) -> dict[str, Any]:
    """The facts of a replay that no study file tells, as a reader calls them."""
    arms, digest = facts.get("arms"), facts.get("first_request_hash")
    return {
        "--arms": "all" if arms is None else arms,
        f"requests of seed {study.seeds[0]}": digest and str(digest)[:12],
    }
