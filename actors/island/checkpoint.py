"""The merged model on disk: safetensors, complete or absent, durable before the call returns.

Written beside its place, fsynced, renamed, and the folder fsynced; only the newest is kept.
"""

import contextlib
import errno
import os
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

_PREFIX, _SUFFIX = "merged-r", ".safetensors"


class DiskFull(RuntimeError):
    """No room for the checkpoint; what was there before is untouched."""


def write_checkpoint(folder: Path, model: nn.Module, *, round_: int) -> Path:
    """Write the parameters after merge ``round_`` and remove older ones; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_PREFIX}{round_:05d}{_SUFFIX}"
    tmp = path.with_suffix(f".{os.getpid()}.tmp")
    blob = save(_tensors(model), metadata={"round": str(round_)})
    try:
        _write_durably(tmp, blob)
        tmp.replace(path)
        _sync_folder(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            tmp.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"checkpoint {path}: no space left for {len(blob)} bytes; free some or put the "
                "runs folder on another disk"
            ) from error
        raise
    for older in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        if older != path:
            older.unlink(missing_ok=True)
    return path


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters under their first name, so that a tied weight is stored once."""
    return {name: p.detach().contiguous().cpu() for name, p in model.named_parameters()}


def _write_durably(path: Path, blob: bytes) -> None:
    with path.open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
