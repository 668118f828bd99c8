"""The merged model on disk: complete or absent, the newest few, a checksum, a named full disk."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from actors.config import ModelConfig
from actors.durable import says_full, what_is_wrong
from actors.island.checkpoint import merged_tensors, write_checkpoint
from actors.island.flat import FlatParameters
from actors.island.model import ByteLM, build_model
from actors.island.state_file import DiskFull, TornFile, read_state, write_state

pytestmark = pytest.mark.torch

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7, dtype=torch.int64)}


@pytest.fixture
def model() -> ByteLM:
    config = ModelConfig(hidden_size=16, layers=1, heads=2, kv_heads=1, ffn_size=24)
    return build_model(config, seed=0, max_len_tokens=16)


def tensors_of(model: ByteLM) -> dict[str, Tensor]:
    flat = FlatParameters(model, make=lambda n: torch.zeros(n))
    return merged_tensors(model, flat, flat.vector.clone())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_parameters_come_back_to_the_bit_and_tied_weights_once(
    model: ByteLM, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "folder"
    written = write_checkpoint(folder, tensors_of(model), round_=3)
    stored = load_file(folder / written.name)
    assert set(stored) == {name for name, _ in model.named_parameters()}
    assert "head.weight" not in stored
    assert all(torch.equal(stored[name], p) for name, p in model.named_parameters())


def test_the_checksum_is_that_of_the_file_as_sha256sum_reads_it(
    model: ByteLM, tmp_path: Path
) -> None:
    written = write_checkpoint(tmp_path, tensors_of(model), round_=3)
    raw = (tmp_path / "merged-r00003.safetensors").read_bytes()
    assert written.sha256 == hashlib.sha256(raw).hexdigest()
    assert written.size_bytes == len(raw)
    told = (tmp_path / "merged-r00003.sha256").read_text()
    assert told == f"{written.sha256}  merged-r00003.safetensors\n"


def test_a_frozen_parameter_is_stored_as_it_is(model: ByteLM, tmp_path: Path) -> None:
    model.norm.weight.requires_grad_(False)
    flat = FlatParameters(model, make=lambda n: torch.zeros(n))
    written = write_checkpoint(
        tmp_path, merged_tensors(model, flat, torch.zeros(flat.numbers)), round_=0
    )
    stored = load_file(tmp_path / written.name)
    assert (stored["norm.weight"] == 1.0).all()
    assert not stored["embedding"].any()


@pytest.mark.parametrize("keep", [1, 2])
def test_only_the_newest_are_kept(model: ByteLM, tmp_path: Path, keep: int) -> None:
    (tmp_path / "mine.safetensors").write_bytes(b"not ours")
    for round_ in (1, 2, 3):
        write_checkpoint(tmp_path, tensors_of(model), round_=round_, keep=keep)
    kept = [f"merged-r{n:05d}.{end}" for n in (2, 3)[-keep:] for end in ("safetensors", "sha256")]
    assert names(tmp_path) == sorted([*kept, "mine.safetensors"])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", [1, 3])  # of fsync: the model's own file, its checksum's
def test_a_full_disk_is_named_and_leaves_the_old_checkpoint_alone(
    model: ByteLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: int
) -> None:
    old = write_checkpoint(tmp_path, tensors_of(model), round_=1)
    calls, fsync = [0], os.fsync

    def full(handle: int) -> None:
        calls[0] += 1
        if calls[0] == call:
            raise OSError(code, os.strerror(code))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=r"merged-r00002.*no space left"):
        write_checkpoint(tmp_path, tensors_of(model), round_=2)
    assert names(tmp_path) == ["merged-r00001.safetensors", "merged-r00001.sha256"]
    assert what_is_wrong(tmp_path / old.name, expected=old) is None


def test_a_full_disk_that_the_library_tells_of_in_words_is_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "Error while serializing: I/O error: No space left on device (os error 28)"
    assert says_full(SafetensorError(words))
    assert not says_full(SafetensorError("InvalidHeader"))

    def full(*_: object, **__: object) -> None:
        raise SafetensorError(words)

    monkeypatch.setattr("actors.island.state_file.save_file", full)
    with pytest.raises(DiskFull, match="no space left"):
        write_state(tmp_path / "one.safetensors", TENSORS, {})
    assert names(tmp_path) == []


def test_other_failures_keep_their_own_name(
    model: ByteLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        write_checkpoint(tmp_path, tensors_of(model), round_=1)
    assert names(tmp_path) == []


def test_a_crash_before_the_rename_leaves_the_old_one_in_place(
    model: ByteLM, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, tensors_of(model), round_=1)

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, tensors_of(model), round_=2, halfway=die)
    assert (tmp_path / "merged-r00001.safetensors").exists()
    assert not (tmp_path / "merged-r00002.safetensors").exists()


def test_tensors_and_facts_come_back(tmp_path: Path) -> None:
    facts = {"seed": 3, "shards": [0, 1], "loss": 0.1, "none": None}
    path = tmp_path / "state.safetensors"
    written = write_state(path, TENSORS, facts)
    tensors, told = read_state(path, expected=written)
    assert told == facts
    assert set(tensors) == {"a", "b"}
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert all(tensors[name].dtype == TENSORS[name].dtype for name in TENSORS)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "said"),
    [(cut_short, "bytes, .* were written"), (flip_a_bit, "SHA-256"), (Path.unlink, "No such file")],
)
def test_a_file_that_is_not_what_was_written_is_torn(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "state.safetensors"
    written = write_state(path, TENSORS, {})
    damage(path)
    with pytest.raises(TornFile, match=said):
        read_state(path, expected=written)
