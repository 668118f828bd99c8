"""A study's data: the present stream by default, the same text however it lies, a part held out."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from actors.config import (
    AnyModelConfig,
    DataConfig,
    FileTokenizerConfig,
    HfModelConfig,
    ModelConfig,
)
from actors.island.data import dataset
from actors.island.data.dataset import Data, held_in_memory, open_data
from actors.island.data.shards import Batch
from policies.streams import stream
from tests.actors.island.data import forms

LENGTH = 8
LONG = tuple(f"document {i}: " + "some words " * (i % 7 + 1) for i in range(40))


def opened(config: DataConfig, *, islands: int = 2) -> Data:
    return open_data(config, islands=islands, seq_len_tokens=LENGTH)


def listed(batch: Batch) -> tuple[Any, Any]:
    return batch.tokens.tolist(), None if batch.documents is None else batch.documents.tolist()


def test_by_default_a_folder_is_the_stream_that_it_always_was(text_folder: Path) -> None:
    text = b"\0".join(path.read_bytes() for path in sorted(text_folder.iterdir()))
    data = opened(DataConfig(source="folder", folder=str(text_folder)))
    half = np.frombuffer(text, dtype=np.uint8)[len(text) // 2 :]
    drawn = stream(5, "batches", 1, 3).integers(0, len(half) - LENGTH, size=4)
    found = data.shard(1).batch(seed=5, cursor=3, batch_size=4)
    assert found.tokens.tolist() == [half[s : s + LENGTH + 1].tolist() for s in drawn]
    assert found.documents is None
    assert data.fingerprint == hashlib.sha256(text).hexdigest()
    assert data.vocab_size == 256


@pytest.mark.parametrize("packing", ["stream", "documents"])
@pytest.mark.parametrize("order", ["random", "shuffled"])
def test_the_same_text_gives_the_same_batches_however_it_lies(
    tmp_path: Path, packing: str, order: str
) -> None:
    found = []
    for form in ("folder", "jsonl.gz", "parquet", "hf"):
        config = forms.write(form, tmp_path / form, LONG, packing=packing, order=order)
        found.append(opened(config).shard(1).batch(seed=0, cursor=2, batch_size=6))
    assert [listed(batch) for batch in found] == [listed(found[0])] * 4
    assert (found[0].documents is None) == (packing == "stream")


def test_a_large_folder_is_the_same_text_but_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert held_in_memory(DataConfig(source="stdlib"))  # as it always was
    config = forms.write("folder", tmp_path / "text", LONG, packing="documents", max_bytes=900)
    assert held_in_memory(config)
    small = opened(config)
    monkeypatch.setattr(dataset, "MOST_IN_MEMORY_BYTES", 899)
    assert not held_in_memory(config)
    large = opened(config)
    assert (tmp_path / "cache").is_dir()
    assert large.fingerprint == small.fingerprint
    assert len(large.text.ids) == 900
    one, other = (d.shard(1).batch(seed=0, cursor=2, batch_size=6) for d in (small, large))
    assert listed(one) == listed(other)


def test_documents_begin_after_each_separator(tmp_path: Path) -> None:
    config = forms.write("folder", tmp_path / "text", ["ab", "cde", "f"], packing="documents")
    data = open_data(config, islands=1, seq_len_tokens=7)
    (first,) = data.shard(0).batch(seed=0, cursor=0, batch_size=1).tokens
    assert bytes(first.tolist()) == b"ab\0cde\0f"
    found = data.shard(0).batch(seed=0, cursor=0, batch_size=1).documents
    assert found is not None
    assert found.tolist() == [[0, 0, 0, 1, 1, 1, 1, 2]]


def test_the_validation_part_is_the_end_and_in_no_shard(tmp_path: Path) -> None:
    config = forms.write("jsonl", tmp_path / "text", LONG, validation_fraction=0.1)
    whole = "\0".join(LONG).encode()
    held_out = int(len(whole) * 0.1)
    data = opened(config, islands=3)
    shards = b"".join(data.shard(i).part.ids.tobytes() for i in range(3))
    assert shards == whole[: len(whole) - held_out]
    found = list(data.validation_batches(5))
    assert all(len(b.tokens) == 5 for b in found[:-1])
    labels = b"".join(bytes(row[1:].tolist()) for b in found for row in b.tokens)
    end = whole[len(whole) - held_out :]
    assert labels == end[1 : 1 + (held_out - 1) // LENGTH * LENGTH]
    again = list(data.validation_batches(5))
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(found, again, strict=True))


def test_validation_documents_are_told_apart_too(tmp_path: Path) -> None:
    config = forms.write(
        "jsonl", tmp_path / "text", LONG, validation_fraction=0.2, packing="documents"
    )
    for found in opened(config).validation_batches(4):
        assert found.documents is not None
        ended = np.cumsum(found.tokens == 0, axis=1)
        assert np.array_equal(found.documents[:, 1:], ended[:, :-1])


def test_what_cannot_be_validated_is_refused(tmp_path: Path) -> None:
    config = forms.write("jsonl", tmp_path / "text", LONG)
    with pytest.raises(ValueError, match="validation_fraction=0 leaves nothing to validate with"):
        opened(config).validation_batches(4)
    with pytest.raises(ValueError, match=r"validation_fraction=0\.001 of \d+ tokens is \d"):
        opened(config.model_copy(update={"validation_fraction": 0.001}))
    tenth = config.model_copy(update={"validation_fraction": 0.1})
    with pytest.raises(ValueError, match="batch_size=0"):
        opened(tenth).validation_batches(0)


def test_a_tokenizer_file_is_used_for_text_files_too(tmp_path: Path) -> None:
    plain = forms.write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = FileTokenizerConfig(kind="file", path=str(tmp_path / "tokenizer.json"))
    config = forms.write("folder", tmp_path / "text", tokenizer=tokenizer)
    data = open_data(config, islands=1, seq_len_tokens=4)
    ids = data.shard(0).part.ids
    expected = plain.encode(forms.TEXTS[0], add_special_tokens=False).ids
    assert ids[: len(expected)].tolist() == expected
    assert data.vocab_size == 302


# The config


def test_a_config_of_before_means_what_it_meant() -> None:
    old = DataConfig.model_validate_json('{"source": "stdlib", "max_bytes": 64000000}')
    new = DataConfig(source="stdlib")
    assert old.limit_bytes == new.limit_bytes == 64_000_000
    assert (new.tokenizer, new.order, new.packing) == ("bytes", "random", "stream")
    assert DataConfig(source="jsonl", path="a").limit_bytes is None


def test_a_tokenizer_is_a_word_or_a_file() -> None:
    text = '{"source": "stdlib", "tokenizer": {"kind": "file", "path": "t", "eos_token": "</s>"}}'
    config = DataConfig.model_validate_json(text)
    assert config.tokenizer == FileTokenizerConfig(kind="file", path="t", eos_token="</s>")
    assert DataConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"source": "folder"}, "give folder exactly when"),
        ({"source": "stdlib", "folder": "a"}, "give folder exactly when"),
        ({"source": "jsonl"}, "give path exactly when"),
        ({"source": "folder", "folder": "a", "path": "b"}, "give path exactly when"),
        ({"source": "stdlib", "column": "a"}, "a text file has no columns"),
        ({"source": "parquet", "path": "a", "split": "b"}, "only a Hugging Face dataset"),
        ({"source": "stdlib", "validation_fraction": 1.0}, "less than 1"),
        ({"source": "stdlib", "order": "sorted"}, "'random' or 'shuffled'"),
        ({"source": "stdlib", "tokenizer": "gpt2"}, "'bytes'"),
        ({"source": "stdlib", "tokenizer": {"kind": "file"}}, "path"),
        ({"source": "csv"}, "'jsonl'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DataConfig.model_validate_json(json.dumps(fields))


def test_a_model_without_a_kind_is_the_byte_level_one() -> None:
    models: TypeAdapter[ModelConfig | HfModelConfig] = TypeAdapter(AnyModelConfig)
    tiny = '"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "ffn_size": 24'
    old = models.validate_json(f"{{{tiny}}}")
    assert old == models.validate_json(f'{{"kind": "llama", {tiny}}}')
    assert isinstance(old, ModelConfig)
    stored = models.validate_json('{"kind": "hf", "path": "a", "dtype": "bfloat16"}')
    assert stored == HfModelConfig(kind="hf", path="a", dtype="bfloat16")
    assert models.validate_json(models.dump_json(stored)) == stored
    with pytest.raises(ValidationError, match="'llama', 'hf'"):
        models.validate_json('{"kind": "gguf", "path": "a"}')
