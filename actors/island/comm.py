"""How islands sum their pseudo-gradients over the network: torch.distributed.

Gloo on CPU, NCCL on GPU (Gloo again where islands share one GPU, which NCCL refuses). Every call
has a time limit; a peer that does not answer within it is PeerLost, and the group is then unusable
until the next one is formed.
"""

import contextlib
import os
import socket
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Protocol

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]


class PeerLost(RuntimeError):
    """A peer did not answer in time or its connection broke."""


class JoinFailed(RuntimeError):
    """The islands could not meet."""


class Pending(Protocol):
    """A sum that is under way."""

    def wait(self) -> None:
        """Return when it is there; PeerLost when it will never be."""
        ...


class Communicator(Protocol):
    """What a merge needs of the network."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def sum_async(self, flat: Tensor) -> Pending:
        """Begin to sum ``flat`` over the ranks in place, bit-identical on all of them."""
        ...

    def exchange(self, sending: Tensor, sizes: list[int], expected: list[int]) -> Tensor:
        """Send ``sizes[r]`` bytes of ``sending`` (uint8) to rank r; what came, by rank.

        ``expected[r]``: bytes that rank r sends here.
        """
        ...

    def close(self) -> None: ...


class TorchCommunicator:
    """The process's one torch.distributed group; made by ``join_group``."""

    def __init__(self, *, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        # Not the default group of the moment: a call that outlives this one must not end up there.
        self._group: Any = dist.group.WORLD

    def sum_async(self, flat: Tensor) -> Pending:
        with self.losing_peers("summing pseudo-gradients"):
            return _Pending(dist.all_reduce(flat, group=self._live(), async_op=True), self)

    def exchange(self, sending: Tensor, sizes: list[int], expected: list[int]) -> Tensor:
        received = torch.empty(sum(expected), dtype=torch.uint8, device=sending.device)
        with self.losing_peers("exchanging encoded pseudo-gradients"):
            dist.all_to_all_single(received, sending, expected, sizes, group=self._live())
            if received.is_cuda:
                torch.cuda.synchronize(received.device)
        return received

    def close(self) -> None:
        # Without this the process ends in SIGABRT.
        if self._group is not None:
            self._group = None
            dist.destroy_process_group()

    def _live(self) -> Any:
        group = self._group
        if group is None:
            raise RuntimeError("its group was closed, form a new one")
        return group

    @contextlib.contextmanager
    def losing_peers(self, doing: str) -> Iterator[None]:
        """PeerLost where a call fails; and whoever waits for this rank is told at once.

        A peer that lives learns of a lost one only by its own connections: around a ring it would
        wait for merge.timeout_s, and be taken for lost itself. So the first to fail hangs up.
        """
        try:
            yield
        except RuntimeError as error:
            why = _first_line(error)
            # The failed call's frames hold the group, and with it the connections.
            traceback.clear_frames(error.__traceback__)
            self.close()
            raise PeerLost(
                f"rank {self.rank} of {self.world_size}: {doing} failed, a peer is gone or too "
                f"slow (merge.timeout_s): {why}"
            ) from error


class _Pending:
    def __init__(self, work: Any, group: TorchCommunicator) -> None:
        self._work = work
        self._group = group

    def wait(self) -> None:
        with self._group.losing_peers("summing pseudo-gradients"):
            try:
                self._work.wait()
            finally:
                self._work = None


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
        return TorchCommunicator(rank=rank, world_size=world_size)


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
