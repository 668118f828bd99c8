"""Merges by parts: every element once, fragments, overlap, and what an aborted round leaves."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from actors.config import MergeConfig, OuterConfig
from actors.island import mergers, outer
from actors.island.flat import ALIGN_NUMBERS, FlatParameters
from actors.island.mergers import SharedMerger
from tests.actors.island.numpy_diloco import NumpyDiLoCo
from tests.actors.island.teams import TRANSPORTS, Team, Vectors, merge_of

pytestmark = pytest.mark.torch

WEIGHTS = {1: (1.0,), 2: (0.75, 0.25), 3: (0.5, 0.25, 0.25), 4: (0.25, 0.25, 0.375, 0.125)}
over_both = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def team_of(sizes: list[int], islands: int, config: OuterConfig, **merge: Any) -> Team:
    transport = merge.pop("transport")
    start = whole_numbers(sum(sizes), 99)
    models = [Vectors(start, sizes) for _ in range(islands)]
    return Team(models, config, merge_of(**merge), transport=transport)


def whole_numbers(size: int, seed: int) -> npt.NDArray[np.float64]:
    """Small enough that what follows from them is exact in float32."""
    return np.random.default_rng(seed).integers(-512, 512, size=size).astype(np.float64)


def move(team: Team, seed: int) -> list[npt.NDArray[np.float64]]:
    """Every island goes somewhere; by how much, as flat vectors."""
    before = [team.vector(i).astype(np.float64) for i in range(len(team.flats))]

    def moved(island: int, x: torch.Tensor) -> torch.Tensor:
        drift = whole_numbers(x.numel(), seed + island)
        return x + torch.from_numpy(drift).float().view_as(x)

    team.train(moved)
    return [team.vector(i) - old for i, old in enumerate(before)]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    islands=st.integers(1, 4),
    fragments=st.integers(1, 6),
    bucket=st.integers(1, 70),
    chunk=st.integers(1, 70),
    transport=st.sampled_from(TRANSPORTS),
    overlap=st.booleans(),
)
def test_every_element_is_merged_exactly_once(
    sizes: list[int],
    islands: int,
    fragments: int,
    bucket: int,
    chunk: int,
    transport: str,
    overlap: bool,
) -> None:
    """Dyadic numbers: not a bit may differ, and an element met twice would move twice as far."""
    config = OuterConfig(lr=0.5, momentum=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mergers, "_BUCKET_NUMBERS", bucket)
        patch.setattr(outer, "_CHUNK_NUMBERS", chunk)
        team = team_of(
            sizes,
            islands,
            config,
            transport=transport,
            fragments=fragments,
            overlap_steps=1 if overlap else 0,
        )
        reference = NumpyDiLoCo(team.vector(), islands=islands, lr=0.5, momentum=0.5)
        for local, drift in zip(reference.locals, move(team, 0), strict=True):
            local += drift
        for round_ in range(fragments):
            if overlap:
                team.snapshot(round_=round_)
            norm = team.merge(WEIGHTS[islands], round_=round_)
            expected = reference.merge(WEIGHTS[islands], part=team.part(round_))
            assert norm == pytest.approx(expected, rel=1e-5)
    np.testing.assert_array_equal(team.values(), reference.anchor.astype(np.float32))
    for merger in team.mergers:
        assert np.array_equal(merger.anchor().numpy(), reference.anchor)
        assert np.array_equal(merger.buffer().numpy(), reference.buffer)


@given(numbers=st.integers(0, 5000), buckets=st.integers(1, 300))
def test_buckets_are_disjoint_whole_and_none_is_longer_than_asked(
    numbers: int, buckets: int
) -> None:
    size = buckets * ALIGN_NUMBERS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mergers, "_BUCKET_NUMBERS", size)
        found = list(mergers._buckets(7, 7 + numbers))  # noqa: SLF001
    ends = [7, *(high for _, high in found)]
    assert [low for low, _ in found] == ends[:-1]
    assert ends[-1] == 7 + numbers
    lengths = [high - low for low, high in found]
    assert all(0 < length <= size for length in lengths)
    if lengths:
        assert max(lengths) - min(lengths) <= 2 * ALIGN_NUMBERS


@over_both
def test_fragments_one_after_another_give_the_mean_of_all(transport: str) -> None:
    """A window shrinks to a part of itself, and after as many merges everything was merged."""
    config = OuterConfig(lr=1.0, momentum=0.0)
    team = team_of([100, 33, 7], 2, config, transport=transport, fragments=4)
    move(team, 5)
    targets = [team.vector(0).astype(np.float64), team.vector(1).astype(np.float64)]
    mean = 0.75 * targets[0] + 0.25 * targets[1]
    for round_ in range(4):
        part = team.part(round_)
        assert part.stop - part.start <= 3 * ALIGN_NUMBERS  # of 11 cache lines
        team.merge(WEIGHTS[2], round_=round_)
        for island in range(2):
            vector = team.vector(island)
            assert np.array_equal(vector[: part.stop], mean[: part.stop])
            assert np.array_equal(vector[part.stop :], targets[island][part.stop :])


@over_both
def test_overlap_with_mixing_equals_the_numpy_reference(transport: str) -> None:
    """arXiv:2501.18512, algorithm 2: measured, trained on, then mixed with what was merged."""
    config, mixing = OuterConfig(lr=0.7, momentum=0.9), 0.25
    team = team_of([50, 21], 3, config, transport=transport, fragments=3, overlap_steps=2)
    reference = NumpyDiLoCo(team.vector(), islands=3, lr=0.7, momentum=0.9)

    def train(seed: int) -> None:
        for local, drift in zip(reference.locals, move(team, seed), strict=True):
            local += drift

    for round_ in range(7):
        train(100 * round_)
        part = team.part(round_)
        team.snapshot(round_=round_)
        measured = reference.measured(part)
        train(100 * round_ + 50)
        team.merge(WEIGHTS[3], round_=round_, mixing=mixing)
        reference.merge(WEIGHTS[3], part=part, measured=measured, mixing=mixing)
        for island in range(3):
            np.testing.assert_allclose(
                team.vector(island), reference.locals[island], rtol=1e-5, atol=1e-2
            )
    assert not np.allclose(team.vector(0), team.vector(1))
    np.testing.assert_allclose(
        team.mergers[0].anchor().numpy(), reference.anchor, rtol=1e-5, atol=1e-2
    )


@over_both
def test_one_island_alone_gives_its_later_steps_to_the_mixing_as_many_do(transport: str) -> None:
    """Rate 1 without momentum keeps the parameters as they are only where nothing overlaps."""
    team = team_of([20], 1, OuterConfig(lr=1.0, momentum=0.0), transport=transport, overlap_steps=1)
    move(team, 1)
    at_snapshot = team.vector()
    team.snapshot(round_=0)
    move(team, 2)
    later = team.vector()
    team.merge((1.0,), mixing=0.5)
    np.testing.assert_array_equal(team.vector(), 0.5 * at_snapshot + 0.5 * later)


@pytest.mark.parametrize("merge", [{}, {"fragments": 3}, {"fragments": 2, "overlap_steps": 1}])
@pytest.mark.parametrize("kind", ["nesterov", "none"])
def test_transports_agree(merge: dict[str, int], kind: str) -> None:
    config = OuterConfig(kind=kind, lr=0.7, momentum=0.9)  # type: ignore[arg-type]
    teams = [team_of([200, 3], 3, config, transport=t, **merge) for t in TRANSPORTS]
    for round_ in range(6):
        for team in teams:
            move(team, 10 * round_)
            if "overlap_steps" in merge:
                team.snapshot(round_=round_)
            team.merge(WEIGHTS[3], round_=round_, mixing=0.5 if "overlap_steps" in merge else 0.0)
    left, right = (team.vector() for team in teams)
    np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-2)


def test_a_snapshot_that_a_failed_reduction_used_up_is_not_taken_for_the_next() -> None:
    team = team_of([20], 1, OuterConfig(), transport="network", overlap_steps=1)
    team.snapshot(round_=0)
    plan = team.plan((1.0,))
    team.reduce(plan)
    with pytest.raises(RuntimeError, match="round 0: its snapshot was used up"):
        team.mergers[0].reduce(plan)


@pytest.mark.parametrize(("codec", "bound"), [("bf16", 2.0**-8), ("int8", 1.5 / 127)])
def test_encoded_merges_are_alike_on_all_and_close_to_the_exact_one(
    codec: str, bound: float
) -> None:
    config = OuterConfig(lr=0.7, momentum=0.9)
    coded = team_of([700, 45], 3, config, transport="network", codec=codec, fragments=2)
    whole = team_of([700, 45], 3, config, transport="network", fragments=2)
    for round_ in range(4):
        for team in (coded, whole):
            move(team, round_)
        plan = coded.plan(WEIGHTS[3], round_=round_)
        works = coded.reduce(plan)
        for work in works:
            assert work.codec_error is not None
            assert 0 < work.codec_error < bound
            numbers = coded.part(round_).stop - coded.part(round_).start
            assert work.bytes_reduced < 2.1 * numbers
        coded.commit(plan)
        whole.merge(WEIGHTS[3], round_=round_)
        anchors = [merger.anchor().numpy() for merger in coded.mergers]
        assert all(np.array_equal(anchors[0], other) for other in anchors)
        gap = np.abs(anchors[0] - whole.mergers[0].anchor().numpy()).max()
        assert 0 < gap < 6000 * bound  # of moves by hundreds


def owed(team: Team) -> npt.NDArray[np.float64]:
    """Of all islands together."""
    found = [merger.feedback() for merger in team.mergers]
    return np.sum([one.numpy().astype(np.float64) for one in found if one is not None], axis=0)


def test_what_int8_rounds_away_is_late_and_never_lost() -> None:
    """Sum of what was received plus what is owed equals the sum of what was sent, each round."""
    config = OuterConfig(lr=1.0, momentum=0.0)
    team = team_of([300, 45], 3, config, transport="network", codec="int8")
    sent = np.zeros(team.flats[0].numbers)
    start = team.mergers[0].anchor().numpy().astype(np.float64)
    for round_ in range(12):
        drifts = move(team, 7 * round_)
        sent += np.sum([w * d for w, d in zip(WEIGHTS[3], drifts, strict=True)], axis=0)
        team.merge(WEIGHTS[3], round_=round_)
        received = team.mergers[0].anchor().numpy() - start
        # anchor -= delta, and what is owed is in terms of delta.
        np.testing.assert_allclose(received - owed(team), sent, atol=0.05)
        assert 0 < np.abs(owed(team)).max() < 3 * 1024 / 127  # one round's remainders, no more
        assert np.abs(received - sent).max() > 0.1


def test_an_aborted_round_leaves_the_debt_as_it_was() -> None:
    team = team_of([300, 45], 2, OuterConfig(), transport="network", codec="int8")
    move(team, 1)
    team.merge(WEIGHTS[2])
    move(team, 2)
    before = [merger.feedback() for merger in team.mergers]
    team.reduce(team.plan(WEIGHTS[2], round_=1))  # and never committed
    after = [merger.feedback() for merger in team.mergers]
    for one, other in zip(before, after, strict=True):
        assert one is not None
        assert other is not None
        assert one.any()
        assert torch.equal(one, other)


def test_a_debt_survives_a_time_alone() -> None:
    """Its group breaks, the island goes on by itself, and another group takes the debt over."""
    team = team_of([30], 1, OuterConfig(), transport="shared_memory")
    (merger,), vector = team.mergers, torch.from_numpy(team.vector())
    merger.adopt(vector, None, feedback=torch.full_like(vector, 0.5))
    move(team, 1)
    team.merge((1.0,))
    debt = merger.feedback()
    assert debt is not None
    assert (debt == 0.5).all()
    merger.begin(team.flats[0])  # a new run owes nothing
    assert merger.feedback() is None


def test_a_group_that_never_came_about_holds_all_that_is_global() -> None:
    """The leader fills the banks alone: the others may die before they open them."""
    numbers = 1000
    flat = FlatParameters(Vectors(np.zeros(numbers), [numbers]), make=lambda n: torch.zeros(n))
    segments = [torch.zeros(flat.numbers) for _ in range(3)]
    leader = SharedMerger(
        flat,
        OuterConfig(),
        merge_of(),
        rank=0,
        segments=segments,
        banks=torch.zeros(4 * flat.numbers),
    )
    anchor, buffer = torch.randn(flat.numbers), torch.randn(flat.numbers)
    leader.adopt(anchor, buffer)
    assert torch.equal(leader.anchor(), anchor)
    assert torch.equal(leader.buffer(), buffer)


def test_shared_memory_needs_no_codec() -> None:
    with pytest.raises(ValueError, match="over which nothing is sent"):
        merge_of(transport="shared_memory", codec="int8")
    assert isinstance(merge_of(transport="network", codec="int8"), MergeConfig)
