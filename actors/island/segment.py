"""Anonymous shared memory that other islands of this host open through /proc: float32 numbers.

No name in any file system, so nothing is left behind by a process that was killed, and /dev/shm,
which containers keep small, is not used. The kernel frees it with the last process that maps it.
"""

import mmap
import os
import secrets
from pathlib import Path

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
        """Memory is reserved here: MemoryError now instead of a killed process later."""
        size_bytes = _HEADER_BYTES + _NUMBER_BYTES * numbers
        fd = os.memfd_create(f"lull-{label}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError as error:
            os.close(fd)
            raise MemoryError(
                f"no {size_bytes} bytes of shared memory for {label}: {error}; choose a smaller "
                "model, fewer islands on this host, or merge.transport: network"
            ) from error
        token = secrets.token_bytes(_TOKEN_BYTES)
        os.pwrite(fd, token, 0)
        name = SegmentName(pid=os.getpid(), fd=fd, token=token.hex(), numbers=numbers)
        return cls(_mapped(fd, numbers), name, fd=fd)

    @classmethod
    def open(cls, name: SegmentName) -> "Segment":
        """NotShared when that process is gone, is another user's or in another container."""
        path = Path(f"/proc/{name.pid}/fd/{name.fd}")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise NotShared(f"shared memory of process {name.pid}: {error}") from error
        try:
            size_bytes = os.fstat(fd).st_size
            told = os.pread(fd, _TOKEN_BYTES, 0).hex()
            if told != name.token or size_bytes != _HEADER_BYTES + _NUMBER_BYTES * name.numbers:
                raise NotShared(f"{path} is not the memory that was named")
            return cls(_mapped(fd, name.numbers), name, fd=None)
        except OSError as error:
            raise NotShared(f"{path}: {error}") from error
        finally:
            os.close(fd)

    def close(self) -> None:
        """Others cannot open it any more; who has it keeps it, as do tensors made of it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _mapped(fd: int, numbers: int) -> Tensor:
    # Populated: or the first merge would pay for a page fault on every 4 KiB.
    memory = mmap.mmap(
        fd,
        _HEADER_BYTES + _NUMBER_BYTES * numbers,
        flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
    )
    # The tensor keeps the mapping alive.
    return torch.frombuffer(memory, dtype=torch.float32, count=numbers, offset=_HEADER_BYTES)


def memory_can_be_shared() -> bool:
    """Linux only."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()
