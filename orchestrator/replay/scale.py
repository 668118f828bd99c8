"""A replay of many seeds: batches to whoever computes them, finished ones to disk, one table.

The driver alone writes. Where a batch is computed changes no bit of it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from orchestrator.calibration.gate import gate_hash
from orchestrator.config import StudyConfig
from orchestrator.provenance import study_provenance
from orchestrator.record_files import read_json, write_json
from orchestrator.replay.block import replay_seed, replayed_arms
from orchestrator.replay.calibrated import load_plant
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.standing import plant_version
from orchestrator.replay.table import NAME, ReplayTable, cut_batches, table_sha256, to_table
from orchestrator.rundir import write_study
from orchestrator.workload.config import ClosedLoopConfig
from orchestrator.workload.requests import make_requests, request_hash

PLANT = "plant.json"
PROVENANCE = "provenance.json"
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

    ``folder`` is held by the caller (finish.hold_study). ``progress`` is told finished seeds and
    all. ValueError when the folder holds another replay.
    """
    seeds, arms = job.study.seeds, len(replayed_arms(job.study, job.arms))
    table = ReplayTable(folder, batches=cut_batches(seeds, arms=arms), arms=arms)
    facts = _facts(job)
    _refuse_another(folder, job, facts)
    write_study(folder, job.study)
    (folder / PLANT).write_bytes(plant_file.read_bytes())
    made = study_provenance()
    fixed = {
        "gate_hash": gate_hash(job.study),  # thresholds and family stand before the results
        "commits": _commits(folder, made.get("commit")),
    }
    write_json(folder / PROVENANCE, {**facts, **fixed, **made})
    batches = list(enumerate(cut_batches(seeds, arms=arms)))
    missing = set(table.missing())
    todo = [batch for batch in batches if batch[0] in missing]
    done = len(seeds) - sum(len(batch) for _, batch in todo)
    progress(done, len(seeds))
    sizes = dict(batches)
    for number, rows in spread(job, todo):
        table.add(number, rows)
        done += len(sizes[number])
        progress(done, len(seeds))
    if not table.complete:
        table.join()
    sealed = {**fixed, "table_sha256": table_sha256(folder / NAME)}
    write_json(folder / PROVENANCE, {**facts, **sealed, **made})
    return folder / NAME


def _commits(folder: Path, now: object) -> list[object]:
    """Of the code that made the rows: a table that is gone on with may have several."""
    path = folder / PROVENANCE
    known = read_json(path).get("commits", []) if path.exists() else []
    return known if now in known else [*known, now]


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
    requests = make_requests(
        study.load,
        seed=study.seeds[0],
        horizon_s=study.horizon_s,
        sidecars=study.sidecars.count,
        study_dir=job.study_dir,
    )
    return request_hash(requests)


def _refuse_changed(table: Path, *, seal: object) -> None:
    """A finished table is never sealed anew: what was changed in it would become its record."""
    if seal is not None and table.exists() and table_sha256(table) != seal:
        raise ValueError(
            f"{table}: is not the table that {PROVENANCE} sealed (table_sha256): it was changed "
            "after the replay; move the folder away and replay again"
        )


def _refuse_another(folder: Path, job: ReplayJob, facts: dict[str, Any]) -> None:
    """More seeds than before go on from them; anything else that differs is another replay."""
    if not (folder / "study.json").exists():
        return
    now, then = job.study.model_dump(mode="json"), read_json(folder / "study.json")
    differing = [key for key in now if key != "seeds" and now[key] != then.get(key)]
    if (folder / PLANT).exists() and load_plant(folder / PLANT).plant != job.plant:
        differing.append("plant")
    if (folder / PROVENANCE).exists():
        known = read_json(folder / PROVENANCE)
        differing += [k for k in ("arms", "first_request_hash") if known.get(k) != facts[k]]
        _refuse_changed(folder / NAME, seal=known.get("table_sha256"))
    if now["seeds"][: len(then["seeds"])] != then["seeds"]:
        differing.append("seeds")
    if differing:
        raise ValueError(
            f"{folder}: holds a replay with another {', '.join(differing)}; give another --out, "
            "or move it away"
        )
