"""A finished replay stays whole while a longer one is made beside it, in replay.parts/.

The files of the longer one are put in place together; a swap that was cut is ended by the next
replay. The mark of a swap under way is a provenance.json in replay.parts/ with a table_sha256.
"""

import shutil
from pathlib import Path

from orchestrator.record_files import read_json, sync_folder
from orchestrator.replay.table import NAME, PARTS, table_sha256

STUDY, PLANT, PROVENANCE = "study.json", "plant.json", "provenance.json"


def seal_of(folder: Path) -> object:
    """table_sha256 of the folder's provenance.json; None where there is none yet."""
    path = folder / PROVENANCE
    if not path.exists():
        return None
    made = read_json(path)
    if not isinstance(made, dict):
        raise ValueError(f"{path}: holds no mapping; replay again")
    return made.get("table_sha256")


def is_finished(folder: Path) -> bool:
    """The table is there and just the one that the replay wrote."""
    table = folder / NAME
    return table.exists() and seal_of(folder) == table_sha256(table)


def swap_was_cut(folder: Path) -> bool:
    """Some files of a longer replay may be in place, others not yet."""
    return seal_of(folder / PARTS) is not None


def settle(folder: Path) -> None:
    """End a swap that was cut; drop what one that ended left behind."""
    parts = folder / PARTS
    if swap_was_cut(folder):
        swap(folder)
    elif parts.exists() and not (parts / PROVENANCE).exists() and is_finished(folder):
        shutil.rmtree(parts)


def swap(folder: Path) -> None:
    """Put the files of replay.parts/ in place, the mark last, then drop the batches."""
    parts = folder / PARTS
    for name in (STUDY, PLANT, NAME):
        if (parts / name).exists():
            (parts / name).replace(folder / name)
    sync_folder(folder)
    (parts / PROVENANCE).replace(folder / PROVENANCE)
    sync_folder(folder)
    shutil.rmtree(parts, ignore_errors=True)
