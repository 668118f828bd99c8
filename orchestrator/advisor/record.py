"""The record of an advice: config.json, provenance.json, events.jsonl and what learners said.

`lull redecide` reads it as it reads a run. There are no requests and no training rows of ours in
it: notes.jsonl holds what the learners told, pressure.jsonl every look at the server.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from actors.events import Event, to_record
from orchestrator.record_files import (
    LineFile,
    read_json,
    read_lines,
    strict_json,
    sync_folder,
    write_json,
)
from orchestrator.record_tables import plain_table, requests_table
from orchestrator.records import ArmSpec, RunRecord
from orchestrator.rundir import read_events, run_status

MOST_FOLDERS = 100_000


def new_folder(out_dir: Path, name: str) -> Path:
    """The first of NAME-advice-0, -1, ... that is not there, made: each advice has its own."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for number in range(MOST_FOLDERS):
        folder = out_dir / f"{name}-advice-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise ValueError(f"{out_dir}: holds {MOST_FOLDERS} folders of {name}; give another --out")


def refuse_used(folder: Path) -> None:
    """ValueError where a run or an advice lies already: nothing is overwritten."""
    if (folder / "config.json").exists():
        raise ValueError(f"{folder}: holds a run already; give another folder")


class AdviceWriter:
    """The one writer of an advice's folder; what it was given survives a kill of this process.

    Synced to the disk at its end: a power cut may take the last lines, never the middle.
    """

    def __init__(
        self, folder: Path, *, config: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        refuse_used(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files = {
            name: LineFile(folder / f"{name}.jsonl") for name in ("events", "notes", "pressure")
        }
        write_json(folder / "provenance.json", dict(provenance))
        write_json(folder / "config.json", dict(config))

    def events(self, events: Iterable[Event]) -> None:
        self._append("events", (to_record(event) for event in events))

    def notes(self, notes: Iterable[Mapping[str, Any]]) -> None:
        self._append("notes", notes)

    def pressure(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._append("pressure", rows)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        sync_folder(self._folder)

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        file = self._files[name]
        text = "".join(strict_json(dict(row), where=str(file.path)) + "\n" for row in rows)
        if text:
            file.append(text)


def is_advice(folder: Path) -> bool:
    """Whether config.json there is that of an advice; ValueError when it cannot be read."""
    config = read_json(folder / "config.json")
    return isinstance(config, dict) and "advice" in config


def read_advice(folder: Path) -> RunRecord:
    """The record as it lies there; one that was killed reads as partial."""
    config, provenance = read_json(folder / "config.json"), read_json(folder / "provenance.json")
    if not (isinstance(config, dict) and isinstance(provenance, dict)):
        raise ValueError(f"{folder}: config.json or provenance.json is no object; restore it")
    events, torn = read_events(folder / "events.jsonl")
    try:
        arm = ArmSpec(**config["arm"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'config.json'}: arm unreadable ({error!r})") from error
    status, why = run_status(events, torn=torn, lacking=())
    rows = [row for _, row in read_lines(folder / "pressure.jsonl")[0]]
    return RunRecord(
        path=folder,
        arm=arm,
        seed=0,
        config=config,
        provenance=provenance,
        events=events,
        requests=requests_table([], windows=(), e2e_limit_s=0.0),
        train=plain_table("train", []),
        pressure=plain_table("pressure", rows),
        status=status,
        why=why,
    )
