"""Tensors and facts in one file: safetensors, durable, with a checksum that a reader checks.

Written beside its place, fsynced, hashed as it lies on the disk, renamed. What a checkpoint as a
whole consists of says its manifest, which is written last (orchestrator/training/manifest.py).
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from actors.durable import says_full, sha256_of, sync_file, sync_folder, what_is_wrong
from actors.merge_messages import CheckpointFile

_FACTS = "facts"


class DiskFull(RuntimeError):
    """No room for the checkpoint; what was there before is untouched."""


class TornFile(RuntimeError):
    """A checkpoint file is not what was written."""


def write_state(
    path: Path,
    tensors: dict[str, Tensor],
    facts: dict[str, Any],
    *,
    halfway: Callable[[], None] = lambda: None,
) -> CheckpointFile:
    """``tensors`` and JSON-ready ``facts`` at ``path``, complete or absent; what was written.

    ``halfway`` is called when the bytes stand beside their place and nothing is durable yet.
    """
    tmp = path.with_suffix(f".{os.getpid()}.tmp")
    ready = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(ready, tmp, metadata={_FACTS: json.dumps(facts)})
        halfway()
        sync_file(tmp)
        written = CheckpointFile(
            name=path.name, size_bytes=tmp.stat().st_size, sha256=sha256_of(tmp)
        )
        tmp.replace(path)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            tmp.unlink(missing_ok=True)
        if says_full(error):
            raise DiskFull(
                f"checkpoint {path}: no space left; free some, or put the runs folder elsewhere"
            ) from error
        raise
    return written


def read_state(path: Path, *, expected: CheckpointFile) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors on the CPU and facts; TornFile when the file is not the expected one."""
    problem = what_is_wrong(path, expected=expected)
    if problem is not None:
        raise TornFile(problem)
    with safe_open(path, framework="pt") as file:
        # Cloned: a tensor of the file itself would keep it mapped.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
        facts: dict[str, Any] = json.loads(file.metadata()[_FACTS])
    return tensors, facts
