"""A folder of exported weights is whole or refused, by name and with what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.serving.exported import (
    INITIAL_ROUND,
    MANIFEST,
    NotExported,
    probe_prompt,
    read_exported,
    round_folder,
    write_exported,
)
from actors.serving.llama_folder import WEIGHTS
from tests.actors.serving.exported_folder import SHAPE, export


def test_what_was_written_is_read(tmp_path: Path) -> None:
    target = export(tmp_path, 3)
    found = read_exported(target)
    assert (found.folder, found.round) == (target.resolve(), 3)
    assert found.weights_bytes == (target / WEIGHTS).stat().st_size
    assert found.config["architectures"] == ["LlamaForCausalLM"]
    assert found.tensors["lm_head.weight"] == ("F32", (260, 8))
    assert len(found.tensors) == 3 + 9
    assert len(found.probe.logprobs) == 260
    assert found.probe.prompt == tuple(range(32, 96))
    assert list(tmp_path.iterdir()) == [target]


def test_a_round_that_is_exported_again_takes_the_place_of_the_old_folder(tmp_path: Path) -> None:
    first = read_exported(export(tmp_path, 3, seed=1))
    again = read_exported(export(tmp_path, 3, seed=2))
    assert again.folder == first.folder
    assert again.probe != first.probe
    assert list(tmp_path.iterdir()) == [tmp_path / "round-00003"]


def test_an_export_that_breaks_off_leaves_nothing_and_the_old_folder(tmp_path: Path) -> None:
    old = read_exported(export(tmp_path, 3))

    def full(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_exported(old.folder, SHAPE, old.probe, round_=3, save=full)
    assert list(tmp_path.iterdir()) == [old.folder]
    assert read_exported(old.folder) == old


def damage_cut(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: len(whole) // 2])


def damage_header(folder: Path) -> None:
    with (folder / WEIGHTS).open("r+b") as file:
        file.write(b"\xff" * 8)


def damage_manifest(folder: Path) -> None:
    raw = json.loads((folder / MANIFEST).read_text())
    raw["round"] = "three"
    (folder / MANIFEST).write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (damage_cut, r"model\.safetensors: \d+ bytes, where lull\.json lists"),
        (damage_header, "cannot be read"),
        (damage_manifest, r"lull\.json: round: "),
        (lambda folder: (folder / MANIFEST).write_text('{"format"'), r"lull\.json: file: "),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json: missing"),
        (lambda folder: (folder / MANIFEST).unlink(), r"no lull\.json"),
    ],
    ids=["cut off", "broken header", "wrong type", "no JSON", "no config", "no manifest"],
)
def test_a_folder_that_is_not_whole_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    folder = export(tmp_path, 0)
    damage(folder)
    with pytest.raises(NotExported, match=why) as caught:
        read_exported(folder)
    assert str(folder.resolve()) in str(caught.value)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotExported, match="on this node"):
        read_exported(tmp_path / "round-00001")


def test_rounds_have_folders_and_the_weights_before_any_merge_too() -> None:
    assert round_folder(Path("served"), 12) == Path("served/round-00012")
    assert round_folder(Path("served"), INITIAL_ROUND) == Path("served/round-initial")


def test_the_prompt_leaves_room_for_an_answer() -> None:
    assert len(probe_prompt(1024)) == 64
    assert probe_prompt(9) == tuple(range(32, 40))
    with pytest.raises(ValueError, match="no room"):
        probe_prompt(1)
