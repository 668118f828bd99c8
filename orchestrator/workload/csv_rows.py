"""Rows of a CSV trace: Azure, BurstGPT, or a plain one whose columns the config names.

The layout comes from the header, a block of lines at a time from pyarrow; the csv module looks at
what pyarrow does not read as plainly as the format promises.
"""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from orchestrator.workload.blocks import Block
from orchestrator.workload.config import ReadOptions
from orchestrator.workload.fields import NUMBERS
from orchestrator.workload.rows import AZURE_FORMS, Batch, Layout, RowParser, forms_of
from orchestrator.workload.totals import TOTAL, Totals

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
_KNOWN = {"azure": (AZURE, AZURE_FORMS), "burstgpt": (BURSTGPT, (NUMBERS["s"],))}
_DELIMITERS = (",", ";", "\t", "|")


def header_of(path: Path, line: str) -> tuple[list[str], str]:
    """Names and delimiter of a header line: the delimiter that parts it into most fields."""
    found: list[tuple[list[str], str]] = []
    for delimiter in _DELIMITERS:
        try:
            found.append((_fields(path, 1, line, delimiter=delimiter), delimiter))
        except ValueError:  # quotes that close before another delimiter
            continue
    return max(found, key=lambda f: len(f[0])) if found else (_fields(path, 1, line), ",")


def layout_of(path: Path, header: list[str], delimiter: str, *, options: ReadOptions) -> Layout:
    """The layout by the names in the header; ValueError lists what is found and what is needed."""
    if options.columns is not None:
        wanted = options.columns
        names = (wanted.time, wanted.prompt_tokens, wanted.output_tokens)
        forms = forms_of(wanted.time_unit)
        format_ = "csv"
    else:
        format_ = _known_format(header, asked=options.format)
        names, forms = _KNOWN[format_]
    for name in names:
        if header.count(name) != 1:
            fault = "missing" if name not in header else "there more than once"
            raise ValueError(
                f"{path}: line 1: column {name} is {fault}; found {', '.join(header)}, "
                f"needed are {', '.join(names)}{_advice(format_, options)}"
            )
    return Layout(format=format_, columns=names, forms=forms, delimiter=delimiter)


def _known_format(header: list[str], *, asked: str) -> str:
    if asked in _KNOWN:
        return asked
    hits = {name: sum(c in header for c in columns) for name, (columns, _) in _KNOWN.items()}
    return max(hits, key=lambda name: hits[name])  # none at all: azure, whose columns are then told


def _advice(format_: str, options: ReadOptions) -> str:
    if options.columns is not None:
        return " (columns)"
    return f" ({format_}); for another layout give format: csv and columns"


def csv_batches(
    file: Iterable[Block],
    *,
    layout: Layout,
    header: list[str],
    parser: RowParser,
    notes: list[str],
) -> Iterator[Batch]:
    """The rows below the header; at their end ``notes`` holds what is odd in other columns."""
    places = [header.index(name) for name in layout.columns]
    totals = None
    if layout.format == "burstgpt" and header.count(TOTAL) == 1:
        totals = Totals(path=parser.path, columns=layout.columns[1:])
        places.append(header.index(TOTAL))
    for block in file:
        body = _without_header(block) if block.first_line == 1 else block
        if not body.data.strip():
            continue
        batch, more = _batch(body, layout=layout, width=len(header), places=places, parser=parser)
        if totals is not None:
            totals.look(more, batch)
        yield batch
    notes += [] if totals is None else totals.notes()


def _batch(
    body: Block, *, layout: Layout, width: int, places: list[int], parser: RowParser
) -> tuple[Batch, pa.Array | list[str]]:
    """The block's rows, and the cells of a fourth place where there is one."""
    if parser.form is None:
        line, cells = next(_rows(body, layout=layout, width=width, places=places, parser=parser))
        parser.settle(line, cells[0])
    columns = _columns(body, delimiter=layout.delimiter, width=width, places=places)
    if columns is not None:
        batch = parser.columns((columns[0], columns[1], columns[2]), body.first_line)
        if batch is not None:
            return batch, columns[-1]
    rows = list(_rows(body, layout=layout, width=width, places=places, parser=parser))
    batch = parser.cells((line, (cells[0], cells[1], cells[2])) for line, cells in rows)
    return batch, [cells[-1] for _, cells in rows]


def _without_header(block: Block) -> Block:
    return Block(first_line=2, data=block.data.partition(b"\n")[2])


def _columns(
    block: Block, *, delimiter: str, width: int, places: list[int]
) -> list[pa.Array] | None:
    """String columns with one row a line, or None."""
    if block.data.count(b"\r") != block.data.count(b"\r\n"):
        return None
    names = [f"c{i}" for i in range(width)]
    picked = [names[i] for i in places]
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(block.data),
            read_options=pa_csv.ReadOptions(
                column_names=names, block_size=len(block.data) + 1, use_threads=False
            ),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter),
            convert_options=pa_csv.ConvertOptions(
                include_columns=picked, column_types=dict.fromkeys(picked, pa.string())
            ),
        )
    except pa.ArrowInvalid:  # a row of another width, most often: the cells say which
        return None
    if table.num_rows != block.lines:
        return None
    return [table.column(name).combine_chunks() for name in picked]


def _rows(
    block: Block, *, layout: Layout, width: int, places: list[int], parser: RowParser
) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each line that is not blank. A quoted field ends on its line."""
    for line, text in enumerate(block.data.decode().split("\n"), start=block.first_line):
        if not text.rstrip("\r"):
            continue
        cells = _fields(parser.path, line, text, delimiter=layout.delimiter)
        if len(cells) != width:
            raise ValueError(
                f"{parser.path}: line {line} has {len(cells)} field(s) {cells[:12]!r}, the header "
                f"has {width}; complete or delete the line"
            )
        yield line, [cells[i] for i in places]


def _fields(path: Path, line: int, text: str, *, delimiter: str = ",") -> list[str]:
    reader = csv.reader([text.rstrip("\r")], strict=True, delimiter=delimiter)
    try:
        return [cell.strip() for cell in next(reader, [])]
    except csv.Error as error:
        runs_on = "unexpected end of data" in str(error)
        why = "a quoted field does not end on its line" if runs_on else str(error)
        raise ValueError(f"{path}: line {line}: {why}; write it as plain CSV") from error
