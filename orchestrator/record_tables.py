"""The tables of a run: explicit schemas, and one row for each scheduled request.

Latencies count from the scheduled time, by the formulas of actors/load/latency.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from actors.events import Event, MergeStarted
from actors.load.latency import latency
from actors.load.request import Outcome, Request, RequestRow
from orchestrator.record_files import write_atomic

Window = tuple[float, float]  # planned [start_s, end_s)


def _field(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


REQUESTS = pa.schema(
    [
        _field("request_id", pa.int64()),
        _field("sidecar", pa.int32()),
        _field("scheduled_at_s", pa.float64()),
        _field("prompt_tokens", pa.int32()),
        _field("output_tokens", pa.int32()),
        _field("prompt_seed", pa.int64()),
        _field("sent_at_s", pa.float64(), nullable=True),
        _field("first_token_at_s", pa.float64(), nullable=True),
        _field("done_at_s", pa.float64(), nullable=True),
        _field("completion_tokens", pa.int32(), nullable=True),
        _field("outcome", pa.string()),
        _field("error", pa.string(), nullable=True),
        _field("itl_s", pa.list_(pa.float64())),
        _field("e2e_s", pa.float64(), nullable=True),
        _field("ttft_s", pa.float64(), nullable=True),
        _field("tpot_s", pa.float64(), nullable=True),
        _field("lateness_s", pa.float64(), nullable=True),
        _field("overlap_s", pa.float64()),
        _field("in_window", pa.bool_()),
    ]
)
TRAIN = pa.schema(
    [
        _field("island", pa.int32()),
        _field("round", pa.int32()),
        _field("step", pa.int64()),
        _field("at_s", pa.float64()),
        _field("loss", pa.float64(), nullable=True),
        _field("tokens", pa.int64()),
        _field("step_s", pa.float64(), nullable=True),
        _field("lr", pa.float64(), nullable=True),
    ]
)
PRESSURE = pa.schema(
    [
        _field("at_s", pa.float64()),
        _field("running", pa.float64(), nullable=True),
        _field("waiting", pa.float64(), nullable=True),
        _field("kv_usage", pa.float64(), nullable=True),
        _field("serving", pa.float64(), nullable=True),
        _field("network", pa.float64(), nullable=True),
        _field("checkpoint", pa.float64(), nullable=True),
        _field("network_bytes_per_s", pa.float64(), nullable=True),
        _field("checkpoint_bytes_per_s", pa.float64(), nullable=True),
        _field("blind", pa.bool_()),
    ]
)
SCHEMAS = {"requests": REQUESTS, "train": TRAIN, "pressure": PRESSURE}
_LATER = {"train": {"lr"}}  # nullable columns that older records do not have
_ROW_FIELDS = tuple(field.name for field in fields(RequestRow))
_WHOLE = {"running", "waiting"}  # gauges may come as whole numbers


def planned_windows(events: Iterable[Event]) -> tuple[Window, ...]:
    """Planned [start_s, end_s) of each merge, suppressed ones too."""
    return tuple(
        (e.planned_start_s, e.planned_end_s) for e in events if isinstance(e, MergeStarted)
    )


def derived(
    row: Mapping[str, Any], *, windows: Sequence[Window], e2e_limit_s: float
) -> dict[str, Any]:
    """The columns that follow from a row's times; None where a latency does not exist.

    overlap_s: seconds of [scheduled, done] inside planned windows; a request that never got done
    counts up to its E2E limit.
    """
    typed = {name: row[name] for name in _ROW_FIELDS}
    typed |= {"outcome": Outcome(row["outcome"]), "itl_s": tuple(row["itl_s"])}
    at_s, done_s = row["scheduled_at_s"], row["done_at_s"]
    end_s = at_s + e2e_limit_s if done_s is None else done_s
    return {
        **asdict(latency(RequestRow(**typed))),
        "overlap_s": sum((max(0.0, min(end_s, b) - max(at_s, a)) for a, b in windows), 0.0),
        "in_window": any(a <= at_s < b for a, b in windows),
    }


def requests_table(
    rows: Iterable[Mapping[str, Any]], *, windows: Sequence[Window], e2e_limit_s: float
) -> pa.Table:
    """Rows of RequestRow's fields, in order of request_id, with the derived columns."""
    whole = [
        {**row, **derived(row, windows=windows, e2e_limit_s=e2e_limit_s)}
        for row in sorted(rows, key=lambda r: int(r["request_id"]))
    ]
    return pa.Table.from_pylist(whole, schema=REQUESTS)


def plain_table(name: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows of train or pressure."""
    whole = [
        {k: float(v) if k in _WHOLE and v is not None else v for k, v in row.items()}
        for row in rows
    ]
    return pa.Table.from_pylist(whole, schema=SCHEMAS[name])


def check_keys(name: str, row: Mapping[str, Any]) -> None:
    """ValueError unless the row has the columns of its table; later ones may be left out."""
    want, got = set(SCHEMAS[name].names), set(row)
    lacking, unknown = want - got - _LATER.get(name, set()), got - want
    if lacking or unknown:
        raise ValueError(
            f"{name} row: missing {sorted(lacking) or 'nothing'}, "
            f"unknown {sorted(unknown) or 'nothing'}; columns are {', '.join(sorted(want))}"
        )


def row_record(row: RequestRow) -> dict[str, Any]:
    """A RequestRow as a JSON-ready object."""
    plain = {name: getattr(row, name) for name in _ROW_FIELDS}  # asdict copies, and rows are many
    return {**plain, "outcome": str(row.outcome), "itl_s": list(row.itl_s)}


def missing_row(request: Request, *, ended_at_s: float, why: str | None) -> dict[str, Any]:
    """The row of a request of which nothing came back: due by the end, or not yet sent."""
    lost = request.scheduled_at_s <= ended_at_s
    return {
        **asdict(request),
        "sent_at_s": None,
        "first_token_at_s": None,
        "done_at_s": None,
        "completion_tokens": None,
        "outcome": str(Outcome.CLIENT_LOST if lost else Outcome.NOT_SENT),
        "error": why or "the load client gave no answer for it",
        "itl_s": [],
    }


def write_table(path: Path, table: pa.Table) -> None:
    """Parquet, atomic and synced."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_atomic(path, sink.getvalue().to_pybytes())


def read_table(path: Path, *, name: str) -> pa.Table:
    """A table of the record; ValueError when it is broken or has other columns."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{path}: is no readable Parquet ({line}); restore it or remove the run"
        ) from error
    schema = SCHEMAS[name]
    try:
        for column in _LATER.get(name, set()) - set(table.column_names):
            table = table.append_column(schema.field(column), pa.nulls(len(table), pa.float64()))
        return table.select(schema.names).cast(schema)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise ValueError(
            f"{path}: has columns {', '.join(table.column_names)}, not those of {name} ({error})"
        ) from error
