"""Files that are complete or absent, and that can be told from damaged ones; no torch, no Ray."""

import errno
import hashlib
import os
from pathlib import Path

from actors.merge_messages import CheckpointFile

_READ_BYTES = 1 << 20


def what_is_wrong(path: Path, *, expected: CheckpointFile) -> str | None:
    """None for the file that was written; else one line."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes != expected.size_bytes:
            return f"{path}: {size_bytes} bytes, {expected.size_bytes} were written"
        digest = sha256_of(path)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    if digest != expected.sha256:
        return f"{path}: SHA-256 is {digest[:12]}..., written was {expected.sha256[:12]}..."
    return None


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def says_full(error: BaseException) -> bool:
    """No space or quota left; also where a library gives the system's error as text alone."""
    full = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError):
        return error.errno in full
    return any(f"os error {code}" in str(error) for code in full)


def sync_file(path: Path) -> None:
    """Its content survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Renames and new names in ``folder`` survive a power cut."""
    sync_file(folder)
