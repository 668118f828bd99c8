"""Corpus, shards and batches: disjoint, deterministic, and loud about missing text."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.config import DataConfig
from actors.island.data import batch_at, load_corpus, shard_of


def of_folder(folder: Path, *, max_bytes: int = 1_000_000) -> DataConfig:
    return DataConfig(source="folder", folder=str(folder), max_bytes=max_bytes)


def test_standard_library_is_python_text_on_every_machine() -> None:
    corpus = load_corpus(DataConfig(source="stdlib", max_bytes=300_000))
    assert corpus.shape == (300_000,)
    assert b"import " in corpus.tobytes()
    assert not corpus.flags.writeable


def test_files_are_joined_in_path_order_with_one_nul(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    assert load_corpus(of_folder(tmp_path)).tobytes() == b"first\0second"


def test_max_bytes_cuts_the_corpus(text_folder: Path) -> None:
    whole = load_corpus(of_folder(text_folder))
    cut = load_corpus(of_folder(text_folder, max_bytes=100))
    assert cut.tobytes() == whole[:100].tobytes()


def test_binary_hidden_and_installed_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "latin.txt").write_bytes("straße".encode("latin-1"))
    (tmp_path / "image.bin").write_bytes(b"\0\1\2")
    (tmp_path / ".secret").write_text("hidden")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_text("other")
    assert load_corpus(of_folder(tmp_path)).tobytes() == b"text"


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        load_corpus(of_folder(tmp_path / "nowhere"))


def test_folder_without_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    with pytest.raises(ValueError, match=r"bare.*holds no text"):
        load_corpus(of_folder(tmp_path / "bare"))


@given(size=st.integers(60, 5000), islands=st.integers(1, 5))
def test_shards_are_disjoint_and_cover_the_corpus(size: int, islands: int) -> None:
    corpus = np.arange(size, dtype=np.uint16).view(np.uint8)[::2]  # any bytes; positions matter
    shards = [shard_of(corpus, island=i, islands=islands, seq_len_tokens=8) for i in range(islands)]
    assert sum(len(shard) for shard in shards) == size
    assert np.array_equal(np.concatenate(shards), corpus)
    assert not any(np.shares_memory(a, b) for i, a in enumerate(shards) for b in shards[i + 1 :])


def test_shard_shorter_than_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 65"):
        shard_of(np.zeros(128, np.uint8), island=1, islands=2, seq_len_tokens=64)


def batch(shard: np.ndarray, *, seed: int = 3, island: int = 0, cursor: int = 5) -> np.ndarray:
    return batch_at(shard, seed=seed, island=island, cursor=cursor, batch_size=4, seq_len_tokens=16)


def test_batch_is_a_function_of_seed_island_and_cursor() -> None:
    shard = np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8)
    first = batch(shard)
    assert first.shape == (4, 17)
    assert np.array_equal(first, batch(shard))
    for other in (batch(shard, seed=4), batch(shard, island=1), batch(shard, cursor=6)):
        assert not np.array_equal(first, other)


def test_batch_rows_are_runs_of_the_shard_and_reach_its_last_byte() -> None:
    shard = np.arange(20, dtype=np.uint8)
    rows = np.concatenate([batch(shard, cursor=cursor) for cursor in range(20)])
    assert np.all(np.diff(rows, axis=1) == 1)
    assert {row[0] for row in rows} == {0, 1, 2, 3}  # the last start ends on the last byte


def test_batches_leave_the_global_generator_alone() -> None:
    state = repr(np.random.get_state())  # noqa: NPY002 - that it is untouched is the point
    batch(np.arange(200, dtype=np.uint8))
    assert repr(np.random.get_state()) == state  # noqa: NPY002
