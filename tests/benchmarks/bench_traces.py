"""Seconds and memory to read a million requests of three formats. Run it by `make bench`.

Azure 2024 (zone, 7 digits of fraction or none, CRLF), BurstGPT with 8 columns, Mooncake with its
block hashes; each in a process of its own. Beside each the cell-by-cell path on a tenth of the rows
and, for CSV, pyarrow's own reader, which checks nothing. Aim: seconds, and memory that grows by not
much more than the 24 B a row that are kept (peak at all the rows against a quarter of them).
"""

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pa_csv

from orchestrator.workload import csv_rows, jsonl_rows
from orchestrator.workload.trace import TraceWarning
from orchestrator.workload.traces import read_trace

ROWS = 1_000_000
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
)


def azure(rows: int, rng: np.random.Generator) -> Iterator[str]:
    ticks = np.sort(rng.integers(864_000_000_000, size=rows))  # 100 ns, over a day
    ticks[::50] -= ticks[::50] % 10**7  # on the whole second: written without a fraction
    ticks.sort()
    days = np.datetime64("2024-05-10", "s") + (ticks // 10**7).astype("timedelta64[s]")
    texts = np.datetime_as_string(days)
    tokens = rng.integers(1, 8000, size=(rows, 2))
    yield AZURE
    for text, tick, (prompt, output) in zip(texts, ticks % 10**7, tokens, strict=True):
        fraction = f".{tick:07d}" if tick else ""
        yield f"{text.replace('T', ' ')}{fraction}+00:00,{prompt},{output}\r\n"


def burstgpt(rows: int, rng: np.random.Generator) -> Iterator[str]:
    seconds = np.sort(rng.integers(5_000_000, size=rows)) + 19_440_000
    tokens = rng.integers(1, 4000, size=(rows, 2))
    yield BURSTGPT
    for at_s, (prompt, output) in zip(seconds, tokens, strict=True):
        yield f"{at_s}.0,,12,ChatGPT,{prompt},{output},{prompt + output},API log\n"


def mooncake(rows: int, rng: np.random.Generator) -> Iterator[str]:
    at_ms = np.sort(rng.integers(rows, size=rows)) * 100
    tokens = rng.integers(1, 8000, size=(rows, 2))
    for at, (prompt, output) in zip(at_ms, tokens, strict=True):
        ids = list(range(int(prompt) // 512 + 1))
        yield (
            f'{{"timestamp": {at}, "input_length": {prompt}, "output_length": {output}, '
            f'"hash_ids": {ids}}}\n'
        )


FORMATS: dict[str, Callable[[int, np.random.Generator], Iterator[str]]] = {
    "azure": azure,
    "burstgpt": burstgpt,
    "mooncake": mooncake,
}


def measured(path: Path, *, in_bulk: bool) -> dict[str, float]:
    """Read in a new process: seconds and peak memory, imports apart."""
    done = subprocess.run(
        [sys.executable, __file__, str(path), "bulk" if in_bulk else "cells"],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def read_and_say(path: Path, how: str) -> None:
    warnings.simplefilter("ignore", TraceWarning)
    if how == "cells":
        for module in (csv_rows, jsonl_rows):
            setattr(module, "_columns", lambda *_, **__: None)  # noqa: B010 - to do without it
    before = peak_mib()
    wall, cpu = time.perf_counter(), time.process_time()
    rows = len(read_trace(path).at_ns)
    found = {
        "rows": rows,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_mib_over_imports": peak_mib() - before,
    }
    sys.stdout.write(json.dumps(found))


def peak_mib() -> float:
    """Of this process alone: ru_maxrss would begin with that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def of_format(name: str, rows: int, folder: Path) -> dict[str, Any]:
    paths = {part: folder / f"{name}-{part}" for part in (1, 4, 10)}
    for part, path in paths.items():
        with path.open("w", newline="") as file:
            file.writelines(FORMATS[name](rows // part, np.random.default_rng(0)))
    all_rows, quarter = (measured(paths[part], in_bulk=True) for part in (1, 4))
    grown = all_rows["peak_mib_over_imports"] - quarter["peak_mib_over_imports"]
    found: dict[str, Any] = {
        "bulk": all_rows,
        "peak_bytes_per_row": grown * 2**20 / (all_rows["rows"] - quarter["rows"]),
        "cell_by_cell_on_a_tenth": measured(paths[10], in_bulk=False),
    }
    if name != "mooncake":
        wall, cpu = time.perf_counter(), time.process_time()
        pa_csv.read_csv(paths[1])
        found["pyarrow_unchecked_wall_s"] = time.perf_counter() - wall
        found["pyarrow_unchecked_cpu_s"] = time.process_time() - cpu
    return found


def main() -> None:
    if len(sys.argv) == 3:
        read_and_say(Path(sys.argv[1]), sys.argv[2])
        return
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as folder:
        found = {name: of_format(name, rows, Path(folder)) for name in FORMATS}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
