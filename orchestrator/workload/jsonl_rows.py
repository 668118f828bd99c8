"""Rows of a JSON Lines trace: Mooncake, or a plain one whose keys the config names."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from orchestrator.record_files import each_key_once
from orchestrator.workload.blocks import Block
from orchestrator.workload.config import ReadOptions
from orchestrator.workload.fields import NUMBERS, Ints, time_column, unscaled
from orchestrator.workload.rows import Batch, Layout, Row, RowParser, forms_of

MOONCAKE = ("timestamp", "input_length", "output_length")
_EXPONENT = re.compile(rb"[0-9][eE][+-]?[0-9]")
_MOST_TOKENS = 2**31 - 1


class _Number(str):
    """The text of a JSON number, as it stands in the file."""

    __slots__ = ()


def jsonl_layout(path: Path, line: str, *, options: ReadOptions) -> Layout:
    """The layout by the keys of the first object."""
    found = _object(path, 1, line)
    if options.columns is not None:
        wanted = options.columns
        names = (wanted.time, wanted.prompt_tokens, wanted.output_tokens)
        forms, format_ = forms_of(wanted.time_unit), "jsonl"
    else:
        names, forms, format_ = MOONCAKE, (NUMBERS["ms"],), "mooncake"
    for name in names:
        if name not in found:
            raise ValueError(
                f"{path}: line 1, column {name}: is missing; found {', '.join(found)}, needed are "
                f"{', '.join(names)}; for another layout give format: jsonl and columns"
            )
    return Layout(format=format_, columns=names, forms=forms)


def jsonl_batches(file: Iterable[Block], *, layout: Layout, parser: RowParser) -> Iterator[Batch]:
    """One object a line; blank lines are passed over."""
    for block in file:
        if not block.data.strip():
            continue
        if parser.form is None:
            first = next(_rows(block, layout=layout, parser=parser))
            parser.settle(first[0], first[1][0])
        batch = _columns(block, layout=layout, parser=parser)
        yield parser.cells(_rows(block, layout=layout, parser=parser)) if batch is None else batch


def _columns(block: Block, *, layout: Layout, parser: RowParser) -> Batch | None:
    assert parser.form is not None
    time, prompt, output = layout.columns
    digits = parser.form.digits
    kind = pa.string() if digits is None else pa.int64()
    table = _table(block, [(time, kind), (prompt, pa.int64()), (output, pa.int64())])
    if table is None and digits:  # times with a fraction
        quoted = re.compile(rb'"%b"\s*:\s*"' % re.escape(json.dumps(time)[1:-1].encode()))
        if _EXPONENT.search(block.data) or quoted.search(block.data):
            return None
        kind = pa.decimal128(38, digits)
        table = _table(block, [(time, kind), (prompt, pa.int64()), (output, pa.int64())])
    if table is None:
        return None
    at_ns = _times(table.column(time).combine_chunks(), parser=parser)
    tokens = [_whole(table.column(name).combine_chunks()) for name in (prompt, output)]
    if at_ns is None or tokens[0] is None or tokens[1] is None:
        return None
    lines = range(block.first_line, block.first_line + block.lines)
    return Batch(at_ns=at_ns, prompt_tokens=tokens[0], output_tokens=tokens[1], lines=lines)


def _table(block: Block, columns: list[tuple[str, pa.DataType]]) -> pa.Table | None:
    """One row a line and no null, or None: then the lines are read one by one."""
    try:
        table = pa_json.read_json(
            pa.BufferReader(block.data),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(block.data) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema(columns), unexpected_field_behavior="ignore"
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    nulls = sum(table.column(name).null_count for name, _ in columns)
    return table if table.num_rows == block.lines and not nulls else None


def _times(cells: pa.Array, *, parser: RowParser) -> Ints | None:
    form = parser.form
    assert form is not None
    if form.digits is None:
        return time_column(cells, form)
    if pa.types.is_decimal(cells.type):
        return unscaled(cells)
    most = (2**63 - 1) // 10**form.digits
    inside = pc.all(pc.and_(pc.greater_equal(cells, 0), pc.less_equal(cells, most)), min_count=0)
    return cells.to_numpy() * 10**form.digits if inside.as_py() else None


def _whole(cells: pa.Array) -> Ints | None:
    inside = pc.and_(pc.greater_equal(cells, 0), pc.less_equal(cells, _MOST_TOKENS))
    return cells.to_numpy() if pc.all(inside, min_count=0).as_py() else None


def _rows(block: Block, *, layout: Layout, parser: RowParser) -> Iterator[Row]:
    path, texts = parser.path, parser.layout.forms[0].digits is None
    for line, text in enumerate(block.data.decode().split("\n"), start=block.first_line):
        if not text.strip():
            continue
        found = _object(path, line, text)
        cells = []
        for i, name in enumerate(layout.columns):
            where = parser.where(line, i)
            if name not in found:
                raise ValueError(f"{where}: is missing; found {', '.join(found)}; add it")
            value, wanted = found[name], str if texts and i == 0 else _Number
            if type(value) is not wanted:
                shown = value if isinstance(value, str) else json.dumps(value)[:60]
                kind = "a text" if wanted is str else "a number"
                raise ValueError(f"{where}: {shown!r} is not {kind}; correct or delete the line")
            cells.append(str(value))
        yield line, (cells[0], cells[1], cells[2])


def _object(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        found = json.loads(
            text,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_refused,
            object_pairs_hook=each_key_once,
        )
    except (ValueError, RecursionError) as error:
        why = str(error).partition(": line 1")[0]
        raise ValueError(
            f"{path}: line {line}: is no whole JSON object ({why}), it ends in "
            f"{text.rstrip()[-30:]!r}; complete or delete the line"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path}: line {line}: is {type(found).__name__}, not an object; write one "
            "JSON object a line"
        )
    return found


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
