"""`<out>/<study>-sweep/`: which sweep lies there, and the tables that follow from its results."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from orchestrator.config import StudyConfig
from orchestrator.differences import difference_words
from orchestrator.provenance import study_provenance
from orchestrator.record_files import read_json, write_atomic, write_json
from orchestrator.replay.calibrated import Calibration
from orchestrator.replay.standing import plant_version
from orchestrator.report.mirror import short_hash
from orchestrator.sweep.blocks import loads_of
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.figures import BlockFigures
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.result import SweepResult, flat_rows, result_json
from orchestrator.workload.config import ClosedLoopConfig
from orchestrator.workload.history import seed_requests
from orchestrator.workload.requests import request_hash

RESULTS, IDENTITY = "results.jsonl", "sweep.json"
WORDS = ("result.json", "sweep.html", "sweep.md")


def begin(
    folder: Path,
    study: StudyConfig,
    space: SpaceConfig,
    *,
    calibration: Calibration,
    study_dir: Path,
    resume: bool,
) -> Ledger:
    """Write sweep.json, or check that the one that is there is the same sweep; its results.

    ``--resume`` may ask for more settings, never for fewer than were asked for; ValueError for
    anything else that differs, for a sweep that is there without ``resume``, for none that is
    there with it, and for results that were changed.
    """
    now = _identity(study, space, calibration=calibration, study_dir=study_dir)
    path = folder / IDENTITY
    if not path.exists():
        if resume:
            raise ValueError(f"{folder}: holds no sweep to resume; leave --resume out")
        if (folder / RESULTS).exists():
            raise ValueError(
                f"{folder}: holds {RESULTS} without its {IDENTITY}; restore it, or give another "
                "--out"
            )
        write_json(path, now)
        write_json(folder / "provenance.json", study_provenance())
        return read_ledger(folder)
    if not resume:
        raise ValueError(
            f"{folder}: holds a sweep; --resume goes on with it, --out OTHER starts another"
        )
    then = read_json(path)
    found = difference_words(_fixed(then), _fixed(now))
    if found:
        raise ValueError(
            f"{folder}: holds another sweep ({'; '.join(found)}); give another --out, or move it "
            "away"
        )
    ledger = read_ledger(folder)
    if space.settings < ledger.asked:
        raise ValueError(
            f"{folder}: settings={space.settings}, and {ledger.asked} were asked for already; each "
            f"of them counts as a try for ever: give --settings {ledger.asked} or more"
        )
    write_json(path, now)
    return ledger


def read_ledger(folder: Path) -> Ledger:
    """results.jsonl of the sweep that sweep.json names; ValueError for a line that is not its."""
    return Ledger(folder / RESULTS, identity=sweep_id(read_json(folder / IDENTITY)))


def sweep_id(identity: Mapping[str, Any]) -> str:
    """Hash of sweep.json without the number of settings, which may grow."""
    space = {k: v for k, v in identity.get("space", {}).items() if k != "settings"}
    return short_hash({**identity, "space": space})


def drop_words(folder: Path) -> None:
    """What was said of fewer settings holds no longer once more were played."""
    for name in (*WORDS, "settings.parquet", "blocks.parquet"):
        (folder / name).unlink(missing_ok=True)


def _fixed(identity: Mapping[str, Any]) -> dict[str, Any]:
    """All but how many settings are asked for."""
    space = identity.get("space")
    kept = {k: v for k, v in space.items() if k != "settings"} if isinstance(space, dict) else space
    return {**identity, "space": kept}


def _identity(
    study: StudyConfig, space: SpaceConfig, *, calibration: Calibration, study_dir: Path
) -> dict[str, Any]:
    made = {
        "format": "lull-sweep-2",
        "study": study.model_dump(mode="json"),
        "space": space.model_dump(mode="json"),
        "plant": plant_version(calibration.plant),
        "calibration": short_hash(calibration.model_dump(mode="json")),
        "request_hashes": _first_hashes(study, space, study_dir=study_dir),
    }
    plain: dict[str, Any] = json.loads(json.dumps(made, allow_nan=False))
    return plain


def _first_hashes(study: StudyConfig, space: SpaceConfig, *, study_dir: Path) -> list[str | None]:
    """Of the first seed of each tuning load: a trace is told by its content, not by its name."""
    found: list[str | None] = []
    for load in loads_of(study, space.tuning):
        if isinstance(load, ClosedLoopConfig):
            found.append(None)
            continue
        tuned = study.model_copy(update={"load": load})
        first = seed_requests(tuned, seed=space.tuning.seeds.first, study_dir=study_dir)
        found.append(request_hash(first))
    return found


def next_attempt(folder: Path) -> str:
    """A name that Tune has not used: nothing of an earlier attempt is read or written over."""
    used = [p.name for p in (folder / "tune").glob("attempt-*")]
    return f"attempt-{1 + max((int(n.removeprefix('attempt-')) for n in used), default=0)}"


def write_tables(folder: Path, result: SweepResult, rows: Sequence[BlockFigures]) -> list[Path]:
    """settings.parquet, blocks.parquet and result.json, all from results.jsonl and judging/."""
    settings, blocks = folder / "settings.parquet", folder / "blocks.parquet"
    _write_parquet(settings, flat_rows(result.settings))
    _write_parquet(blocks, [asdict(row) for row in rows])
    write_json(folder / "result.json", result_json(result))
    return [settings, blocks, folder / "result.json"]


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    buffer = io.BytesIO()
    pl.DataFrame(rows, infer_schema_length=None, strict=False).write_parquet(buffer)
    write_atomic(path, buffer.getvalue())
