"""Columns of text: Parquet, and the Arrow files of a Hugging Face dataset folder.

Both are read a few rows at a time. A dataset folder is what ``save_to_disk`` leaves; it is read
with pyarrow alone, in the order of its state.json.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from actors.brief import in_words
from actors.island.data.document import Document

SUFFIXES = (".parquet",)
_BATCH_ROWS = 256
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"  # Arrow IPC, "IPC Streaming Format": end of stream
_DAMAGE = (OSError, pa.ArrowException, UnicodeDecodeError)


def parquet_documents(paths: Iterable[Path], *, column: str) -> Iterator[Document]:
    """Texts in the order of files and rows; rows count from 0 in each file."""
    for path in paths:
        row = 0
        try:
            # No pre-buffering: it would hold the column of all row groups in memory.
            with pq.ParquetFile(
                str(path), memory_map=True, pre_buffer=False, page_checksum_verification=True
            ) as file:
                _check_column(file.schema_arrow, path=path, column=column)
                for group in range(file.num_row_groups):
                    for batch in file.iter_batches(
                        _BATCH_ROWS, row_groups=[group], columns=[column]
                    ):
                        yield from _texts(batch.column(0), first=row, path=path, column=column)
                        row += batch.num_rows
        except _DAMAGE as error:
            raise _damaged(path, row, error) from error


def arrow_documents(paths: Iterable[Path], *, column: str) -> Iterator[Document]:
    """As parquet_documents, from Arrow IPC streams; the files are memory-mapped."""
    for path in paths:
        row = 0
        try:
            _check_end(path)
            with pa.memory_map(str(path)) as source, ipc.open_stream(source) as stream:
                at = _check_column(stream.schema, path=path, column=column)
                for batch in stream:
                    yield from _texts(batch.column(at), first=row, path=path, column=column)
                    row += batch.num_rows
        except _DAMAGE as error:
            raise _damaged(path, row, error) from error


def dataset_files(folder: Path, *, split: str | None) -> tuple[Path, ...]:
    """Arrow files of a dataset folder in their order; ValueError says what it lacks."""
    folder = _split_folder(folder, split)
    state = _object(folder / "state.json")
    if state.get("_indices_data_files"):
        raise ValueError(
            f"{folder}: its rows are picked by an index file (_indices_data_files in state.json); "
            "save the dataset again with a newer version of datasets, or flatten_indices() first"
        )
    entries = state.get("_data_files")
    names = [e.get("filename") for e in entries if isinstance(e, dict)] if entries else []
    if not names or any(not isinstance(n, str) or Path(n).name != n for n in names):
        raise ValueError(
            f"{folder / 'state.json'}: _data_files={entries!r} names no files of this folder; "
            "give a folder that save_to_disk of Hugging Face datasets wrote"
        )
    paths = tuple(folder / str(name) for name in names)
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{path}: is missing, state.json names it; copy the dataset again")
    return paths


def _split_folder(folder: Path, split: str | None) -> Path:
    listing = folder / "dataset_dict.json"
    if not listing.is_file():
        if split is not None:
            raise ValueError(
                f"data.split={split!r}, but {folder} is one dataset without splits "
                "(no dataset_dict.json); leave split out, or give the folder above"
            )
        return folder
    splits = _object(listing).get("splits")
    if not isinstance(splits, list) or not all(isinstance(s, str) for s in splits) or not splits:
        raise ValueError(f"{listing}: splits={splits!r} is no list of names; save it again")
    if split is None and len(splits) == 1:
        split = splits[0]
    if split not in splits:
        raise ValueError(
            f"data.split={split!r} is none of {', '.join(splits)} in {folder}; name one of them"
        )
    return folder / str(split)


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = in_words(error)
        raise ValueError(
            f"{path}: cannot be read ({why}); give a folder that save_to_disk of Hugging Face "
            "datasets wrote"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds {type(found).__name__}, no object; save the dataset again")
    return found


def _check_end(path: Path) -> None:
    """A stream that was cut between two batches reads like a shorter one."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size_bytes - len(_STREAM_END)))
        if file.read() != _STREAM_END:
            raise ValueError(
                f"{path}: does not end as an Arrow stream does: it was cut after {size_bytes} "
                "bytes, or is no such stream; copy the dataset again"
            )


def _check_column(schema: Any, *, path: Path, column: str) -> int:
    """Place of the column of text."""
    at: int = schema.get_field_index(column)  # -1 also where the name stands twice
    if at < 0:
        raise ValueError(
            f"{path}: has not one column {column!r}, but {', '.join(schema.names[:10])}; "
            "name the one with the text in data.column"
        )
    kind = schema.field(at).type
    if not _is_text(kind):
        raise ValueError(
            f"{path}: column {column!r} holds {kind}, no text; name another in data.column"
        )
    return at


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    raw = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(check(kind) for check in (*text, *raw))


def _texts(values: Any, *, first: int, path: Path, column: str) -> Iterator[Document]:
    for start in range(0, len(values), _BATCH_ROWS):
        part = values.slice(start, _BATCH_ROWS)
        part.validate(full=True)  # a damaged offset would be read as any memory
        for row, value in enumerate(part.to_pylist(), start=first + start):
            where = f"{path}: row {row}"
            if value is None:
                raise ValueError(
                    f"{where}: column {column!r} is null; leave such rows out, or name another "
                    "column in data.column"
                )
            text = value if isinstance(value, str) else _decoded(value, where, column)
            if text:
                yield Document(text, where)


def _decoded(value: bytes, where: str, column: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: column {column!r} is binary, no UTF-8 text ({error.reason}); name another "
            "column in data.column"
        ) from error


def _damaged(path: Path, row: int, error: Exception) -> ValueError:
    line = " ".join(str(error).split())
    return ValueError(f"{path}: cannot be read after row {row} ({line}); copy the file again")
