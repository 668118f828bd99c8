"""The checkpoint on disk: complete or absent, newest only, a full disk has a name."""

import errno
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file

from actors.config import ModelConfig
from actors.island.checkpoint import DiskFull, write_checkpoint
from actors.island.model import ByteLM, build_model

pytestmark = pytest.mark.torch


@pytest.fixture
def model() -> ByteLM:
    config = ModelConfig(hidden_size=16, layers=1, heads=2, kv_heads=1, ffn_size=24)
    return build_model(config, seed=0, max_len_tokens=16)


def test_parameters_come_back_to_the_bit_and_tied_weights_once(
    model: ByteLM, tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path / "new" / "folder", model, round_=3)
    stored = load_file(path)
    assert set(stored) == {name for name, _ in model.named_parameters()}
    assert "head.weight" not in stored
    assert all(torch.equal(stored[name], p) for name, p in model.named_parameters())


def test_only_the_newest_is_kept(model: ByteLM, tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").write_bytes(b"not ours")
    for round_ in (1, 2, 3):
        write_checkpoint(tmp_path, model, round_=round_)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "merged-r00003.safetensors",
        "mine.safetensors",
    ]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_leaves_the_old_checkpoint_alone(
    model: ByteLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    before = write_checkpoint(tmp_path, model, round_=1).read_bytes()

    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=r"merged-r00002.*no space left for \d+ bytes"):
        write_checkpoint(tmp_path, model, round_=2)
    assert [p.name for p in tmp_path.iterdir()] == ["merged-r00001.safetensors"]
    assert (tmp_path / "merged-r00001.safetensors").read_bytes() == before


def test_other_failures_keep_their_own_name(
    model: ByteLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        write_checkpoint(tmp_path, model, round_=1)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_before_the_rename_leaves_the_old_one_in_place(
    model: ByteLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, model, round_=1)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, model, round_=2)
    assert (tmp_path / "merged-r00001.safetensors").exists()
    assert not (tmp_path / "merged-r00002.safetensors").exists()
