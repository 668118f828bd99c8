"""What a study reads beside its YAML: the same content gives the same fingerprint, other not."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.config import HfModelConfig
from orchestrator.config import StudyConfig
from orchestrator.inputs import PART_BYTES, input_fingerprints

MakeStudy = Callable[..., StudyConfig]


def _text_study(make_study: MakeStudy, folder: Path, text: str) -> StudyConfig:
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text(text)
    islands = {"data": {"source": "folder", "folder": str(folder)}}
    return make_study(islands=islands)


def test_training_text_is_told_by_its_bytes_not_by_its_folder(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    found = [
        input_fingerprints(_text_study(make_study, tmp_path / place / "text", text))
        for place, text in (("a", "one"), ("b", "one"), ("c", "two"))
    ]
    assert set(found[0]) == {"training_text"}
    assert found[0] == found[1] != found[2]


def test_what_cannot_be_read_from_here_is_left_out(tmp_path: Path, make_study: MakeStudy) -> None:
    islands = {"data": {"source": "folder", "folder": str(tmp_path / "elsewhere")}}
    assert input_fingerprints(make_study(islands=islands)) == {}


@pytest.mark.parametrize("change", ["name", "first byte", "last byte", "size"])
def test_a_model_folder_is_told_by_names_sizes_and_both_ends_of_each_file(
    tmp_path: Path, make_study: MakeStudy, change: str
) -> None:
    weights = bytearray(PART_BYTES + 5)
    prints = []
    for place in ("a", "b", "c"):
        folder = tmp_path / place / "llama"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        name = "model.bin"
        if place == "c":
            name = "other.bin" if change == "name" else name
            weights += b"x" if change == "size" else b""
            weights[0] = change == "first byte"
            weights[-1] = change == "last byte" or weights[-1]
        (folder / name).write_bytes(weights)
        engine = {
            "kind": "vllm",
            "model": str(folder),
            "max_model_len_tokens": 64,
            "max_num_seqs": 2,
        }
        islands = {"data": {"source": "folder", "folder": str(tmp_path / "no text")}}
        study = make_study(sidecars={"count": 1, "engine": engine}, islands=islands)
        prints.append(input_fingerprints(study))
    assert set(prints[0]) == {"model_folder"}
    assert prints[0] == prints[1] != prints[2]


def test_a_text_is_told_by_its_tokens_wherever_it_comes_from(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "text").mkdir()
    for name in ("one", "two"):
        (tmp_path / "text" / name).write_text(name)
    rows, files = (
        input_fingerprints(make_study(islands={"data": {**data, "cache_dir": str(tmp_path / "c")}}))
        for data in (
            {"source": "jsonl", "path": str(tmp_path / "rows.jsonl")},
            {"source": "folder", "folder": str(tmp_path / "text")},
        )
    )
    assert rows == files == {"training_text": hashlib.sha256(b"one\0two").hexdigest()}


def test_the_islands_own_model_folder_is_told_too(tmp_path: Path, make_study: MakeStudy) -> None:
    study = make_study(islands={"data": {"source": "folder", "folder": str(tmp_path / "no text")}})
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text("{}")
    model = HfModelConfig(kind="hf", path=str(tmp_path / "llama"))
    study = study.model_copy(update={"islands": study.islands.model_copy(update={"model": model})})
    first = input_fingerprints(study)
    (tmp_path / "llama" / "model.safetensors").write_bytes(b"weights")
    assert set(first) == {"trained_folder"}
    assert set(input_fingerprints(study)) == {"trained_folder"}
    assert input_fingerprints(study) != first
