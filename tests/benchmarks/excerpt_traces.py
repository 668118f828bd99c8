"""Makes the excerpts in experiments/traces from the published files: arrival times, no tokens.

python tests/benchmarks/excerpt_traces.py FOLDER  # with azure/, mooncake/, servegen/ in it
"""

import csv
import gzip
import io
import json
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

OUT = Path(__file__).parents[2] / "experiments/traces"
DAY_S, WINDOW_S = 86_400, 600
# Client of ServeGen: the day that is taken. On day 4 those that are mostly idle are not.
CLIENTS = {
    "language/m-large/chunk-116": 4,
    "language/m-large/chunk-20": 4,
    "language/m-large/chunk-34": 4,
    "language/m-mid/chunk-23": 4,
    "language/m-small/chunk-13": 4,
    "language/m-small/chunk-35": 4,
    "multimodal/mm-image/chunk-11": 0,
    "reason/deepseek-r1/chunk-48": 0,
}


def azure_conv(folder: Path) -> list[list[str]]:
    """Seconds since the first request, to the millisecond."""
    with (folder / "azure/AzureLLMInferenceTrace_conv_first39min.csv").open(newline="") as file:
        at = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in csv.DictReader(file)]
    return [["arrival_s"], *([f"{(a - at[0]).total_seconds():.3f}"] for a in at)]


def mooncake(folder: Path) -> list[list[str]]:
    """Requests by time stamp: the published times stand on a grid of 3 s."""
    with gzip.open(folder / "mooncake/conversation_trace.jsonl.gz", "rt") as file:
        stamps = Counter(json.loads(line)["timestamp"] for line in file)
    return [["timestamp_ms", "requests"], *([str(t), str(n)] for t, n in sorted(stamps.items()))]


def servegen(folder: Path) -> list[list[str]]:
    """The windows of one day of each client, as published, the client's name before them."""
    rows = [["client", "start_s", "rate_per_s", "cv", "family", "shape", "scale_s"]]
    for client, day in CLIENTS.items():
        with (folder / f"servegen/{client}-trace.csv").open(newline="") as file:
            windows = list(csv.reader(file))[
                day * DAY_S // WINDOW_S : (day + 1) * DAY_S // WINDOW_S
            ]
        rows += [[client, str(int(w[0]) - day * DAY_S), *w[1:]] for w in windows]
    return rows


def write(name: str, rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    (OUT / name).write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def main() -> None:
    folder = Path(sys.argv[1])
    write("azure_conv_first39min_arrivals.csv.gz", azure_conv(folder))
    write("mooncake_conversation_arrivals.csv.gz", mooncake(folder))
    write("servegen_one_day_windows.csv.gz", servegen(folder))


if __name__ == "__main__":
    main()
