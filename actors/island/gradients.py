"""Gradients averaged over the processes of one island: data parallel inside it.

Its own process group, beside the one that merges islands: Gloo on CPU, NCCL on GPU, formed once.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

_BUCKET_NUMBERS = 8 * 1024 * 1024  # averaged at a time: bounds the extra memory


class ReplicaLost(RuntimeError):
    """A process of this island is gone or too slow; the island as a whole is lost with it."""


class ReplicaGroup:
    """All processes of one island; the lead is rank 0."""

    def __init__(
        self, *, rank: int, size: int, port: int, device: torch.device, timeout_s: float
    ) -> None:
        limit = timedelta(seconds=timeout_s)
        self.rank, self.size = rank, size
        try:
            store = TCPStore("127.0.0.1", port, size, rank == 0, limit)
            self._group: Any = _backend(store, rank=rank, size=size, device=device, limit=limit)
        except RuntimeError as error:
            raise ReplicaLost(f"replica {rank} of {size} met nobody: {error}") from error

    @torch.no_grad()
    def average(self, parameters: list[nn.Parameter], loss: Tensor) -> float:
        """Every gradient becomes the mean over the processes; the mean loss is returned."""
        mean = loss.detach().float().reshape(1).clone()
        self._sum(mean)
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([grad.flatten() for grad in bucket])
            self._sum(flat)
            parts = torch.split(flat.div_(self.size), [grad.numel() for grad in bucket])
            for grad, part in zip(bucket, parts, strict=True):
                grad.copy_(part.view_as(grad))
        return mean.item() / self.size

    def send(self, vector: Tensor) -> None:
        """``vector`` of the lead, to all."""
        try:
            self._group.broadcast([vector], _from_lead()).wait()
        except RuntimeError as error:
            raise ReplicaLost(f"replica {self.rank} of {self.size}: {error}") from error
        _finish(vector)

    def _sum(self, flat: Tensor) -> None:
        try:
            self._group.allreduce([flat]).wait()
        except RuntimeError as error:
            raise ReplicaLost(f"replica {self.rank} of {self.size}: {error}") from error


def _backend(
    store: TCPStore, *, rank: int, size: int, device: torch.device, limit: timedelta
) -> Any:
    """A group that is not the process's default one; its stubs leave out what moves tensors."""
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit  # noqa: SLF001 - the only way to set it
        torch.cuda.set_device(device.index or 0)  # the lead's has no number
        return dist.ProcessGroupNCCL(store, rank, size, options)
    return dist.ProcessGroupGloo(store, rank, size, limit)


def _from_lead() -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = 0
    return options


def _buckets(grads: list[Tensor]) -> Iterator[list[Tensor]]:
    """Of one type each, in order, and not above the limit unless one alone is."""
    bucket: list[Tensor] = []
    for grad in grads:
        numbers = sum(g.numel() for g in bucket) + grad.numel()
        if bucket and (grad.dtype != bucket[0].dtype or numbers > _BUCKET_NUMBERS):
            yield bucket
            bucket = []
        bucket.append(grad)
    if bucket:
        yield bucket


def _finish(vector: Tensor) -> None:
    if vector.is_cuda:
        torch.cuda.synchronize(vector.device)
