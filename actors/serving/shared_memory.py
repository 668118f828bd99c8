"""Shared-memory files of a process tree: noted while it lives, removed once it is dead.

A server that is SIGKILLed leaves its files (about 400 MB of vLLM's) in /dev/shm for ever.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SHM = Path("/dev/shm")
_SHM_PREFIX = b"/dev/shm/"

Inode = int  # of a file on /dev/shm's own file system


@dataclass
class TreeMemory:
    """By inode, not by name: glibc maps a semaphore under a temporary name before it renames it."""

    noted: set[Inode] = field(default_factory=set)

    def note(self, pids: Iterable[int]) -> None:
        """Remember what these processes have mapped or open now."""
        for pid in pids:
            self.noted |= _in_use_by(pid)

    def remove_leftovers(self) -> list[str]:
        """Unlink what was noted and no living process uses; the names removed."""
        found = _own_files()
        candidates = {path for path, inode in found.items() if inode in self.noted}
        if not candidates:
            return []
        in_use: set[Inode] = set()
        for pid in _all_pids():
            in_use |= _in_use_by(pid)
        removed = [path for path in sorted(candidates) if found[path] not in in_use]
        for path in removed:
            path.unlink(missing_ok=True)
        return [path.name for path in removed]


def _own_files() -> dict[Path, Inode]:
    if not SHM.is_dir():
        return {}
    found = {}
    for entry in os.scandir(SHM):
        try:
            if entry.is_file(follow_symlinks=False) and entry.stat().st_uid == os.getuid():
                found[Path(entry.path)] = entry.inode()
        except FileNotFoundError:  # its owner removed it meanwhile
            continue
    return found


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _in_use_by(pid: int) -> set[Inode]:
    """Empty for a process that is gone, or another user's: that one cannot share our 0600 files."""
    try:
        return _mapped(pid) | _open(pid)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()


def _mapped(pid: int) -> set[Inode]:
    maps = Path(f"/proc/{pid}/maps").read_bytes()
    if _SHM_PREFIX not in maps:
        return set()
    # address perms offset dev inode path
    lines = [line.split(maxsplit=5) for line in maps.splitlines() if _SHM_PREFIX in line]
    return {int(fields[4]) for fields in lines}


def _open(pid: int) -> set[Inode]:
    found = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            if os.fsencode(Path(entry.path).readlink()).startswith(_SHM_PREFIX):
                found.add(Path(entry.path).stat().st_ino)
        except (FileNotFoundError, ProcessLookupError):  # closed meanwhile
            continue
    return found
