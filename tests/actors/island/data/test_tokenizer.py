"""Tokenizers: ids as the tokenizers package gives them; the token that ends a document is known."""

import json
from pathlib import Path
from typing import Any

import pytest

from actors.config import FileTokenizerConfig
from actors.island.data.document import Document
from actors.island.data.tokenizer import ByteTokenizer, FileTokenizer, load_tokenizer
from tests.actors.island.data import forms


def of_file(path: Path, **changes: Any) -> FileTokenizer:
    return FileTokenizer(FileTokenizerConfig(kind="file", path=str(path), **changes))


def test_bytes_are_the_default_and_refuse_a_text_that_holds_their_separator() -> None:
    tokenizer = load_tokenizer("bytes")
    assert isinstance(tokenizer, ByteTokenizer)
    (ids,) = tokenizer.encode([Document("Straße", "a.txt")])
    assert bytes(ids.tolist()) == "Straße".encode()
    with pytest.raises(ValueError, match=r"b\.jsonl:7: its text holds a NUL"):
        tokenizer.encode([Document("x", "a"), Document("a\0b", "b.jsonl:7")])


def test_ids_are_those_of_the_file_without_truncation_or_padding(tmp_path: Path) -> None:
    plain = forms.write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = of_file(tmp_path / "tokenizer.json")
    found = tokenizer.encode([Document(text, "") for text in forms.TEXTS])
    assert [ids.tolist() for ids in found] == [
        plain.encode(text, add_special_tokens=False).ids for text in forms.TEXTS
    ]
    assert max(map(len, found)) == 60
    assert tokenizer.vocab_size == 302
    assert tokenizer.eos_id == 301


def test_the_vocabulary_reaches_to_the_highest_id_also_over_gaps(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    forms.write_tokenizer(path, words=3)
    stored = json.loads(path.read_text())
    stored["model"]["vocab"]["far"] = 70_000
    path.write_text(json.dumps(stored))
    assert of_file(path).vocab_size == 70_001


@pytest.mark.parametrize(
    ("beside", "content"),
    [
        ("tokenizer_config.json", {"eos_token": "<end>"}),
        ("tokenizer_config.json", {"eos_token": {"content": "<end>", "special": True}}),
        ("special_tokens_map.json", {"eos_token": "<end>"}),
    ],
)
def test_a_folder_names_its_eos(tmp_path: Path, beside: str, content: dict[str, Any]) -> None:
    forms.write_tokenizer(tmp_path / "tokenizer.json", words=5, eos=("</s>", "<end>"))
    (tmp_path / beside).write_text(json.dumps(content))
    assert of_file(tmp_path).eos_id == 7
    assert of_file(tmp_path, eos_token="</s>").eos_id == 6


@pytest.mark.parametrize(
    ("eos", "named", "said"),
    [
        (("<stop>",), None, r"which token ends a document\? it has <stop>; name one in"),
        (("</s>", "<eos>"), None, r"which token ends a document\? it has </s>, <eos>"),
        (("</s>",), "<end>", r"has no token '<end>' to end a document; it has </s>"),
        ((), None, r"which token ends a document\? it has no special tokens"),
    ],
)
def test_an_unknown_eos_is_asked_for(
    tmp_path: Path, eos: tuple[str, ...], named: str | None, said: str
) -> None:
    forms.write_tokenizer(tmp_path / "tokenizer.json", words=5, eos=eos)
    with pytest.raises(ValueError, match=said):
        of_file(tmp_path, eos_token=named)


def test_files_that_are_no_tokenizer_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json is not there; give a tokenizer\.json"):
        of_file(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer\.json \("):
        of_file(tmp_path)
    forms.write_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: cannot be read"):
        of_file(tmp_path)


def test_the_fingerprint_tells_file_and_eos(tmp_path: Path) -> None:
    eos = ("</s>", "<end>")
    for name, words in (("a", 5), ("b", 5), ("c", 6)):
        forms.write_tokenizer(tmp_path / name / "tokenizer.json", words=words, eos=eos)
    a, b, c, other = (
        of_file(tmp_path / name, eos_token=token).fingerprint
        for name, token in (("a", "</s>"), ("b", "</s>"), ("c", "</s>"), ("a", "<end>"))
    )
    assert a == b
    assert len({a, c, other}) == 3
