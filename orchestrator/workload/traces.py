"""Read and check a request trace: Azure, BurstGPT, Mooncake, ServeGen, plain CSV, JSONL, Parquet.

The format is found by header and content. Bad input is refused, never repaired, and the message
names file, line, column and value; what can be read but is odd is warned about.
"""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orchestrator.workload.blocks import PARQUET, Block, blocks, magic
from orchestrator.workload.config import ReadOptions
from orchestrator.workload.csv_rows import csv_batches, header_of, layout_of
from orchestrator.workload.fields import NUMBERS, Ints
from orchestrator.workload.jsonl_rows import jsonl_batches, jsonl_layout
from orchestrator.workload.parquet_rows import parquet_batches, parquet_layout
from orchestrator.workload.rows import Batch, Layout, RowParser
from orchestrator.workload.servegen import COLUMNS, is_windows, servegen_batches
from orchestrator.workload.trace import Origin, Trace, TraceWarning, frozen
from orchestrator.workload.transforms import dequantised, grid_step_ns

__all__ = ["Trace", "TraceWarning", "read_trace"]

_FILE_KINDS = {
    "azure": "CSV",
    "burstgpt": "CSV",
    "csv": "CSV",
    "servegen": "ServeGen windows",
    "mooncake": "JSON Lines",
    "jsonl": "JSON Lines",
    "parquet": "Parquet",
}


def read_trace(path: Path, options: ReadOptions = ReadOptions()) -> Trace:  # noqa: B008 - frozen
    """All requests of the file; oddities that can be read are warned about (TraceWarning).

    ValueError when the file cannot be read, is not of ``options.format``, or has a faulty row.
    """
    notes: list[str] = []
    parser, batches = _rows(path, options=options, notes=notes)
    trace = _assemble(parser, batches, options=options, notes=notes)
    trace = _off_grid(trace, options=options)
    for note in trace.notes:
        warnings.warn(note, TraceWarning, stacklevel=2)
    return trace


def _rows(
    path: Path, *, options: ReadOptions, notes: list[str]
) -> tuple[RowParser, Iterable[Batch]]:
    if magic(path).startswith(PARQUET):
        _check_kind(path, "Parquet", options=options)
        layout = parquet_layout(path, options=options)
        parser = RowParser(path=path, layout=layout)
        return parser, parquet_batches(path, layout=layout, parser=parser)
    file = blocks(path)
    head = next((block for block in file if block.data.strip()), None)
    if head is None:
        raise ValueError(f"{path}: the file is empty; give a trace with at least one request")
    line = head.data.lstrip(b"\r\n").partition(b"\n")[0].decode().rstrip("\r")
    if head.data[:1] in (b"\r", b"\n") and not line.startswith(("{", "[")):
        raise ValueError(f"{path}: line 1: is blank; delete the lines above the header")
    return _text_rows(path, line, chain([head], file), options=options, notes=notes)


def _text_rows(
    path: Path, line: str, file: Iterator[Block], *, options: ReadOptions, notes: list[str]
) -> tuple[RowParser, Iterable[Batch]]:
    if line.startswith("["):
        raise ValueError(f"{path}: line 1: begins a JSON array; write one JSON object a line")
    if line.startswith("{"):
        _check_kind(path, "JSON Lines", options=options)
        layout = jsonl_layout(path, line, options=options)
        parser = RowParser(path=path, layout=layout)
        return parser, jsonl_batches(file, layout=layout, parser=parser)
    if is_windows(line) and options.columns is None:
        _check_kind(path, "ServeGen windows", options=options)
        seconds = NUMBERS["s"]
        layout = Layout(
            format="servegen", columns=(COLUMNS[0], "tokens", "tokens"), forms=(seconds,)
        )
        parser = RowParser(path=path, layout=layout, form=seconds)
        return parser, servegen_batches(path, file, options=options, notes=notes)
    _check_kind(path, "CSV", options=options)
    if "\r" in line:
        raise ValueError(f"{path}: line 1: lines end in CR alone; save the file with LF or CRLF")
    header, delimiter = header_of(path, line)
    layout = layout_of(path, header, delimiter, options=options)
    if delimiter != ",":
        notes.append(f"{path}: line 1: fields are separated by {delimiter!r}, not by ','")
    parser = RowParser(path=path, layout=layout)
    return parser, csv_batches(file, layout=layout, header=header, parser=parser, notes=notes)


def _check_kind(path: Path, found: str, *, options: ReadOptions) -> None:
    if options.format != "auto" and _FILE_KINDS[options.format] != found:
        raise ValueError(
            f"{path}: is {found}, which format={options.format!r} is not; leave format at auto or "
            "give another file"
        )


def _assemble(
    parser: RowParser, batches: Iterable[Batch], *, options: ReadOptions, notes: list[str]
) -> Trace:
    path, layout = parser.path, parser.layout
    found = list(_noting_order(batches, parser=parser, notes=notes))
    if not found:
        raise ValueError(f"{path}: a header and no requests; give a trace with at least one row")
    first_line = found[0].lines[0]
    at_ns, prompt, output = _joined(found)
    del found
    assert parser.form is not None  # settled by the first row
    form = parser.form
    if layout.format == "azure" and form.digits is not None:
        notes.append(f"{path}: {layout.columns[0]} read as {form.name}")
    steps = [f"read {len(at_ns)} row(s) as {layout.format}: {form.name}, zone {form.zone}"]
    if layout.format == "servegen":
        steps.append(f"drawn from its windows with seed {options.generate_seed}")
    if layout.format == "burstgpt" and not output.all():
        kept = _told_failed(path, output, options=options, notes=notes, steps=steps)
        at_ns, prompt, output = at_ns[kept], prompt[kept], output[kept]
    if len(at_ns) == 1:
        notes.append(f"{path}: line {first_line} is the only request; no rate can be computed")
    first_ns = int(at_ns[0])
    columns = frozen(at_ns - first_ns, prompt, output)
    return Trace(
        path=path,
        at_ns=columns[0],
        context_tokens=columns[1],
        generated_tokens=columns[2],
        notes=tuple(notes),
        origin=Origin(format=layout.format, time_form=form.name, zone=form.zone, first_ns=first_ns),
        steps=tuple(steps),
    )


def _joined(found: list[Batch]) -> tuple[Ints, Ints, Ints]:
    """The columns of all batches, in order of time."""
    at_ns = np.concatenate([batch.at_ns for batch in found])
    prompt = np.concatenate([batch.prompt_tokens for batch in found])
    output = np.concatenate([batch.output_tokens for batch in found])
    if np.any(at_ns[1:] < at_ns[:-1]):
        order = np.argsort(at_ns, kind="stable")
        at_ns, prompt, output = at_ns[order], prompt[order], output[order]
    return at_ns, prompt, output


def _told_failed(
    path: Path, output: Ints, *, options: ReadOptions, notes: list[str], steps: list[str]
) -> npt.NDArray[np.bool_]:
    """Which requests stay: BurstGPT gives a failed one 0 response tokens."""
    failed = output == 0
    word = "kept" if options.failed == "keep" else "dropped"
    count = int(failed.sum())
    notes.append(f"{path}: {count} of {len(output)} requests failed (0 response tokens): {word}")
    steps.append(f"{count} failed request(s) {word} (failed: {options.failed})")
    if options.failed == "keep":
        return np.ones(len(output), dtype=np.bool_)
    if failed.all():
        raise ValueError(f"{path}: every request failed (0 response tokens); set failed: keep")
    return ~failed


def _noting_order(
    batches: Iterable[Batch], *, parser: RowParser, notes: list[str]
) -> Iterator[Batch]:
    """Pass the batches on; note the rows that are earlier than the row before."""
    last: int | None = None
    back, first_line = 0, 0
    for batch in batches:
        if not len(batch.at_ns):
            continue
        before = batch.at_ns[0] if last is None else last
        steps = np.flatnonzero(np.diff(batch.at_ns, prepend=before) < 0)
        if len(steps) and not back:
            first_line = batch.lines[int(steps[0])]
        back += len(steps)
        last = int(batch.at_ns[-1])
        yield replace(batch, lines=batch.lines[:1])
    if back:
        notes.append(
            f"{parser.path}: {back} row(s) earlier than the row before, the first at line "
            f"{first_line}; sorted by {parser.layout.columns[0]}"
        )


def _off_grid(trace: Trace, *, options: ReadOptions) -> Trace:
    """Spread times that lie on a coarse grid when a seed is given, else say that they do."""
    step_ns = grid_step_ns(trace.at_ns)
    if options.dequantise_seed is not None:
        if step_ns is None:
            raise ValueError(f"{trace.path}: its times lie on no grid; leave dequantise_seed out")
        return dequantised(trace, step_ns=step_ns, seed=options.dequantise_seed)
    if step_ns is None:
        return trace
    note = (
        f"{trace.path}: times lie on a {step_ns / 1e9:g} s grid, so all that is finer is an "
        "artefact; dequantise_seed spreads them over its step"
    )
    return replace(trace, notes=(*trace.notes, note))
