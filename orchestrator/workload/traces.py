"""Read and check a request trace in the format of the Azure LLM inference traces.

CSV with TIMESTAMP, ContextTokens, GeneratedTokens; bad input is refused, never repaired, and the
message names file, line, column and value.
"""

import csv
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import numpy.typing as npt

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_TOKENS = 2**31 - 1
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):?(\d\d))?"
)
_EPOCH = re.compile(r"\d{10}(?:\d{3}){0,3}")
_EPOCH_UNITS = {10: ("seconds", 10**9), 13: ("milliseconds", 10**6),
                16: ("microseconds", 10**3), 19: ("nanoseconds", 1)}  # fmt: skip
_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)


class TraceWarning(UserWarning):
    """A trace was read, but something about it is odd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of time; ``at_ns`` counts from the first one."""

    path: Path
    at_ns: npt.NDArray[np.int64]
    context_tokens: npt.NDArray[np.int64]
    generated_tokens: npt.NDArray[np.int64]
    notes: tuple[str, ...]  # what is odd, as warned

    @property
    def duration_s(self) -> float:
        return float(self.at_ns[-1]) / 1e9


def read_trace(path: Path) -> Trace:
    """All requests of the file; oddities that can be read are warned about (TraceWarning)."""
    lines: list[int] = []
    kinds: list[str] = []
    rows: list[tuple[int, int, int]] = []
    for line, cells in _cells(path):
        at_ns, kind = _timestamp(cells[0], where=_where(path, line=line, column=COLUMNS[0]))
        if kinds and kind != kinds[0]:
            raise ValueError(
                f"{_where(path, line=line, column=COLUMNS[0])}: {cells[0]!r} is {kind}, but line "
                f"{lines[0]} is {kinds[0]}; write all rows in one form"
            )
        tokens = [
            _tokens(cell, where=_where(path, line=line, column=column))
            for cell, column in zip(cells[1:], COLUMNS[1:], strict=True)
        ]
        lines.append(line)
        kinds.append(kind)
        rows.append((at_ns, tokens[0], tokens[1]))
    if not rows:
        raise ValueError(f"{path}: a header and no requests; give a trace with at least one row")
    return _assemble(path, rows=rows, lines=lines, kind=kinds[0])


def _assemble(
    path: Path, *, rows: list[tuple[int, int, int]], lines: list[int], kind: str
) -> Trace:
    table = np.array(rows, dtype=np.int64)  # [row, (at, context, generated)]
    notes = [f"{path}: {COLUMNS[0]} read as {kind}"] if kind.startswith("epoch") else []
    back = np.flatnonzero(np.diff(table[:, 0]) < 0)
    if len(back):
        notes.append(
            f"{path}: {len(back)} row(s) earlier than the row before, the first at line "
            f"{lines[back[0] + 1]}; sorted by {COLUMNS[0]}"
        )
        table = table[np.argsort(table[:, 0], kind="stable")]
    if len(rows) == 1:
        notes.append(f"{path}: line {lines[0]} is the only request; no rate can be computed")
    for note in notes:
        warnings.warn(note, TraceWarning, stacklevel=3)
    columns = (table[:, 0] - table[0, 0], table[:, 1].copy(), table[:, 2].copy())
    for column in columns:
        column.setflags(write=False)
    return Trace(
        path=path,
        at_ns=columns[0],
        context_tokens=columns[1],
        generated_tokens=columns[2],
        notes=tuple(notes),
    )


def _where(path: Path, *, line: int, column: str) -> str:
    return f"{path}: line {line}, column {column}"


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}); give the path of a CSV file, "
            "relative to the study file"
        ) from error
    if not data.strip():
        raise ValueError(f"{path}: the file is empty; give a CSV with {', '.join(COLUMNS)}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path}: line {line}: byte {data[error.start]:#04x} is no UTF-8; "
            "save the file as UTF-8 text (unpack it first if it is compressed)"
        ) from error


def _cells(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """(line, cells of COLUMNS) for each row that is not blank."""
    reader = csv.reader(_text(path).splitlines(keepends=True), strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        places = _places(path, header=header)
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise ValueError(
                    f"{path}: line {reader.line_num} has {len(row)} field(s) {row!r}, the header "
                    f"has {len(header)}; complete or delete the line"
                )
            first, second, third = (row[i].strip() for i in places)
            yield reader.line_num, (first, second, third)
    except csv.Error as error:
        raise ValueError(
            f"{path}: line {reader.line_num}: {error}; write it as plain CSV"
        ) from error


def _places(path: Path, *, header: list[str]) -> list[int]:
    for other in (";", "\t", "|"):
        if len(header) == 1 and other in header[0]:
            raise ValueError(
                f"{path}: line 1: fields are separated by {other!r}, expected ','; "
                "convert the file to commas"
            )
    for name in COLUMNS:
        if header.count(name) != 1:
            fault = "missing" if name not in header else "there more than once"
            raise ValueError(
                f"{path}: line 1: column {name} is {fault}; found {', '.join(header)}, "
                f"needed are {', '.join(COLUMNS)}"
            )
    return [header.index(name) for name in COLUMNS]


def _timestamp(cell: str, *, where: str) -> tuple[int, str]:
    """(nanoseconds since 1970, form). Seven digits of fraction are one more than %f takes."""
    if _EPOCH.fullmatch(cell):
        unit, factor = _EPOCH_UNITS[len(cell)]
        return int(cell) * factor, f"epoch {unit}"
    found = _TIMESTAMP.fullmatch(cell)
    if found is None:
        raise ValueError(f"{where}: {cell!r} is no time; write YYYY-MM-DD HH:MM:SS.fffffff")
    date, clock, fraction, zulu, sign, hours, minutes = found.groups()
    zone = UTC
    if sign is not None:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        zone = timezone(offset if sign == "+" else -offset)
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=zone)
    except ValueError as error:
        raise ValueError(f"{where}: {cell!r} is no time: {error}; correct it") from error
    whole = (moment - _EPOCH_START) // timedelta(seconds=1)
    aware = zulu is not None or sign is not None
    kind = "a time with a zone" if aware else "a time without a zone"
    return whole * 10**9 + int((fraction or "0").ljust(9, "0")), kind


def _tokens(cell: str, *, where: str) -> int:
    try:
        tokens = int(cell) if cell.isascii() and "_" not in cell else None
    except ValueError:
        tokens = None
    if tokens is None:
        raise ValueError(f"{where}: {cell!r} is no whole number; write tokens as plain digits")
    if not 0 <= tokens <= MOST_TOKENS:
        raise ValueError(
            f"{where}: {cell} is outside 0..{MOST_TOKENS} tokens; correct or delete the line"
        )
    return tokens
