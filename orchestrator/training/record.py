"""The folder of a run on the step clock: events, training rows, checkpoints, and going on from one.

config.json  provenance.json  events.jsonl  train.jsonl.part -> train.parquet  checkpoint-r*/
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from actors.coordinator.step_clock import ResumeFrom, checkpoint_folder
from actors.durable import sync_file
from actors.events import (
    ArmFinished,
    Checkpointed,
    CheckpointFailed,
    Event,
    from_record,
    to_record,
)
from orchestrator.record_files import (
    LineFile,
    read_json,
    read_lines,
    strict_json,
    write_json,
)
from orchestrator.record_tables import check_keys, plain_table, read_table, write_table
from orchestrator.training.manifest import (
    Manifest,
    drop_after,
    keep_newest,
    newest_checkpoint,
    write_manifest,
)

_SPOOL = "train.jsonl.part"


class StepWriter:
    """The one writer of a run; what a call was given is with the system when it returns.

    ``after``: id of the last event that the log holds already.
    """

    def __init__(self, folder: Path, *, keep: int, after: int = 0) -> None:
        self._folder = folder
        self._keep = keep
        self._events = LineFile(folder / "events.jsonl")
        self._rows = LineFile(folder / _SPOOL)
        self._last_id = after

    def begin(self, *, config: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """A new run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_json(self._folder / "provenance.json", dict(provenance))
        write_json(self._folder / "config.json", dict(config))

    def take(
        self, events: Iterable[Event], rows: Mapping[int, Iterable[Mapping[str, Any]]]
    ) -> None:
        """Events in order; ``rows`` by the id of the event that they belong before."""
        for event in events:
            self.train_rows(rows.get(event.event_id, ()))
            self.event(event)

    def event(self, event: Event) -> None:
        where = f"{self._events.path}: event {event.event_id}"
        self._events.append(strict_json(to_record(event), where=where) + "\n")
        self._last_id = max(self._last_id, event.event_id)
        if isinstance(event, CheckpointFailed):  # what was written of it would fill the disk
            shutil.rmtree(self._folder / checkpoint_folder(event.round), ignore_errors=True)
        if isinstance(event, Checkpointed):
            self._seal(event)

    def _seal(self, event: Checkpointed) -> None:
        """Everything up to here is durable before the checkpoint counts."""
        self._events.close()
        self._rows.close()
        manifest = Manifest(
            checkpoint=event,
            events_bytes=self._events.path.stat().st_size,
            train_bytes=_size(self._rows.path),
        )
        write_manifest(self._folder / event.folder, manifest)
        keep_newest(self._folder, keep=self._keep)

    def next_id(self) -> int:
        """For an event that the driver itself says."""
        return self._last_id + 1

    def train_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        lines = []
        for row in rows:
            check_keys("train", row)
            lines.append(strict_json(dict(row), where=str(self._rows.path)) + "\n")
        if lines:
            self._rows.append("".join(lines))

    def finish(self, status: str, why: str | None, at_s: float) -> None:
        """The table, then the event that proves the run, then the rows that it was made of go."""
        self._rows.close()
        rows, _ = read_lines(self._rows.path)
        table = plain_table("train", (row for _, row in rows))
        write_table(self._folder / "train.parquet", table)
        self.event(ArmFinished(event_id=self._last_id + 1, at_s=at_s, status=status, why=why))
        self._events.close()
        if status == "complete":  # else the run may go on from a checkpoint, and needs them
            self._rows.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._events.close()
        self._rows.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A run on the step clock as it lies on disk."""

    path: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    events: tuple[Event, ...]
    train: pa.Table
    status: str
    why: str | None


def read_step_run(folder: Path) -> StepRecord:
    """ValueError when a file is damaged; a killed run reads as partial."""
    events = read_events(folder / "events.jsonl")
    table = folder / "train.parquet"
    last = events[-1] if events else None
    ended = isinstance(last, ArmFinished) and table.exists()
    if ended:
        train = read_table(table, name="train")
    else:
        train = plain_table("train", (row for _, row in read_lines(folder / _SPOOL)[0]))
    return StepRecord(
        path=folder,
        config=read_json(folder / "config.json"),
        provenance=read_json(folder / "provenance.json"),
        events=events,
        train=train,
        status=last.status if ended and isinstance(last, ArmFinished) else "partial",
        why=last.why if isinstance(last, ArmFinished) else "ended from outside",
    )


def read_events(path: Path) -> tuple[Event, ...]:
    """Whole lines; a last one that a kill cut is no event."""
    lines, _ = read_lines(path)
    events = []
    for number, raw in lines:
        try:
            events.append(from_record(raw))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{path}, line {number}: is no event of this version ({error})"
            ) from error
    return tuple(events)


def go_on(folder: Path, *, warn: Callable[[str], None]) -> ResumeFrom | None:
    """The run as of its newest whole checkpoint; what came after it is put aside.

    None: there is no checkpoint, so the run begins anew (everything is put aside).
    """
    manifest = newest_checkpoint(folder, warn=warn)
    drop_after(folder, manifest)
    (folder / "train.parquet").unlink(missing_ok=True)
    _cut(folder / "events.jsonl", 0 if manifest is None else manifest.events_bytes)
    _cut(folder / _SPOOL, 0 if manifest is None else manifest.train_bytes)
    if manifest is None:
        return None
    events = read_events(folder / "events.jsonl")
    if not events or events[-1] != manifest.checkpoint:
        raise ValueError(
            f"{folder / 'events.jsonl'}: does not end with the checkpoint of round "
            f"{manifest.checkpoint.round}; it was changed after it was written: restore it, or "
            "remove the run folder"
        )
    return ResumeFrom(checkpoint=manifest.checkpoint, events=events)


def _cut(path: Path, size_bytes: int) -> None:
    """Shorten a file; what is cut off is kept beside it: nothing that was logged is lost."""
    if not path.exists():
        if size_bytes:
            raise ValueError(f"{path}: is missing; restore it, or remove the run folder")
        return
    whole = path.read_bytes()
    if len(whole) < size_bytes:
        raise ValueError(
            f"{path}: {len(whole)} bytes, the checkpoint was written after {size_bytes}; restore "
            "it, or remove the run folder"
        )
    if len(whole) == size_bytes:
        return
    with path.with_name(f"{path.name}.superseded").open("ab") as aside:
        aside.write(whole[size_bytes:])
    with path.open("r+b") as file:
        file.truncate(size_bytes)
    sync_file(path)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def same_config(folder: Path, config: Mapping[str, Any]) -> bool:
    """The run in ``folder`` is the one that this config asks for."""
    found = read_json(folder / "config.json")
    wanted = json.loads(json.dumps(dict(config)))
    return all(found.get(k) == wanted[k] for k in ("run_hash", "request_hash", "seed", "arm"))
