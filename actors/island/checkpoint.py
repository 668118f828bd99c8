"""The merged model on disk, for others to load: safetensors, durable, with its checksum beside it.

``merged-r00005.safetensors`` and ``.sha256`` (as ``sha256sum -c`` reads it). Written beside its
place, fsynced, renamed, and the folder fsynced; the newest ``keep`` stay.
"""

import os
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from actors.durable import says_full, sync_folder
from actors.island.flat import FlatParameters
from actors.island.state_file import DiskFull, write_state
from actors.merge_messages import CheckpointFile

_PREFIX, _SUFFIX = "merged-r", ".safetensors"


def merged_tensors(model: nn.Module, flat: FlatParameters, anchor: Tensor) -> dict[str, Tensor]:
    """Parameters by their first name (a tied weight once), the trained ones from ``anchor``.

    Views of ``anchor`` where the type is the same: give a copy if training goes on meanwhile.
    """
    frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    return frozen | flat.named(anchor)


def write_checkpoint(
    folder: Path,
    tensors: dict[str, Tensor],
    *,
    round_: int,
    keep: int = 1,
    halfway: Callable[[], None] = lambda: None,
) -> CheckpointFile:
    """The model after merge ``round_``; removes all but the newest ``keep``.

    DiskFull (actors.island.state_file) leaves what was there.
    """
    path = folder / f"{_PREFIX}{round_:05d}{_SUFFIX}"
    written = write_state(path, tensors, {"round": round_}, halfway=halfway)
    try:
        _write_checksum(path, written)
    except OSError as error:
        # Without its checksum it could not be told from a damaged one.
        path.unlink(missing_ok=True)
        if says_full(error):
            raise DiskFull(f"checksum of {path}: no space left; free some") from error
        raise
    older = sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"), key=_round_of, reverse=True)[keep:]
    for one in older:
        if one != path:
            _checksum(one).unlink(missing_ok=True)
            one.unlink(missing_ok=True)
    return written


def _round_of(path: Path) -> int:
    digits = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return int(digits) if digits.isdigit() else -1


def _checksum(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _write_checksum(path: Path, written: CheckpointFile) -> None:
    target = _checksum(path)
    tmp = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        with tmp.open("w") as file:
            file.write(f"{written.sha256}  {written.name}\n")
            file.flush()
            os.fsync(file.fileno())
        tmp.replace(target)
    except OSError:
        tmp.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
