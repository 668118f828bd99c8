"""Rows of a Parquet trace whose columns the config names, in batches; lines are rows from 1."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.workload.config import ReadOptions
from orchestrator.workload.fields import MOST_TOKENS, NUMBERS, Ints, TimeForm
from orchestrator.workload.rows import Batch, Layout, RowParser, forms_of

BATCH_ROWS = 1 << 17


def parquet_layout(path: Path, *, options: ReadOptions) -> Layout:
    """The layout that the config names, checked against the file's schema."""
    if options.columns is None:
        raise ValueError(
            f"{path}: is Parquet; give columns with time, time_unit, prompt_tokens, output_tokens"
        )
    wanted = options.columns
    names = (wanted.time, wanted.prompt_tokens, wanted.output_tokens)
    with _opened(path) as file:
        found = file.schema_arrow.names
    for name in names:
        if found.count(name) != 1:
            fault = "missing" if name not in found else "there more than once"
            raise ValueError(
                f"{path}: column {name} is {fault}; found {', '.join(found)}, needed are "
                f"{', '.join(names)} (columns)"
            )
    return Layout(format="parquet", columns=names, forms=forms_of(wanted.time_unit))


def parquet_batches(path: Path, *, layout: Layout, parser: RowParser) -> Iterator[Batch]:
    """Whole columns, a batch of rows at a time."""
    first = 1
    with _opened(path) as file:
        try:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(layout.columns)):
                cells = [batch.column(name) for name in layout.columns]
                for i, column in enumerate(cells):
                    _refuse_null(column, where=_where(path, layout, i), first=first)
                yield _numbers(path, cells, layout=layout, parser=parser, first=first)
                first += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, error) from error


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ValueError:
    what = " ".join(str(error).split())[:200]
    return ValueError(f"{path}: Parquet data is damaged ({what}); write or copy the file again")


def _where(path: Path, layout: Layout, column: int) -> str:
    return f"{path}: column {layout.columns[column]}"


def _numbers(
    path: Path, cells: list[pa.Array], *, layout: Layout, parser: RowParser, first: int
) -> Batch:
    tokens = [_tokens(cells[i], where=_where(path, layout, i), first=first) for i in (1, 2)]
    return Batch(
        at_ns=_times(cells[0], where=_where(path, layout, 0), parser=parser, first=first),
        prompt_tokens=tokens[0],
        output_tokens=tokens[1],
        lines=range(first, first + len(cells[0])),
    )


def _refuse_null(column: pa.Array, *, where: str, first: int) -> None:
    if column.null_count:
        row = first + int(pc.index(pc.is_null(column), True).as_py())
        raise ValueError(f"{where}, row {row}: is null; fill it or delete the row")


def _tokens(column: pa.Array, *, where: str, first: int) -> Ints:
    if not pa.types.is_integer(column.type):
        raise ValueError(f"{where}: is {column.type}; tokens are whole numbers, cast it to int64")
    outside = pc.or_(pc.less(column, 0), pc.greater(column, MOST_TOKENS))
    _refuse(column, outside, where=where, first=first, why=f"is outside 0..{MOST_TOKENS} tokens")
    tokens: Ints = pc.cast(column, pa.int64()).to_numpy()
    return tokens


def _times(column: pa.Array, *, where: str, parser: RowParser, first: int) -> Ints:
    kind, form = column.type, parser.layout.forms[0]
    if form.digits is None and pa.types.is_timestamp(kind):
        zone = parser.layout.forms[0 if kind.tz is None else 1]
        parser.form = zone
        try:
            at_ns: Ints = pc.cast(
                pc.cast(column, pa.timestamp("ns", kind.tz)), pa.int64()
            ).to_numpy()
        except pa.ArrowInvalid as error:
            raise ValueError(f"{where}: has times outside 64-bit nanoseconds") from error
        return at_ns
    if form.digits is None and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return _text_times(column, where=where, parser=parser, first=first)
    if form.digits is None or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ValueError(
            f"{where}: is {kind}, which columns.time_unit {_unit(form)} does not fit; "
            "use iso for timestamps and texts, s, ms, us or ns for numbers"
        )
    parser.form = form
    return _number_times(column, form, where=where, first=first)


def _unit(form: TimeForm) -> str:
    return next((unit for unit, known in NUMBERS.items() if known == form), "iso")


def _text_times(column: pa.Array, *, where: str, parser: RowParser, first: int) -> Ints:
    texts = pc.cast(column, pa.string())
    parser.settle(first, texts[0].as_py())
    zeros = pa.array(["0"] * len(texts))
    batch = parser.columns((texts, zeros, zeros), first)
    if batch is None:
        rows = enumerate(((t, "0", "0") for t in texts.to_pylist()), start=first)
        try:
            batch = parser.cells(rows)
        except ValueError as error:
            raise ValueError(str(error).replace(": line ", ": row ", 1)) from error
    return batch.at_ns


def _number_times(column: pa.Array, form: TimeForm, *, where: str, first: int) -> Ints:
    assert form.digits is not None
    most = (2**63 - 1) // 10**form.digits
    if pa.types.is_floating(column.type):
        bad = pc.invert(pc.is_finite(column))
        _refuse(column, bad, where=where, first=first, why="is no time")
    outside = pc.or_(pc.less(column, 0), pc.greater_equal(column, most))
    _refuse(column, outside, where=where, first=first, why="is outside 0..2**63 ns")
    if pa.types.is_integer(column.type):
        whole: Ints = pc.cast(column, pa.int64()).to_numpy() * 10**form.digits
        return whole
    numbers = column.to_numpy(zero_copy_only=False).astype(np.float64)
    seconds = np.floor(numbers)  # apart from the fraction, so that no digit is lost in a product
    parts = np.rint((numbers - seconds) * 10.0**form.digits)
    at_ns: Ints = seconds.astype(np.int64) * 10**form.digits + parts.astype(np.int64)
    return at_ns


def _refuse(column: pa.Array, bad: pa.Array, *, where: str, first: int, why: str) -> None:
    place = int(pc.index(bad, True).as_py())
    if place >= 0:
        raise ValueError(
            f"{where}, row {first + place}: {column[place].as_py()} {why}; correct or delete "
            "the row"
        )
