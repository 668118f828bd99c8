"""The published tables: read as they are, every missing column and bad number named."""

import csv
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_RUN = (
    "policy seed duration_s max_new_tokens sync_window_s sync_events sync_trace_duration_s "
    "requests tokens_per_s slo_violations sync_active_count sync_p95_ratio"
)
_MEANS = "policy n slo_violation_pct_mean tokens_per_s_mean sync_events_mean sync_p95_ratio_mean"
NEEDED = {  # columns that are read
    "stage10": "run stress_mode sync_p95_ratio",
    "stage11": _RUN,
    "stage11_summary": f"{_MEANS} slo_violation_pct_sd requests_mean",
    "stage13": f"{_RUN} origin slo_violation_pct",
    "stage13_summary": f"{_MEANS} p95_ms_sd sync_active_count_mean sync_excess_slo_pct_mean",
    "stage13_contrasts": "policy comparator n_seeds mean_diff_pp p_one_sided_less",
    "stage14_fabric": "run world_size payload_mib_per_rank avg_ms algbw_gb_per_s busbw_gb_per_s "
    "manifest_job_id",
    "policy_config": "label parameter value",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; every reader names file, line and column when it cannot read."""

    where: str
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        value = self.cells[column]
        if not value:
            raise ValueError(f"{self.where}: {column} is empty; restore the published figure")
        return value

    def number(self, column: str) -> float:
        value = self.text(column)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{self.where}: {column}={value!r} is no finite number")
        return number

    def count(self, column: str) -> int:
        number = self.number(column)
        if number < 0 or number != int(number):
            raise ValueError(f"{self.where}: {column}={self.text(column)!r} is no whole number")
        return int(number)

    def positive(self, column: str) -> float:
        number = self.number(column)
        if number <= 0:
            raise ValueError(f"{self.where}: {column}={number:g} is not above 0")
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All tables by name, and the digest of every file."""

    rows: Mapping[str, tuple[Row, ...]]
    sha256: Mapping[str, str]

    def __getitem__(self, name: str) -> tuple[Row, ...]:
        return self.rows[name]

    def config(self, label: str, parameter: str) -> Row:
        """The row of a parameter of ``policy_config``; ValueError when it is not there."""
        for row in self["policy_config"]:
            if (row.cells["label"], row.cells["parameter"]) == (label, parameter):
                return row
        raise ValueError(f"policy_config.csv: no {parameter!r} of {label!r}")


def read_tables(folder: Path) -> Tables:
    """Every table of ``folder``; ValueError for a missing file, column, or row."""
    rows, digests = {}, {}
    for name, columns in NEEDED.items():
        path = folder / f"{name}.csv"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
        rows[name] = _parse(path, data, columns.split())
        digests[path.name] = hashlib.sha256(data).hexdigest()
    return Tables(rows=rows, sha256=digests)


def _parse(path: Path, data: bytes, columns: list[str]) -> tuple[Row, ...]:
    try:
        reader = csv.DictReader(data.decode().splitlines(), strict=True)
        lines = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: is no CSV ({error})") from error
    lacking = [c for c in columns if c not in (reader.fieldnames or ())]
    if lacking:
        raise ValueError(f"{path}: no column {', '.join(lacking)}; restore the published table")
    if not lines:
        raise ValueError(f"{path}: holds no row; restore the published table")
    for number, cells in enumerate(lines, start=2):
        if None in cells or None in cells.values():
            raise ValueError(f"{path}, line {number}: has not as many cells as the header")
    return tuple(Row(f"{path}, line {i}", cells) for i, cells in enumerate(lines, start=2))
