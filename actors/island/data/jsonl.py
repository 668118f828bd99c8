"""JSON Lines, plain or .gz: one object a line, its text in a field that the config names."""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from actors.brief import in_words
from actors.island.data.document import Document

SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
MOST_LINE_BYTES = 2**28  # a longer line is another format, e.g. one JSON array of all rows


def jsonl_documents(paths: Iterable[Path], *, column: str) -> Iterator[Document]:
    """Texts in the order of files and lines; lines count from 1; blank ones are passed over."""
    for path in paths:
        for number, line in _lines(path):
            where = f"{path}:{number}"
            text = _text(line, where=where, column=column)
            if text:
                yield Document(text, where)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _opened(path) as file:
            while line := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                if len(line) > MOST_LINE_BYTES:
                    raise ValueError(
                        f"{path}:{number}: is longer than {MOST_LINE_BYTES} bytes; "
                        "JSON Lines holds one object a line"
                    )
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    yield number, line
    except (EOFError, zlib.error, OSError) as error:
        why = in_words(error)
        raise ValueError(
            f"{path}: cannot be read after line {number} ({why}); copy the file again"
        ) from error


def _opened(path: Path) -> io.BufferedIOBase:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _text(line: bytes, *, where: str, column: str) -> str:
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # a wrong encoding is a ValueError too
        raise ValueError(
            f"{where}: is no JSON ({error}); JSON Lines holds one object a line"
        ) from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: holds {line[:40]!r}, no object; JSON Lines holds one a line")
    if column not in row:
        raise ValueError(
            f"{where}: has no field {column!r}, but {', '.join(list(row)[:10]) or 'none at all'}; "
            "name the one with the text in data.column"
        )
    text = row[column]
    if not isinstance(text, str):
        raise ValueError(
            f"{where}: field {column!r} is {json.dumps(text)[:40]}, no text; leave such lines out, "
            "or name another field in data.column"
        )
    return text
