"""Checkpoints: only whole ones count, and a crash between any two writes costs one at most."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record_files import LineFile
from orchestrator.training import manifest as manifests
from orchestrator.training import record as records
from orchestrator.training.manifest import (
    Manifest,
    drop_after,
    keep_newest,
    newest_checkpoint,
    read_manifest,
    write_manifest,
)
from orchestrator.training.record import go_on, read_step_run
from tests.orchestrator.training.made_runs import (
    Script,
    checkpointed,
    folder_of,
    started,
    write_files,
)


def whole(run: Path, *rounds: int) -> None:
    for round_ in rounds:
        write_files(run, round_)
        event = checkpointed(round_, event_id=10 * round_)
        manifest = Manifest(checkpoint=event, events_bytes=100 * round_, train_bytes=7)
        write_manifest(run / folder_of(round_), manifest)


def reword(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def left(run: Path) -> list[int]:
    return sorted(int(folder.name[-5:]) for folder in run.glob("checkpoint-r*"))


def test_a_manifest_reads_as_it_was_written(tmp_path: Path) -> None:
    whole(tmp_path, 3)
    found = read_manifest(tmp_path / folder_of(3))
    assert (found.events_bytes, found.train_bytes) == (300, 7)
    assert found.checkpoint == checkpointed(3, event_id=30)


Damage = Callable[[Path], Any]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "globals.safetensors").write_text("x"), "1 bytes, 22 were written"),
        (lambda f: (f / "globals.safetensors").write_text("Globals after merge 2\n"), "SHA-256"),
        (lambda f: (f / "island-0.safetensors").unlink(), "No such file"),
        (lambda f: (f / "manifest.json").unlink(), "was not written to its end"),
        (lambda f: (f / "manifest.json").write_text('{"checkpoint": '), "is no strict JSON"),
        (lambda f: (f / "manifest.json").write_text('{"events_bytes": 3}'), "is no manifest"),
        (lambda f: (f / "manifest.json").write_text("[]"), "is no manifest"),
        (lambda f: reword(f / "manifest.json", '"train_bytes": 7', '"train_bytes": 3'), "SHA-256"),
        (lambda f: reword(f / "manifest.json", '"at_s": ', '"at_s": 1'), "SHA-256"),
    ],
    ids=["cut", "changed", "missing", "unfinished", "torn", "foreign", "list", "digit", "event"],
)
def test_what_is_not_whole_is_passed_over_with_a_word(
    tmp_path: Path, damage: Damage, said: str
) -> None:
    whole(tmp_path, 1, 2)
    damage(tmp_path / folder_of(2))
    heard: list[str] = []
    found = newest_checkpoint(tmp_path, warn=heard.append)
    assert found is not None
    assert found.checkpoint.round == 1
    (line,) = heard
    assert line.startswith("checkpoint-r00002: ")
    assert said in line
    assert "passed over" in line


def test_an_event_of_another_kind_is_no_checkpoint(tmp_path: Path) -> None:
    whole(tmp_path, 1)
    path = tmp_path / folder_of(1) / "manifest.json"
    raw = json.loads(path.read_text())
    raw["checkpoint"] = {
        "type": "arm_started", "event_id": 1, "at_s": 0.0, "arm": "a", "seed": 1, "islands": [0]
    }  # fmt: skip
    del raw["sha256"]
    raw["sha256"] = hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(raw))
    with pytest.raises(ValueError, match="its event is a ArmStarted"):
        read_manifest(path.parent)


def test_a_run_without_checkpoints_has_no_newest_one(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path, warn=pytest.fail) is None


def test_the_newest_whole_ones_are_kept_and_no_ruin_of_an_older_one(tmp_path: Path) -> None:
    whole(tmp_path, 1, 3, 4, 100000)
    write_files(tmp_path, 2)  # a crash took its manifest
    write_files(tmp_path, 100001)  # islands are writing it
    (tmp_path / "checkpoint-rubbish").mkdir()
    keep_newest(tmp_path, keep=2)
    assert [f.name for f in sorted(tmp_path.iterdir())] == [
        "checkpoint-r00004",
        "checkpoint-r100000",
        "checkpoint-r100001",
        "checkpoint-rubbish",
    ]


def test_what_came_after_the_one_that_a_run_goes_on_from_is_removed(tmp_path: Path) -> None:
    whole(tmp_path, 1, 2, 3)
    write_files(tmp_path, 4)
    drop_after(tmp_path, read_manifest(tmp_path / folder_of(2)))
    assert left(tmp_path) == [1, 2]
    (tmp_path / folder_of(1) / "manifest.json").unlink()
    drop_after(tmp_path, None)
    assert left(tmp_path) == []
    assert [f.name for f in tmp_path.iterdir()] == [f"damaged-{folder_of(2)}"]


class Crash(Exception):
    """The driver is killed here."""


class Bomb:
    """Ends the process before one of its writes; half of a line may be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.writes = 0
        places: list[tuple[Any, str]] = [
            (LineFile, "append"),
            (LineFile, "close"),
            (manifests, "write_json"),
            (manifests, "sync_folder"),
            (records, "write_json"),
            (records, "write_table"),
            (shutil, "rmtree"),
            (Path, "unlink"),
        ]
        for owner, name in places:
            self._guard(monkeypatch, owner, name)
        monkeypatch.setattr(os, "fsync", lambda _: None)  # power does not fail here

    def _guard(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def guarded(*args: Any, **how: Any) -> Any:
            self.writes += 1
            if self.left == self.writes:
                if name == "append":
                    with args[0].path.open("a") as file:
                        file.write(args[1][: len(args[1]) // 2])
                raise Crash(name)
            return original(*args, **how)

        monkeypatch.setattr(owner, name, guarded)

    def explode(self, at: int) -> None:
        self.left, self.writes = at, 0

    def defuse(self) -> None:
        self.left, self.writes = None, 0


def test_a_crash_before_any_write_loses_nothing_that_a_checkpoint_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = Bomb(monkeypatch)
    Script(run=tmp_path / "whole").play(keep=2)
    writes = bomb.writes
    assert writes > 20
    wanted = read_step_run(tmp_path / "whole")
    went_on: set[int | None] = set()
    for at in range(1, writes + 1):
        script = Script(run=tmp_path / f"cut-{at}")
        bomb.explode(at)
        with pytest.raises(Crash):
            script.play(keep=2)
        bomb.defuse()
        if not (script.run / "config.json").exists():
            script.play(keep=2)
        elif read_step_run(script.run).status != "complete":
            resume = go_on(script.run, warn=lambda _: None)
            went_on.add(None if resume is None else resume.checkpoint.round)
            script.play(keep=2, resume=resume)
        found = read_step_run(script.run)
        assert (found.status, found.events) == ("complete", wanted.events), at
        assert found.train.equals(wanted.train), at
        assert left(script.run)[-2:] == [2, 3], at
    assert went_on == {None, 1, 2, 3}


def test_the_crashes_are_told_apart_by_what_they_cost(tmp_path: Path) -> None:
    """A checkpoint whose manifest was not written is none, whatever the log says."""
    script = Script(run=tmp_path / "run")
    script.play(keep=3, ends=False)
    (script.run / folder_of(3) / "manifest.json").unlink()
    heard: list[str] = []
    resume = go_on(script.run, warn=heard.append)
    assert resume is not None
    assert resume.checkpoint.round == 2
    assert resume.events[0] == started(1)
    assert heard == ["checkpoint-r00003: was not written to its end, passed over"]
