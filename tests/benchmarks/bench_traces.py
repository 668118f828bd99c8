"""Seconds and memory to read a million rows of an Azure-format CSV. Run it by `make bench`.

Times carry a zone and 7 digits, some none; CRLF. Beside it pyarrow's own reader on the same file
(it checks nothing), and the cell-by-cell path. Aim: seconds; memory of one block and 24 B a row.
"""

import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv

from orchestrator.workload import csv_rows
from orchestrator.workload.traces import read_trace

ROWS = 1_000_000


def write(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    ticks = np.sort(rng.integers(864_000_000_000, size=rows))  # 100 ns, over a day
    ticks[::50] -= ticks[::50] % 10**7  # on the whole second: written without a fraction
    ticks.sort()
    days = np.datetime64("2024-05-10", "s") + (ticks // 10**7).astype("timedelta64[s]")
    texts = np.datetime_as_string(days)
    tokens = rng.integers(1, 8000, size=(rows, 2))
    with path.open("w", newline="") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\r\n")
        for text, tick, (prompt, output) in zip(texts, ticks % 10**7, tokens, strict=True):
            fraction = f".{tick:07d}" if tick else ""
            file.write(f"{text.replace('T', ' ')}{fraction}+00:00,{prompt},{output}\r\n")


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """(wall s, CPU s, result)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million.csv"
        write(path, rows)
        before = peak_mib()
        wall_s, cpu_s, trace = timed(lambda: read_trace(path))
        after = peak_mib()
        assert len(trace.at_ns) == rows
        assert trace.notes == ()
        plain_s, plain_cpu_s, _ = timed(lambda: pa_csv.read_csv(path))
        bulk = csv_rows._columns  # noqa: SLF001 - to measure the path without it
        csv_rows._columns = lambda *_, **__: None  # noqa: SLF001
        slow_s, slow_cpu_s, slow = timed(lambda: read_trace(path))
        csv_rows._columns = bulk  # noqa: SLF001
        assert np.array_equal(slow.at_ns, trace.at_ns)
    found = {
        "rows": rows,
        "read_wall_s": wall_s,
        "read_cpu_s": cpu_s,
        "peak_mib_before": before,
        "peak_mib_after": after,
        "pyarrow_unchecked_wall_s": plain_s,
        "pyarrow_unchecked_cpu_s": plain_cpu_s,
        "cell_by_cell_wall_s": slow_s,
        "cell_by_cell_cpu_s": slow_cpu_s,
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
