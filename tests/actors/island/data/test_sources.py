"""Every source gives its documents exactly, in order; what is wrong is named with its place."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors.config import DataConfig
from actors.island.data import jsonl
from actors.island.data.sources import documents
from tests.actors.island.data import forms


def read(config: DataConfig) -> list[str]:
    return [document.text for document in documents(config)]


@pytest.mark.parametrize("form", forms.FORMS)
def test_every_form_gives_the_same_documents_in_their_order(tmp_path: Path, form: str) -> None:
    assert read(forms.write(form, tmp_path / "text")) == list(forms.TEXTS)


@pytest.mark.parametrize("form", ["jsonl", "hf"])
def test_the_limit_counts_bytes_of_the_joined_text(tmp_path: Path, form: str) -> None:
    whole = "\0".join(forms.TEXTS).encode()
    for limit in (1, 3, 4, 5, 30, 31, 32, 211, 212, 213, 214, len(whole), len(whole) + 9):
        config = forms.write(form, tmp_path / f"{limit}", max_bytes=limit)
        cut = whole[:limit].decode(errors="ignore")
        assert "\0".join(read(config)) == cut.removesuffix("\0"), limit


def test_empty_texts_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n\n{"text": ""}\r\n  \n{"text": "b"}')
    assert read(DataConfig(source="jsonl", path=str(path))) == ["a", "b"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_every_arrow_type_of_text_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["grün", "blau", "grün"]
    values = [text.encode() for text in texts] if "binary" in str(kind) else texts
    table = pa.table({"body": pa.array(values, kind)})
    (tmp_path / "set").mkdir()
    forms.write_stream(tmp_path / "set" / "data.arrow", table)
    state = {"_data_files": [{"filename": "data.arrow"}]}
    (tmp_path / "set" / "state.json").write_text(json.dumps(state))
    config = DataConfig(source="hf", path=str(tmp_path / "set"), column="body")
    assert read(config) == texts


def test_rows_of_a_long_batch_are_all_read(tmp_path: Path) -> None:
    texts = [f"row {i}" for i in range(1000)]
    pq.write_table(forms.table_of(texts), tmp_path / "long.parquet")
    assert read(DataConfig(source="parquet", path=str(tmp_path / "long.parquet"))) == texts


def of_lines(*lines: str) -> Callable[[Path], DataConfig]:
    def write(folder: Path) -> DataConfig:
        path = folder / "rows.jsonl"
        path.write_text("\n".join(lines) + "\n")
        return DataConfig(source="jsonl", path=str(path))

    return write


def of_column(values: pa.Array) -> Callable[[Path], DataConfig]:
    def write(folder: Path) -> DataConfig:
        pq.write_table(pa.table({"text": values}), folder / "rows.parquet")
        return DataConfig(source="parquet", path=str(folder / "rows.parquet"))

    return write


def cut(form: str, file: str, *, last_bytes: int) -> Callable[[Path], DataConfig]:
    """A whole source whose ``file`` lost its last bytes."""

    def write(folder: Path) -> DataConfig:
        config = forms.write(form, folder / "text")
        path = folder / "text" / file
        path.write_bytes(path.read_bytes()[:-last_bytes])
        return config

    return write


def changed(form: str, file: str, text: str) -> Callable[[Path], DataConfig]:
    def write(folder: Path) -> DataConfig:
        config = forms.write(form, folder / "text")
        (folder / "text" / file).write_text(text)
        return config

    return write


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (of_lines('{"text": "a"}', '{"text": '), r"rows\.jsonl:2: is no JSON \("),
        (of_lines('{"text": "a"}', "[1]"), r"rows\.jsonl:2: holds .*, no object"),
        (of_lines('{"body": "a"}'), r"rows\.jsonl:1: has no field 'text', but body; name the one"),
        (of_lines('{"text": null}'), r"rows\.jsonl:1: field 'text' is null, no text"),
        (of_lines('{"text": 3}'), r"rows\.jsonl:1: field 'text' is 3, no text"),
        (of_lines(r'{"text": "\ud800"}'), r"rows\.jsonl:1: its text is no Unicode"),
        (of_column(pa.array([1, 2])), r"column 'text' holds int64, no text"),
        (of_column(pa.array(["a", None])), r"row 1: column 'text' is null"),
        (of_column(pa.array([b"a", b"\xff\xfe"])), r"row 1: column 'text' is binary"),
        (cut("parquet", "rows.parquet", last_bytes=9), r"parquet: cannot be read after row 0"),
        (cut("jsonl.gz", "rows.jsonl.gz", last_bytes=9), r"gz: cannot be read after line \d"),
        (
            cut("hf", "set/data-00001-of-00002.arrow", last_bytes=8),
            r"data-00001-of-00002\.arrow: does not end as an Arrow stream does",
        ),
        (
            changed("hf", "set/data-00000-of-00002.arrow", "not an Arrow stream"),
            r"data-00000-of-00002\.arrow: does not end",
        ),
        (changed("hf", "set/state.json", "{"), r"state\.json: cannot be read"),
        (
            changed("hf", "set/state.json", '{"_data_files": [{"filename": "../x.arrow"}]}'),
            r"names no files of this folder",
        ),
        (
            changed("hf", "set/state.json", '{"_data_files": [{"filename": "x.arrow"}]}'),
            r"x\.arrow: is missing",
        ),
        (
            changed("hf", "set/state.json", '{"_indices_data_files": [{"filename": "i.arrow"}]}'),
            r"rows are picked by an index file",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    tmp_path: Path, write: Callable[[Path], DataConfig], said: str
) -> None:
    config = write(tmp_path)
    with pytest.raises(ValueError, match=said):
        read(config)


def test_a_stream_whose_middle_is_damaged_is_refused(tmp_path: Path) -> None:
    config = forms.write("hf", tmp_path / "text", ["a long document " * 50] * 4)
    path = tmp_path / "text" / "set" / "data-00000-of-00002.arrow"
    whole = bytearray(path.read_bytes())
    middle = whole.index(b"a long document ")
    whole[middle] = 0xFF  # no UTF-8
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"data-00000-of-00002\.arrow: cannot be read after row 0"):
        read(config)


def test_a_missing_column_names_those_that_are_there(tmp_path: Path) -> None:
    for form in ("parquet", "hf"):
        config = forms.write(form, tmp_path / form, column="body")
        with pytest.raises(ValueError, match=r"not one column 'body', but id, text; name the one"):
            read(config)


def test_a_split_is_asked_for_where_there_are_several_and_only_there(tmp_path: Path) -> None:
    several = forms.write("hf splits", tmp_path / "several")
    with pytest.raises(ValueError, match=r"split=None is none of train, test"):
        read(several.model_copy(update={"split": None}))
    with pytest.raises(ValueError, match=r"split='dev' is none of train, test"):
        read(several.model_copy(update={"split": "dev"}))
    assert read(several.model_copy(update={"split": "test"})) == ["of the test split"]
    with pytest.raises(ValueError, match="is one dataset without splits"):
        read(forms.write("hf", tmp_path / "one", split="train"))


def test_a_line_that_is_no_line_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "MOST_LINE_BYTES", 100)
    (tmp_path / "array.jsonl.gz").write_bytes(gzip.compress(b"[" + b"1, " * 1000 + b"1]"))
    with pytest.raises(ValueError, match=r"array\.jsonl\.gz:1: is longer than 100 bytes"):
        read(DataConfig(source="jsonl", path=str(tmp_path)))


@pytest.mark.parametrize(
    ("source", "said"),
    [("jsonl", "holds no file that ends in .jsonl"), ("hf", "state.json: cannot be read")],
)
def test_a_folder_without_such_files_is_named(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "bare").mkdir()
    config = DataConfig(source="jsonl", path=str(tmp_path / "bare"))
    with pytest.raises(ValueError, match=said):
        read(config.model_copy(update={"source": source}))


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere' is not on this machine"):
        read(DataConfig(source="parquet", path=str(tmp_path / "nowhere")))


def test_no_byte_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_bytes=0 leaves no text"):
        read(forms.write("jsonl", tmp_path / "text", max_bytes=0))
