"""Rows of a text trace: the one form that its times take, and batches of whole columns.

A batch is read as columns where that is exact, otherwise cell by cell, which names the fault.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from orchestrator.workload.fields import (
    CLOCKS,
    EPOCHS,
    NUMBERS,
    Ints,
    TimeForm,
    form_of,
    time_column,
    time_ns,
    token_column,
    tokens_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a header, or the first object, says of the file."""

    format: str
    columns: tuple[str, str, str]  # time, prompt tokens, output tokens
    forms: tuple[TimeForm, ...]
    delimiter: str = ","


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows in the order of the file; ``lines`` has the line of each."""

    at_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    lines: Sequence[int]


Row = tuple[int, tuple[str, str, str]]  # line; cells of Layout.columns


@dataclass(slots=True, kw_only=True)
class RowParser:
    """Cells to numbers; holds the form of the first time, which all others must have."""

    path: Path
    layout: Layout
    form: TimeForm | None = None
    form_line: int = field(default=0)

    def where(self, line: int, column: int) -> str:
        return f"{self.path}: line {line}, column {self.layout.columns[column]}"

    def settle(self, line: int, cell: str) -> TimeForm:
        """The form of the first row; another one later is refused."""
        where = self.where(line, 0)
        if cell == self.layout.columns[0]:
            raise ValueError(f"{where}: the header again; delete the line")
        form = form_of(cell, self.layout.forms, where=where)
        if self.form is None:
            self.form, self.form_line = form, line
        if form != self.form:
            raise ValueError(
                f"{where}: {cell!r} is {form.name}, but line {self.form_line} is "
                f"{self.form.name}; write all rows in one form"
            )
        return form

    def columns(self, cells: tuple[pa.Array, pa.Array, pa.Array], first_line: int) -> Batch | None:
        """Whole columns of one line each, or None when the cells must be looked at."""
        if self.form is None:
            return None
        at_ns = time_column(cells[0], self.form)
        tokens = [token_column(c) for c in cells[1:]]
        if at_ns is None or tokens[0] is None or tokens[1] is None:
            return None
        return Batch(
            at_ns=at_ns,
            prompt_tokens=tokens[0],
            output_tokens=tokens[1],
            lines=range(first_line, first_line + len(at_ns)),
        )

    def cells(self, rows: Iterable[Row]) -> Batch:
        """Row by row; ValueError with line, column, value at the first fault."""
        lines: list[int] = []
        table: list[tuple[int, int, int]] = []
        for line, (time, prompt, output) in rows:
            form = self.settle(line, time)
            table.append(
                (
                    time_ns(time, form, where=self.where(line, 0)),
                    tokens_of(prompt, where=self.where(line, 1)),
                    tokens_of(output, where=self.where(line, 2)),
                )
            )
            lines.append(line)
        numbers = np.array(table, dtype=np.int64).reshape(-1, 3)
        return Batch(
            at_ns=numbers[:, 0],
            prompt_tokens=numbers[:, 1],
            output_tokens=numbers[:, 2],
            lines=lines,
        )


def forms_of(unit: str) -> tuple[TimeForm, ...]:
    """The forms that a stated unit allows."""
    return CLOCKS if unit == "iso" else (NUMBERS[unit],)


AZURE_FORMS = (*CLOCKS, *EPOCHS)
