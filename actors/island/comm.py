"""How islands sum their pseudo-gradients: torch.distributed, or nothing when there is one island.

Gloo on CPU, NCCL on GPU (Gloo again where islands share one GPU, which NCCL refuses). Every call
has a time limit; a peer that does not answer within it is PeerLost, and the group is then unusable
until the next join.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Protocol

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

_BUCKET_NUMBERS = 16 * 1024 * 1024  # summed at a time, so that the library's own copies stay small


class PeerLost(RuntimeError):
    """A peer did not answer in time or its connection broke."""


class JoinFailed(RuntimeError):
    """The islands could not meet."""


class Communicator(Protocol):
    """What a merge needs of the network."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def gather_counts(self, count: int) -> list[int]:
        """The count of every rank, in rank order; returns when all have called."""
        ...

    def sum_in_place(self, flat: Tensor) -> None:
        """Sum of ``flat`` over the ranks, bit-identical on all of them."""
        ...

    def close(self) -> None: ...


class LocalCommunicator:
    """World of one."""

    rank = 0
    world_size = 1

    def gather_counts(self, count: int) -> list[int]:
        return [count]

    def sum_in_place(self, flat: Tensor) -> None:
        """The sum over one island is what it has."""

    def close(self) -> None:
        """Nothing is open."""


class TorchCommunicator:
    """The process's one torch.distributed group; made by ``join_group``."""

    def __init__(self, *, rank: int, world_size: int, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self._device = device
        self._open = True

    def gather_counts(self, count: int) -> list[int]:
        mine = torch.tensor([count], dtype=torch.int64, device=self._device)
        every = [torch.zeros_like(mine) for _ in range(self.world_size)]
        with self._losing_peers("counting tokens"):
            dist.all_gather(every, mine)
            return [int(one.item()) for one in every]

    def sum_in_place(self, flat: Tensor) -> None:
        with self._losing_peers("summing pseudo-gradients"):
            for bucket in torch.split(flat, _BUCKET_NUMBERS):
                dist.all_reduce(bucket)
            if flat.is_cuda:
                torch.cuda.synchronize(flat.device)

    def close(self) -> None:
        # Without this the process ends in SIGABRT.
        if self._open:
            self._open = False
            dist.destroy_process_group()

    @contextlib.contextmanager
    def _losing_peers(self, doing: str) -> Iterator[None]:
        if not self._open:
            raise PeerLost(f"island {self.rank}: {doing} after its group was closed; join again")
        try:
            yield
        except RuntimeError as error:
            raise PeerLost(
                f"island {self.rank} of {self.world_size}: {doing} failed, a peer is gone or too "
                f"slow (merge.timeout_s): {_first_line(error)}"
            ) from error


def join_group(
    *,
    rank: int,
    world_size: int,
    master_addr: str,
    master_port: int,
    join_timeout_s: float,
    call_timeout_s: float,
    device: torch.device,
) -> Communicator:
    """Meet the other islands at ``master_addr:master_port``; rank 0 listens there."""
    if world_size == 1:
        return LocalCommunicator()
    where = f"island {rank} of {world_size} at {master_addr}:{master_port}"
    with _joining(where, join_timeout_s):
        store = TCPStore(
            master_addr, master_port, world_size, rank == 0, timedelta(seconds=join_timeout_s)
        )
        backend = _backend(store, rank=rank, world_size=world_size, device=device)
        if backend == "gloo":
            _name_gloo_interface(master_addr)
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=call_timeout_s),
        )
        return TorchCommunicator(rank=rank, world_size=world_size, device=device)


@contextlib.contextmanager
def _joining(where: str, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if dist.is_initialized():
            dist.destroy_process_group()
        raise JoinFailed(
            f"{where}: the islands did not meet within {timeout_s:g} s: {_first_line(error)}; "
            "check that all islands run and that this address is reachable from their nodes"
        ) from error


def _backend(store: TCPStore, *, rank: int, world_size: int, device: torch.device) -> str:
    if device.type != "cuda":
        return "gloo"
    store.set(f"gpu/{rank}", str(torch.cuda.get_device_properties(device).uuid))
    gpus = {store.get(f"gpu/{peer}") for peer in range(world_size)}
    return "nccl" if len(gpus) == world_size else "gloo"


def _name_gloo_interface(master_addr: str) -> None:
    """Gloo otherwise listens on the address of the host's name, which may not be reachable."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    own_address = address_towards(master_addr)
    for interface, addresses in psutil.net_if_addrs().items():
        if any(known.address == own_address for known in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = interface
            return


def address_towards(peer: str) -> str:
    """This host's own address on the way to ``peer``; no packet is sent."""
    family, _, _, _, target = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        own: str = probe.getsockname()[0]
        return own


def free_port(address: str) -> int:
    """A TCP port that is free on ``address`` now."""
    with socket.create_server((address, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
