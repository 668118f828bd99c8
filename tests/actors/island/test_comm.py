"""Meeting over Gloo: in time or not at all; the merges themselves are in test_peers.py."""

import pytest

pytest.importorskip("torch")

import torch

from actors.island.comm import (
    Communicator,
    JoinFailed,
    PeerLost,
    address_towards,
    free_port,
    join_group,
)

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set here, so that joining does not set it for whatever comes after these tests."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def join(*, world_size: int, port: int, limit_s: float = 10.0) -> Communicator:
    """Rank 0, which listens."""
    return join_group(
        rank=0,
        world_size=world_size,
        master_addr="127.0.0.1",
        master_port=port,
        join_timeout_s=limit_s,
        call_timeout_s=limit_s,
        device=torch.device("cpu"),
    )


def test_a_peer_that_never_comes_fails_the_join_in_time_and_by_address() -> None:
    port = free_port("127.0.0.1")
    with pytest.raises(JoinFailed, match=rf"island 0 of 2 at 127.0.0.1:{port}.*within 0.5 s"):
        join(world_size=2, port=port, limit_s=0.5)


def test_a_group_sums_and_exchanges_until_it_is_closed() -> None:
    group = join(world_size=1, port=free_port("127.0.0.1"))
    flat = torch.arange(5.0)
    group.sum_async(flat).wait()
    assert flat.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    sending = torch.arange(7, dtype=torch.uint8)
    assert group.exchange(sending, [7], [7]).tolist() == list(range(7))
    group.close()
    group.close()  # twice is once
    with pytest.raises(PeerLost, match="its group was closed, form a new one"):
        group.sum_async(flat)
    with pytest.raises(PeerLost, match="rank 0 of 1: exchanging encoded"):
        group.exchange(sending, [7], [7])


def test_a_call_that_outlives_its_group_neither_reaches_nor_ends_the_next() -> None:
    old = join(world_size=1, port=free_port("127.0.0.1"))
    old.close()
    new = join(world_size=1, port=free_port("127.0.0.1"))
    flat = torch.ones(3)
    with pytest.raises(PeerLost):
        old.sum_async(flat)
    old.close()
    new.sum_async(flat).wait()
    new.close()
    assert flat.tolist() == [1.0, 1.0, 1.0]


def test_the_address_towards_loopback_is_loopback() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
