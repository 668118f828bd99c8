"""Anonymous shared memory that other islands of this host open through /proc: float32 numbers.

No name in any file system, so nothing is left behind by a process that was killed, and /dev/shm,
which containers keep small, is not used. The kernel frees it with the last process that maps it.
"""

import mmap
import os
import secrets
from pathlib import Path

import psutil
import torch
from torch import Tensor

from actors.merge_messages import SegmentName

_HEADER_BYTES = mmap.PAGESIZE  # the token; numbers begin page-aligned
_TOKEN_BYTES = 16
_NUMBER_BYTES = 4


class NotShared(RuntimeError):
    """The memory of another process could not be opened."""


class Segment:
    """``vector``: float32 numbers [numbers], zero at first, the same memory in every process."""

    def __init__(self, vector: Tensor, name: SegmentName, *, fd: int | None) -> None:
        self.vector = vector
        self.name = name
        self._fd = fd

    @classmethod
    def create(cls, numbers: int, *, label: str) -> "Segment":
        """Memory is reserved here: MemoryError now instead of a killed process in a merge."""
        size_bytes = _HEADER_BYTES + _NUMBER_BYTES * numbers
        _check_free(size_bytes, label)
        fd = os.memfd_create(f"lull-{label}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError as error:
            os.close(fd)
            raise _no_memory(size_bytes, label, str(error)) from error
        token = secrets.token_bytes(_TOKEN_BYTES)
        os.pwrite(fd, token, 0)
        name = SegmentName(pid=os.getpid(), fd=fd, token=token.hex(), numbers=numbers)
        return cls(_mapped(fd, numbers), name, fd=fd)

    @classmethod
    def open(cls, name: SegmentName) -> "Segment":
        """NotShared when that process is gone, is another user's or in another container."""
        fd = _opened(name)
        try:
            return cls(_mapped(fd, name.numbers), name, fd=None)
        except OSError as error:
            raise NotShared(f"shared memory of process {name.pid}: {error}") from error
        finally:
            os.close(fd)

    def close(self) -> None:
        """Others cannot open it any more; who has it keeps it, as do tensors made of it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def check_shared(name: SegmentName) -> None:
    """NotShared when ``Segment.open`` would raise it; maps nothing."""
    os.close(_opened(name))


def _opened(name: SegmentName) -> int:
    """A file descriptor of exactly the memory that was named."""
    path = Path(f"/proc/{name.pid}/fd/{name.fd}")
    try:
        # Its owner may be gone and the number be something else's: a terminal must not become ours.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise NotShared(f"shared memory of process {name.pid}: {error}") from error
    try:
        size_bytes = os.fstat(fd).st_size
        told = os.pread(fd, _TOKEN_BYTES, 0).hex()
    except OSError as error:
        os.close(fd)
        raise NotShared(f"{path}: {error}") from error
    if told != name.token or size_bytes != _HEADER_BYTES + _NUMBER_BYTES * name.numbers:
        os.close(fd)
        raise NotShared(f"{path} is not the memory that was named")
    return fd


def _mapped(fd: int, numbers: int) -> Tensor:
    # Populated: or the first merge would pay for a page fault on every 4 KiB.
    memory = mmap.mmap(
        fd,
        _HEADER_BYTES + _NUMBER_BYTES * numbers,
        flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
    )
    # The tensor keeps the mapping alive.
    return torch.frombuffer(memory, dtype=torch.float32, count=numbers, offset=_HEADER_BYTES)


def _check_free(size_bytes: int, label: str) -> None:
    """The kernel promises memory that it does not have, and kills somebody when it is used."""
    free_bytes = psutil.virtual_memory().available
    if size_bytes > free_bytes:
        raise _no_memory(size_bytes, label, f"{free_bytes} are free")


def _no_memory(size_bytes: int, label: str, why: str) -> MemoryError:
    return MemoryError(
        f"no {size_bytes} bytes of shared memory for {label}: {why}; choose a smaller model, "
        "fewer islands on this host, or merge.transport: network"
    )


def memory_can_be_shared() -> bool:
    """Linux only."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()
