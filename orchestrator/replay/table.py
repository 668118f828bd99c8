"""replay.parquet: one row a run, one row group a batch of seeds, in order of the study's seeds.

Finished batches lie beside it until all are there, so a replay that was killed goes on where it
stood and ends with the same bytes of the table.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.record_files import guarded, sync_folder
from orchestrator.record_tables import write_table
from orchestrator.replay.figures import ReplayFigures

NAME = "replay.parquet"
PARTS = "replay.parts"  # finished batches of a table that is not complete
ROWS_IN_GROUP = 512  # about so many: what memory holds of the table, and what a kill costs


def _field(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


_COUNTS = (
    "requests_scheduled",
    "violations",
    "requests_in_windows",
    "violations_in_windows",
    "merge_count",
    "marked_windows",
)
_TEXTS = ("arm", "kind", "request_hash", "status")
_TEXTS_OR_NONE = ("policy", "of", "position")


def _kind(name: str) -> pa.Field:
    """The column of a figure; what is not named here is a number that may be unknown."""
    if name == "replicate" or name in _COUNTS:
        return _field(name, pa.int64())
    if name in ("draw", "violations_not_yet_arrived", "pooled_requests"):
        return _field(name, pa.int64(), nullable=True)
    if name in _TEXTS or name in _TEXTS_OR_NONE:
        return _field(name, pa.string(), nullable=name in _TEXTS_OR_NONE)
    if name == "starts":
        return _field(name, pa.list_(pa.field("tick", pa.int64(), nullable=False)))
    return _field(name, pa.float64(), nullable=name != "merge_planned_s")


SCHEMA = pa.schema([_kind(field.name) for field in fields(ReplayFigures)])


def to_table(rows: Iterable[ReplayFigures]) -> pa.Table:
    """Rows as Arrow."""
    listed = list(rows)
    return pa.table(
        {name: [getattr(row, name) for row in listed] for name in SCHEMA.names}, schema=SCHEMA
    )


def from_table(table: pa.Table) -> list[ReplayFigures]:
    """Arrow as rows; ValueError for other columns."""
    if table.schema.names != SCHEMA.names:
        raise ValueError(f"columns are {', '.join(table.schema.names)}, not those of a replay")
    return [ReplayFigures(**{**row, "starts": tuple(row["starts"])}) for row in table.to_pylist()]


def read_rows(path: Path) -> Iterator[list[ReplayFigures]]:
    """A replay.parquet group by group, in order; ValueError where it is none."""
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield from_table(file.read_row_group(group))
    except (pa.ArrowException, OSError, ValueError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path}: is no table of a replay ({line}); replay again") from error


def table_sha256(path: Path) -> str:
    """Of the file as it lies there."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cut_batches(seeds: Sequence[int], *, arms: int) -> tuple[tuple[int, ...], ...]:
    """Seeds of each row group, by their places alone: the same however often it is begun."""
    size = max(1, ROWS_IN_GROUP // arms)
    edges = [*range(0, len(seeds), size), len(seeds)]
    return tuple(tuple(seeds[a:b]) for a, b in pairwise(edges))


class ReplayTable:
    """The one writer of a study's replay.parquet."""

    def __init__(
        self, folder: Path, *, batches: Sequence[tuple[int, ...]], arms: int, trusted: bool
    ) -> None:
        """``trusted``: the table that is there is as a replay wrote it; else it is not read."""
        self._folder = folder
        self._path = folder / NAME
        self._batches = batches
        self._arms = arms
        self._trusted = trusted

    @property
    def complete(self) -> bool:
        """The table that is there holds just these batches."""
        return list(self._old_groups().items()) == list(enumerate(self._batches))

    def missing(self) -> list[int]:
        """Batches that are neither in the table nor beside it."""
        old = self._old_groups()
        return [
            i
            for i, seeds in enumerate(self._batches)
            if seeds != old.get(i) and self._seeds_of(self._part(i)) != seeds
        ]

    def add(self, batch: int, table: pa.Table) -> None:
        """One finished batch, whole on the disk when this returns."""
        (self._folder / PARTS).mkdir(exist_ok=True)
        write_table(self._part(batch), table)

    def join(self) -> Path:
        """All batches into one table, group by group, beside the old one: where it lies."""
        joined = self._folder / PARTS / NAME
        joined.parent.mkdir(exist_ok=True)
        temporary = joined.with_name(NAME + ".tmp")
        old = self._old_groups()
        with guarded(joined), pq.ParquetWriter(temporary, SCHEMA) as writer:
            for i, seeds in enumerate(self._batches):
                if seeds == old.get(i):
                    with pq.ParquetFile(self._path) as file:
                        table = file.read_row_group(i)
                else:
                    table = pq.read_table(self._part(i), schema=SCHEMA)
                writer.write_table(table, row_group_size=max(1, table.num_rows))
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(joined)
        sync_folder(joined.parent)
        return joined

    def _part(self, batch: int) -> Path:
        return self._folder / PARTS / f"{batch:06d}.parquet"

    def _old_groups(self) -> dict[int, tuple[int, ...]]:
        """Seeds of each row group of the table that is there."""
        if not self._trusted or not self._path.exists():
            return {}
        try:
            with pq.ParquetFile(self._path) as file:
                if file.schema_arrow != SCHEMA:
                    return {}
                return {
                    i: self._seeds_in(file.read_row_group(i, columns=["replicate"]))
                    for i in range(file.num_row_groups)
                }
        except (pa.ArrowException, OSError):
            return {}

    def _seeds_of(self, path: Path) -> tuple[int, ...] | None:
        """Seeds of a finished batch; None where it is not there, or cannot be used."""
        if not path.exists():
            return None
        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError):
            return None
        return self._seeds_in(table) if table.schema == SCHEMA else None

    def _seeds_in(self, table: pa.Table) -> tuple[int, ...]:
        seeds = tuple(dict.fromkeys(table.column("replicate").to_pylist()))
        return seeds if table.num_rows == len(seeds) * self._arms else ()
