"""Shards and windows: disjoint, complete, and each batch a function of its number."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.island.data import shards
from actors.island.data.shards import (
    Batch,
    Part,
    Shard,
    batches_in_order,
    shard_bounds,
    shuffled_places,
)
from policies.streams import stream

LENGTH = 16


def shard_of(ids: np.ndarray, *, island: int = 0, order: str = "random") -> Shard:
    part = Part(ids=ids, first=0, starts=None, seq_len_tokens=LENGTH)
    return Shard(part=part, island=island, order="random" if order == "random" else "shuffled")


def batch(shard: Shard, *, seed: int = 3, cursor: int = 5) -> np.ndarray:
    return shard.batch(seed=seed, cursor=cursor, batch_size=4).tokens


@given(tokens=st.integers(60, 5000), islands=st.integers(1, 5))
def test_shards_are_disjoint_and_cover_the_text(tokens: int, islands: int) -> None:
    bounds = [
        shard_bounds(tokens, island=i, islands=islands, seq_len_tokens=8) for i in range(islands)
    ]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == tokens
    assert all(last == first for (_, last), (first, _) in pairwise(bounds))
    sizes = [last - first for first, last in bounds]
    assert max(sizes) - min(sizes) <= 1


def test_a_shard_shorter_than_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"island 1: its shard has 64 tokens, .* needs 65"):
        shard_bounds(128, island=1, islands=2, seq_len_tokens=64)


def test_an_island_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"island=2 is none of the 2 islands 0\.\.1"):
        shard_bounds(1000, island=2, islands=2, seq_len_tokens=8)


@pytest.mark.parametrize("order", ["random", "shuffled"])
def test_a_batch_is_a_function_of_seed_island_and_cursor(order: str) -> None:
    ids = np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8)
    first = batch(shard_of(ids, order=order))
    assert first.shape == (4, LENGTH + 1)
    assert first.dtype == np.int64
    assert np.array_equal(first, batch(shard_of(ids, order=order)))
    for other in (
        batch(shard_of(ids, order=order), seed=4),
        batch(shard_of(ids, order=order), cursor=6),
        batch(shard_of(ids, island=1, order=order)),
    ):
        assert not np.array_equal(first, other)


def test_random_windows_are_those_that_they_always_were() -> None:
    ids = np.random.default_rng(1).integers(0, 256, 999, dtype=np.uint8)
    drawn = stream(7, "batches", 2, 11).integers(0, 999 - LENGTH, size=3)
    found = shard_of(ids, island=2).batch(seed=7, cursor=11, batch_size=3)
    assert found.tokens.tolist() == [ids[s : s + LENGTH + 1].tolist() for s in drawn]
    assert found.documents is None


def test_random_windows_reach_the_shards_last_token() -> None:
    shard = shard_of(np.arange(20, dtype=np.uint8))
    rows = np.concatenate([batch(shard, cursor=cursor) for cursor in range(20)])
    assert np.all(np.diff(rows, axis=1) == 1)
    assert {row[0] for row in rows} == {0, 1, 2, 3}


@settings(max_examples=30)
@given(
    tokens=st.integers(12, 300),
    length=st.integers(1, 11),
    batch_size=st.integers(3, 40),
    seed=st.integers(0, 9),
)
def test_an_epoch_of_shuffled_windows_has_each_once(
    tokens: int, length: int, batch_size: int, seed: int
) -> None:
    windows = (tokens - 1) // length
    batches = -(-2 * windows // batch_size)
    line = np.concatenate(
        [
            shuffled_places(
                tokens,
                seed=seed,
                island=1,
                cursor=cursor,
                batch_size=batch_size,
                seq_len_tokens=length,
            )
            for cursor in range(batches)
        ]
    )
    every = [k * length for k in range(windows)]
    assert sorted(line[:windows].tolist()) == every
    assert sorted(line[windows : 2 * windows].tolist()) == every
    assert every[-1] + length < tokens  # the last label lies in the shard
    assert tokens - (every[-1] + length + 1) < length  # and less than a window is left over


def test_epochs_are_ordered_differently() -> None:
    first, second = (
        shuffled_places(
            1000, seed=0, island=0, cursor=cursor, batch_size=99, seq_len_tokens=10
        ).tolist()
        for cursor in (0, 1)
    )
    assert first != second
    assert sorted(first) == sorted(second) != first


def test_an_island_that_takes_of_many_shards_orders_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Any] = []

    def counted(seed: int, name: str, *keys: int) -> Any:
        drawn.append(keys)
        return stream(seed, name, *keys)

    monkeypatch.setattr(shards, "stream", counted)
    sizes = {"batch_size": 4, "seq_len_tokens": 10}
    for cursor in range(3):
        for island in range(8):
            shuffled_places(5001, seed=77, island=island, cursor=cursor, **sizes)
    assert drawn == [(island, 0) for island in range(8)]


def test_labels_of_windows_side_by_side_are_disjoint_and_complete() -> None:
    part = Part(ids=np.arange(103, dtype=np.uint8), first=0, starts=None, seq_len_tokens=10)
    found = list(batches_in_order(part, 4))
    assert [len(b.tokens) for b in found] == [4, 4, 2]
    labels = np.concatenate([b.tokens[:, 1:].ravel() for b in found])
    assert labels.tolist() == list(range(1, 101))


def test_documents_are_numbered_from_the_windows_first() -> None:
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 5, 500).astype(np.uint8)  # 0 ends a document
    starts = np.array([0, *(np.flatnonzero(ids[:-1] == 0) + 1)], dtype=np.int64)
    part = Part(ids=ids[100:300], first=100, starts=starts, seq_len_tokens=LENGTH)
    found: Batch = Shard(part=part, island=0, order="random").batch(seed=0, cursor=0, batch_size=50)
    assert found.documents is not None
    assert found.documents.dtype == np.int32
    for row, documents in zip(found.tokens, found.documents, strict=True):
        ended = [int(np.sum(row[:at] == 0)) for at in range(LENGTH + 1)]
        assert documents.tolist() == ended


def test_batches_leave_the_global_generator_alone() -> None:
    state = repr(np.random.get_state())  # noqa: NPY002 - that it is untouched is the point
    batch(shard_of(np.arange(200, dtype=np.uint8)))
    batch(shard_of(np.arange(200, dtype=np.uint8), order="shuffled"))
    assert repr(np.random.get_state()) == state  # noqa: NPY002
