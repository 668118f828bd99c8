"""Islands in processes of their own that merge, are killed, are frozen, and come back."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file

from actors.clock import VirtualClock
from actors.config import IslandsConfig, MergeConfig
from actors.island.island import Island
from actors.island.segment import NotShared, Segment, memory_can_be_shared
from actors.merge_messages import SegmentName
from tests.actors.island.peers import PeerError, Peers, Pool
from tests.actors.island.teams import TRANSPORTS, form, merge_islands

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not memory_can_be_shared(), reason="Linux only"),
]

MakeIslands = Callable[..., IslandsConfig]
MakeMerge = Callable[..., MergeConfig]
ROUNDS = 3


@pytest.fixture(scope="module")
def pool(checkout: Path) -> Iterator[Pool]:
    pool = Pool(checkout, size=3)
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def in_one_process(config: IslandsConfig, merge: MergeConfig) -> list[Island]:
    """The same work over shared memory in this process."""
    islands = [Island(config, merge, i, clock=VirtualClock()) for i in range(config.count)]
    for island in islands:
        island.reset(seed=7, folder=None)
    form(islands, epoch=1)
    for round_ in range(ROUNDS):
        for i, island in enumerate(islands):
            for _ in range(i + round_ + 1):  # unequal work, so unequal weights
                island.step()
        merge_islands(islands, round_=round_, epoch=1)
    return islands


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, L2."""
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("count", "transport", "codec", "bytes_a_number", "tolerance"),
    [
        (3, "shared_memory", "fp32", (0.0, 0.0), 0.0),
        (2, "network", "fp32", (4.0, 4.0), 1e-4),
        (3, "network", "bf16", (2.0, 2.0), 0.05),
        (3, "network", "int8", (1.0, 1.1), 0.1),
    ],
)
def test_islands_agree_with_each_other_and_with_one_process(
    pool: Pool,
    islands_config: MakeIslands,
    merge_config: MakeMerge,
    tmp_path: Path,
    count: int,
    transport: str,
    codec: str,
    bytes_a_number: tuple[float, float],
    tolerance: float,
) -> None:
    config = islands_config(count)
    everybody = range(count)
    peers = pool.take(config, merge_config(codec=codec))
    peers.form(everybody, transport)
    proofs = []
    for round_ in range(ROUNDS):
        peers.train({island: island + round_ + 1 for island in everybody})
        proof, parts = peers.merge(everybody, round_=round_)
        assert set(peers.hashes(everybody).values()) == {proof}
        proofs.append(proof)
        for part in parts.values():
            assert (part["codec_error"] is None) == (codec == "fp32")
            if part["codec_error"] is not None:
                assert 0 < part["codec_error"] < 0.05
    assert len(set(proofs)) == ROUNDS
    reference = in_one_process(config, merge_config())
    assert peers.ask(0, "give", path=str(tmp_path / "given")) == ROUNDS
    given, expected = load_file(tmp_path / "given"), reference[0].global_state()
    numbers = expected.anchor.numel()
    for part in parts.values():
        assert bytes_a_number[0] * numbers <= part["bytes_reduced"] <= bytes_a_number[1] * numbers
    # In norm: where a gradient is about zero, AdamW turns a rounding into a step the other way.
    assert distance(given["anchor"], expected.anchor) <= tolerance
    assert distance(given["buffer"], expected.buffer) <= 2 * tolerance
    if transport == "shared_memory":
        assert proofs[-1] == reference[0].parameter_hash()


def standing(
    pool: Pool, config: IslandsConfig, merge: MergeConfig, transport: str
) -> tuple[Peers, dict[str, object]]:
    """Three islands after a merge, ready for the next one; its plan."""
    peers = pool.take(config, merge)
    peers.form([0, 1, 2], transport)
    peers.train({0: 1, 1: 2, 2: 1})
    peers.merge([0, 1, 2], round_=0)
    peers.train({0: 2, 1: 1, 2: 1})
    return peers, peers.ready([0, 1, 2], round_=1)


def fails_or_is_useless(peers: Peers, transport: str, plan: dict[str, object]) -> None:
    """The survivors' reduction without the third."""
    if transport == "network":
        for error in peers.errors([0, 1], "reduce", plan=plan).values():
            assert error.kind == "PeerLost"
            assert "summing pseudo-gradients failed, a peer is gone or too slow" in str(error)
    else:
        peers.each([0, 1], "reduce", plan=plan)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_killed_before_it_reduced_leaves_the_others_as_they_were(
    pool: Pool, islands_config: MakeIslands, merge_config: MakeMerge, transport: str
) -> None:
    peers, plan = standing(pool, islands_config(3), merge_config(timeout_s=5.0), transport)
    before = peers.hashes([0, 1])
    name = SegmentName(**peers.ask(2, "introduce")["segment"])
    opened = Segment.open(name)
    peers.kill(2)
    assert opened.vector.any()  # who has its memory keeps it
    with pytest.raises(NotShared, match=f"shared memory of process {name.pid}"):
        Segment.open(name)
    mine = peers.ask(0, "introduce")["segment"]
    theirs = {"pid": name.pid, "fd": name.fd, "token": name.token, "numbers": name.numbers}
    assert peers.ask(0, "can_share_with", segments=[mine]) is True
    assert peers.ask(0, "can_share_with", segments=[mine, theirs]) is False
    fails_or_is_useless(peers, transport, plan)
    assert peers.hashes([0, 1]) == before
    peers.form([0, 1], transport)
    assert peers.hashes([0, 1]) == before
    for error in peers.errors([0, 1], "commit", plan=plan).values():
        assert error.kind == "WrongRound"  # the plan of the group that is no more
    proof, _ = peers.finish([0, 1], peers.plan([0, 1], round_=1))  # they still stand ready
    assert proof not in before.values()
    peers.train({0: 1, 1: 1})
    assert peers.merge([0, 1], round_=2)[0] != proof


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_killed_before_it_took_over_does_not_keep_the_others_from_it(
    pool: Pool, islands_config: MakeIslands, merge_config: MakeMerge, transport: str
) -> None:
    peers, plan = standing(pool, islands_config(3), merge_config(timeout_s=5.0), transport)
    before = peers.hashes([0, 1])
    peers.each([0, 1, 2], "reduce", plan=plan)
    peers.kill(2)
    assert peers.hashes([0, 1]) == before
    proof = peers.commit([0, 1], plan)
    assert proof not in before.values()
    peers.form([0, 1], transport)
    assert set(peers.hashes([0, 1]).values()) == {proof}
    peers.train({0: 1, 1: 1})
    assert peers.merge([0, 1], round_=2)[0] != proof


@pytest.mark.parametrize(("transport", "keep_steps"), [("shared_memory", True), ("network", False)])
def test_a_frozen_peer_is_left_out_and_comes_back_onto_the_last_merge(
    pool: Pool,
    islands_config: MakeIslands,
    merge_config: MakeMerge,
    tmp_path: Path,
    transport: str,
    keep_steps: bool,
) -> None:
    peers, plan = standing(pool, islands_config(3), merge_config(timeout_s=3.0), transport)
    before = peers.hashes([0, 1, 2])
    peers.freeze(2)
    try:
        peers.processes[2].tell("reduce", plan=plan)  # which it does when it wakes up
        fails_or_is_useless(peers, transport, plan)
        assert peers.hashes([0, 1]) == {0: before[0], 1: before[1]}
        peers.form([0, 1], transport)
        proof, _ = peers.finish([0, 1], peers.plan([0, 1], round_=1))
    finally:
        peers.thaw(2)
    if transport == "network":
        with pytest.raises(PeerError, match="PeerLost"):
            peers.processes[2].hear()
    else:
        peers.processes[2].hear()  # into banks that nobody looks at any more
    assert set(peers.hashes([0, 1]).values()) == {proof}
    assert peers.hashes([2]) == {2: before[2]}
    old, new, now = (str(tmp_path / name) for name in ("old", "new", "now"))
    peers.ask(2, "give", path=old)
    applied = peers.ask(0, "give", path=new)
    assert applied == 2
    peers.ask(2, "adopt", path=new, rounds_applied=applied, keep_steps=keep_steps, cursor=3)
    peers.ask(2, "give", path=now)
    was, given, stands = load_file(old), load_file(new), load_file(now)
    assert torch.equal(stands["anchor"], given["anchor"])
    assert torch.equal(stands["buffer"], given["buffer"])
    own = was["local"] - was["anchor"]
    assert own.any()
    expected = given["anchor"] + own if keep_steps else given["anchor"]
    torch.testing.assert_close(stands["local"], expected, rtol=0, atol=1e-7)
    peers.form([0, 1, 2], transport)
    peers.train({0: 1, 1: 1, 2: 1})
    together, _ = peers.merge([0, 1, 2], round_=2)
    assert together != proof
