"""Token files: written once, whole or not at all, and never believed when they were changed."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from actors.config import DataConfig, FileTokenizerConfig
from actors.island.data import cache
from actors.island.data.cache import CacheFailed, cached_tokens, id_type
from actors.island.data.tokenizer import FileTokenizer
from tests.actors.island.data import forms

EOS = 301


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    forms.write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = FileTokenizerConfig(kind="file", path=str(tmp_path / "tokenizer.json"))
    return forms.write("jsonl", tmp_path / "text", tokenizer=tokenizer)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Documents of each call that tokenizes."""
    calls: list[int] = []
    encode = FileTokenizer.encode

    def counted(self: FileTokenizer, documents: Any) -> Any:
        calls.append(len(documents))
        return encode(self, documents)

    monkeypatch.setattr(FileTokenizer, "encode", counted)
    return calls


def files(tmp_path: Path) -> dict[str, Path]:
    return {path.suffix: path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"}


def test_ids_are_the_documents_with_eos_between_them(config: DataConfig, tmp_path: Path) -> None:
    plain = forms.write_tokenizer(tmp_path / "again.json")
    texts = [plain.encode(text, add_special_tokens=False).ids for text in forms.TEXTS]
    expected = [i for ids in texts for i in (*ids, EOS)][:-1]
    tokens = cached_tokens(config)
    assert tokens.ids.tolist() == expected
    assert tokens.ids.dtype == np.dtype("<u2")
    assert tokens.starts.tolist() == [0, *np.cumsum([len(ids) + 1 for ids in texts])[:-1]]
    assert tokens.vocab_size == 302
    assert files(tmp_path)[".tokens"].read_bytes() == np.array(expected, "<u2").tobytes()
    assert not tokens.ids.flags.writeable


@pytest.mark.parametrize("form", [f for f in forms.FORMS if f != "folder"])
def test_bytes_of_every_form_are_the_joined_text(tmp_path: Path, form: str) -> None:
    tokens = cached_tokens(forms.write(form, tmp_path / "text"))
    assert tokens.ids.tobytes() == "\0".join(forms.TEXTS).encode()
    assert tokens.ids.dtype == np.uint8


def test_small_batches_of_text_give_the_same_file(
    config: DataConfig, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cached_tokens(config)
    monkeypatch.setattr(cache, "BATCH_CHARACTERS", 30)
    again = cached_tokens(config.model_copy(update={"cache_dir": f"{config.cache_dir}-2"}))
    assert encoded[0] == len(forms.TEXTS)
    assert len(encoded) > 2
    assert again.ids.tolist() == whole.ids.tolist()
    assert again.starts.tolist() == whole.starts.tolist()
    assert again.fingerprint == whole.fingerprint


def test_a_document_without_tokens_is_none(tmp_path: Path, config: DataConfig) -> None:
    blank = forms.write("jsonl", tmp_path / "blank", ["w1", " \n ", "w2"])
    tokens = cached_tokens(blank.model_copy(update={"tokenizer": config.tokenizer}))
    assert tokens.ids.tolist() == [2, EOS, 3]
    assert tokens.starts.tolist() == [0, 2]
    nothing = forms.write("jsonl", tmp_path / "nothing", [" ", ""])
    with pytest.raises(ValueError, match="no document has any text"):
        cached_tokens(nothing.model_copy(update={"tokenizer": config.tokenizer}))
    assert list((tmp_path / "cache").glob("*.tmp")) == []


def test_a_file_is_written_once(config: DataConfig, encoded: list[int]) -> None:
    first, second = cached_tokens(config), cached_tokens(config)
    assert encoded == [len(forms.TEXTS)]
    assert first.fingerprint == second.fingerprint
    assert first.ids.tolist() == second.ids.tolist()


def test_another_text_limit_or_tokenizer_is_another_file(
    config: DataConfig, tmp_path: Path
) -> None:
    told = {cached_tokens(config).fingerprint}
    told.add(cached_tokens(config.model_copy(update={"max_bytes": 50})).fingerprint)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"w7"', '"w70"').replace('"w8"', '"w7"'))
    told.add(cached_tokens(config).fingerprint)
    rows = tmp_path / "text" / "rows.jsonl"
    rows.write_text(rows.read_text().replace("w299", "w298"))  # as long as before
    told.add(cached_tokens(config).fingerprint)
    assert len(told) == 4


def flip_a_token(found: dict[str, Path]) -> None:
    data = bytearray(found[".tokens"].read_bytes())
    data[5] ^= 1
    found[".tokens"].write_bytes(data)


def cut_the_documents(found: dict[str, Path]) -> None:
    found[".documents"].write_bytes(found[".documents"].read_bytes()[:-3])


def lose_the_tokens(found: dict[str, Path]) -> None:
    found[".tokens"].unlink()


def empty_the_listing(found: dict[str, Path]) -> None:
    found[".json"].write_text("{}")


@pytest.mark.parametrize(
    "damage", [flip_a_token, cut_the_documents, lose_the_tokens, empty_the_listing]
)
def test_a_damaged_file_is_written_again(
    config: DataConfig,
    encoded: list[int],
    tmp_path: Path,
    damage: Callable[[dict[str, Path]], None],
) -> None:
    whole = cached_tokens(config).ids.tolist()
    damage(files(tmp_path))
    assert cached_tokens(config).ids.tolist() == whole
    assert cached_tokens(config).ids.tolist() == whole
    assert len(encoded) == 2


def test_a_large_file_is_read_again_only_when_its_size_or_time_is_another(
    config: DataConfig, encoded: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    digest = hashlib.file_digest

    def counted(file: Any, name: Any) -> Any:
        read.append(Path(file.name).suffix)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    monkeypatch.setattr(cache, "HASHED_BYTES", 0)
    whole = cached_tokens(config).ids.tolist()
    assert cached_tokens(config).ids.tolist() == whole
    assert read == []
    tokens = files(tmp_path)[".tokens"]
    os.utime(tokens, ns=(1, 1))  # as a copy may have it
    assert cached_tokens(config).ids.tolist() == whole
    assert read == [".tokens"]
    flip_a_token(files(tmp_path))
    os.utime(tokens, ns=(2, 2))
    assert cached_tokens(config).ids.tolist() == whole
    cut_the_documents(files(tmp_path))
    assert cached_tokens(config).ids.tolist() == whole
    assert len(encoded) == 3


def test_a_text_that_changes_while_it_is_read_is_refused(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "text" / "rows.jsonl"
    encode = FileTokenizer.encode

    def changing(self: FileTokenizer, documents: Any) -> Any:
        rows.write_text(rows.read_text() + '{"text": "w9"}\n')
        return encode(self, documents)

    with monkeypatch.context() as patch:
        patch.setattr(FileTokenizer, "encode", changing)
        with pytest.raises(ValueError, match="changed while it was read"):
            cached_tokens(config)
    assert files(tmp_path) == {}
    assert len(cached_tokens(config).starts) == len(forms.TEXTS) + 1


def test_many_at_once_write_one_file(
    config: DataConfig, encoded: list[int], tmp_path: Path
) -> None:
    together = Barrier(4)

    def one(_: int) -> list[int]:
        together.wait(timeout=10)
        found: list[int] = cached_tokens(config).ids.tolist()
        return found

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(4)))
    assert found == [found[0]] * 4
    assert encoded == [len(forms.TEXTS)]
    assert set(files(tmp_path)) == {".tokens", ".documents", ".json"}


def test_without_locks_all_write_and_all_read_the_same(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    together = Barrier(3)

    def one(_: int) -> list[int]:
        together.wait(timeout=10)
        found: list[int] = cached_tokens(config).ids.tolist()
        return found

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(one, range(3)))
    assert found == [found[0]] * 3
    assert set(files(tmp_path)) == {".tokens", ".documents", ".json"}


def test_a_builder_that_does_not_end_is_named(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: Any) -> None:
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", taken)
    monkeypatch.setattr(cache, "LOCK_WAIT_S", -1.0)
    with pytest.raises(CacheFailed, match="another process has been building it"):
        cached_tokens(config)


def test_what_a_killed_process_left_is_cleared_away(config: DataConfig, tmp_path: Path) -> None:
    cached_tokens(config)
    found = files(tmp_path)
    left = found[".tokens"].with_suffix(".tokens.0badf00d.tmp")
    left.write_bytes(b"half of it")
    found[".json"].unlink()
    cached_tokens(config)
    assert not left.exists()


def test_a_full_disk_is_named_and_leaves_nothing(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CacheFailed, match=r"cache: token files cannot be .*No space left"):
            cached_tokens(config)
    assert files(tmp_path) == {}
    assert len(cached_tokens(config).starts) == len(forms.TEXTS)


def test_a_cache_that_is_no_folder_is_named(config: DataConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheFailed, match=r"name another folder in data\.cache_dir"):
        cached_tokens(config.model_copy(update={"cache_dir": str(tmp_path / "file")}))


def test_token_files_do_not_become_text_files(config: DataConfig, tmp_path: Path) -> None:
    inside = tmp_path / "files" / "tokens"
    texts = forms.write(
        "folder", tmp_path / "files", tokenizer=config.tokenizer, cache_dir=str(inside)
    )
    with pytest.raises(ValueError, match=r"tokens' lies in data\.folder=.*name a folder outside"):
        cached_tokens(texts)
    assert not inside.exists()
    hidden = texts.model_copy(update={"cache_dir": str(tmp_path / "files" / ".tokens")})
    assert len(cached_tokens(hidden).starts) == len(cached_tokens(hidden).starts) == 5


def test_the_users_cache_is_the_default(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    cached_tokens(config.model_copy(update={"cache_dir": None}))
    assert len(list((tmp_path / "home" / "lull" / "tokens").glob("*.tokens"))) == 1


@pytest.mark.parametrize(
    ("vocab_size", "kind"),
    [(256, "<u1"), (257, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (2**32, "<u4")],
)
def test_ids_take_the_smallest_type_that_holds_the_vocabulary(vocab_size: int, kind: str) -> None:
    assert id_type(vocab_size) == np.dtype(kind)


def test_a_vocabulary_beyond_32_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        id_type(2**32 + 1)
