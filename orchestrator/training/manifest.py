"""A checkpoint's manifest: written last, so that a checkpoint without one never was.

It names every file with its size and SHA-256, and how far the event log and the training rows
reached; a run goes on from the newest checkpoint that is whole.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.durable import sync_folder, what_is_wrong
from actors.events import Checkpointed, from_record, to_record
from orchestrator.record_files import read_json, write_json

_NAME = "manifest.json"
_DIGEST = "sha256"
_PREFIX = "checkpoint-r"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One whole checkpoint."""

    checkpoint: Checkpointed
    events_bytes: int  # length of events.jsonl up to and with the checkpoint's own event
    train_bytes: int  # of the spooled training rows


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Makes the checkpoint in ``folder`` one that counts."""
    body = {
        "checkpoint": to_record(manifest.checkpoint),
        "events_bytes": manifest.events_bytes,
        "train_bytes": manifest.train_bytes,
    }
    write_json(folder / _NAME, {**body, _DIGEST: _digest(body)})
    sync_folder(folder)


def _digest(body: dict[str, Any]) -> str:
    """SHA-256 of the manifest's own content."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def newest_checkpoint(run: Path, *, warn: Callable[[str], None]) -> Manifest | None:
    """The newest whole one; each that is torn or was changed is passed over with a word."""
    for folder in _by_age(run):
        if not (folder / _NAME).exists():
            warn(f"{folder.name}: was not written to its end, passed over")
            continue
        try:
            manifest = read_manifest(folder)
        except ValueError as error:
            warn(f"{folder.name}: passed over: {error}")
            continue
        wrong = [
            problem
            for file in manifest.checkpoint.files
            if (problem := what_is_wrong(folder / file.name, expected=file)) is not None
        ]
        if not wrong:
            return manifest
        warn(f"{folder.name}: passed over: {wrong[0]}")
    return None


def read_manifest(folder: Path) -> Manifest:
    """ValueError when it is not one."""
    path = folder / _NAME
    raw = read_json(path)
    try:
        body = {key: value for key, value in raw.items() if key != _DIGEST}
        if raw[_DIGEST] != _digest(body):
            raise ValueError(f"{path}: its SHA-256 is another: it was changed after it was written")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is no manifest of this version ({error!r})") from error
    try:
        checkpoint = from_record(raw["checkpoint"])
        events_bytes, train_bytes = int(raw["events_bytes"]), int(raw["train_bytes"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: is no manifest of this version ({error!r})") from error
    if not isinstance(checkpoint, Checkpointed):
        raise ValueError(f"{path}: its event is a {type(checkpoint).__name__}")
    return Manifest(checkpoint=checkpoint, events_bytes=events_bytes, train_bytes=train_bytes)


def keep_newest(run: Path, *, keep: int) -> None:
    """Remove older checkpoints, and what a crash left of some; a manifest goes first of all.

    One that is newer than all whole ones stays: islands may be writing it.
    """
    whole = 0
    for folder in _by_age(run):
        has_manifest = (folder / _NAME).exists()
        whole += has_manifest
        if whole > keep or (whole and not has_manifest):
            (folder / _NAME).unlink(missing_ok=True)
            shutil.rmtree(folder)


def drop_after(run: Path, manifest: Manifest | None) -> None:
    """Remove what was written after the checkpoint that a run goes on from, and all ruins.

    Where none of several is whole, and the run begins anew, they are put aside: a person may know
    more of them.
    """
    newest = -1 if manifest is None else manifest.checkpoint.round
    for folder in _by_age(run):
        if _round_of(folder) <= newest and (folder / _NAME).exists():
            continue
        if manifest is None and (folder / _NAME).exists():
            _put_aside(folder)
            continue
        (folder / _NAME).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _put_aside(folder: Path) -> None:
    place = folder.with_name(f"damaged-{folder.name}")
    if place.exists():
        shutil.rmtree(place)
    folder.rename(place)


def _by_age(run: Path) -> list[Path]:
    """Newest first."""
    found = [f for f in run.glob(f"{_PREFIX}*") if f.is_dir() and _round_of(f) >= 0]
    return sorted(found, key=_round_of, reverse=True)


def _round_of(folder: Path) -> int:
    digits = folder.name.removeprefix(_PREFIX)
    return int(digits) if digits.isdigit() else -1


def as_json(manifest: Manifest) -> dict[str, Any]:
    """For a reader of the run: which checkpoint it went on from."""
    return {
        "round": manifest.checkpoint.round,
        "tick": manifest.checkpoint.tick,
        "event_id": manifest.checkpoint.event_id,
    }
