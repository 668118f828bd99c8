"""`lull trace`: the figures against published ones, null where nothing is known, exit codes."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.workload.describe import (
    autocorrelation,
    describe,
    dispersion,
    parse_columns,
    sparkline,
)
from orchestrator.workload.trace import TraceWarning
from orchestrator.workload.traces import read_trace

HERE = Path(__file__).parent
AZURE = "experiments/traces/AzureLLMInferenceTrace_code.csv"
# Of the Azure code trace of 2023, computed by other code than ours (six digits).
KNOWN: dict[str, Any] = {
    "requests": 8819,
    "duration_s": 3435.948056,
    "mean_rate_per_s": 2.56669,
    "peak_rate_8s_per_s": 45.5,
    "longest_gap_s": 217.169,
    "tied_with_the_row_before": 0,
    "dispersion": {"1s": 13.1903, "8s": 65.2384, "60s": 166.893},
    "autocorrelation_1s": {"8s": 0.279413, "30s": 0.0502198, "60s": 0.0478373},
    "autocorrelation_8s": {"8s": 0.510214, "30s": 0.0911017, "60s": 0.0568692},
    "quiet_share": {"1s": 0.733916, "8s": 0.614061, "60s": 0.308649},
    "prompt_tokens": {
        "mean": 2047.85, "p5": 75, "p50": 1469, "p90": 5187.6, "p95": 7303.3, "p99": 7436,
        "max": 7437,
    },
    "output_tokens": {
        "mean": 27.8825, "p5": 6, "p50": 13, "p90": 55, "p95": 90, "p99": 251.46, "max": 1899,
    },
}  # fmt: skip
Say = Callable[..., tuple[int, str, str]]


def test_the_figures_of_the_azure_code_trace_are_the_known_ones(checkout: Path) -> None:
    found = describe(read_trace(checkout / AZURE))
    for key, value in KNOWN.items():
        assert found[key] == pytest.approx(value, rel=1e-5), key
    assert found["first_arrival"] == "2023-11-16T18:17:03.979960000"
    assert found["last_arrival"] == "2023-11-16T19:14:19.928016000"


def test_json_of_the_command_is_the_description(lull: Say, checkout: Path) -> None:
    code, out, err = lull("trace", str(checkout / AZURE), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["format"], found["requests"], found["warnings"]) == ("azure", 8819, [])
    assert found["zone"] == "none stated (wall clock)"


def test_people_get_the_same_and_a_plot(lull: Say, checkout: Path, tmp_path: Path) -> None:
    plot = tmp_path / "rate.png"
    code, out, _ = lull("trace", str(checkout / AZURE), "--plot", str(plot))
    assert code == 0
    assert "8819 in 3435.94806 s" in out
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_one_request_has_no_rate_and_nothing_is_divided_by_zero(lull: Say, tmp_path: Path) -> None:
    path = HERE / "bad/one_row.csv"
    code, out, _ = lull("trace", str(path), "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["requests"], found["duration_s"], found["mean_rate_per_s"]) == (1, 0.0, None)
    assert set(found["dispersion"].values()) == {None}
    assert set(found["quiet_share"].values()) == {None}
    assert set(found["autocorrelation_8s"].values()) == {None}
    assert found["min_positive_gap_s"] is None
    assert "no rate can be computed" in found["warnings"][0]
    code, out, err = lull("trace", str(path), "--plot", str(tmp_path / "a.png"))
    assert code == 0
    assert "mean not known" in out
    assert "no rate can be computed" in err


def test_seconds_of_decades_are_not_counted_one_by_one(lull: Say, tmp_path: Path) -> None:
    """A year that was mistyped: 70 years of counters would take all of a machine's memory."""
    path = tmp_path / "jump.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,100,10\n"
        "2093-11-16 18:17:04.1,5,10\n"
    )
    code, out, _ = lull("trace", str(path), "--json")
    found = json.loads(out)
    assert code == 0
    assert set(found["dispersion"].values()) == {None}
    assert set(found["quiet_share"].values()) == {None}
    assert found["duration_s"] == found["longest_gap_s"] > 2e9
    assert "ends at request 1 (from 0" in found["warnings"][-1]


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5, 9.0, 61.0])
def test_short_traces_have_no_invented_numbers(seconds: float, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        f"0,m,1,1,2,l\n{seconds},m,1,1,2,l\n"
    )
    found = describe(read_trace(path))
    text = json.dumps(found, allow_nan=False)
    assert ("null" in text) == (seconds < 121)
    rate = found["mean_rate_per_s"]
    assert rate is None if seconds == 0 else rate == pytest.approx(2 / seconds)


@pytest.mark.parametrize("path", sorted((HERE / "bad").glob("*.*")), ids=lambda p: p.name)
def test_every_bad_file_ends_in_one_line_and_its_exit_code(lull: Say, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        try:
            read_trace(path)
            readable = True
        except ValueError:
            readable = False
    code, out, err = lull("trace", str(path), "--json")
    assert code == (0 if readable else 2)
    assert bool(out) == readable
    assert len(err.splitlines()) == (0 if readable else 1)
    assert readable or str(path) in err


def test_options_of_the_command_reach_the_reader(lull: Say, tmp_path: Path) -> None:
    path = HERE / "traces/burstgpt_6_columns.csv"
    code, out, _ = lull("trace", str(path), "--json", "--failed", "drop", "--format", "burstgpt")
    assert (code, json.loads(out)["requests"]) == (0, 37)
    (tmp_path / "own.csv").write_text("ms,in,out\n0,1,1\n1500,1,1\n")
    columns = "time=ms,time_unit=ms,prompt_tokens=in,output_tokens=out"
    code, out, _ = lull("trace", str(tmp_path / "own.csv"), "--json", "--columns", columns)
    assert (code, json.loads(out)["duration_s"]) == (0, 1.5)
    path = HERE / "traces/mooncake_conversation_first400.jsonl.gz"
    code, out, _ = lull("trace", str(path), "--json", "--dequantise-seed", "3")
    assert code == 0
    assert "with seed 3" in json.loads(out)["steps"][-1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--format", "parquet5"), "format"),
        (("--format", "csv"), "needs columns"),
        (("--columns", "time"), "write NAME=VALUE pairs"),
        (("--columns", "time=a"), "columns"),
        (("--failed", "maybe"), "failed"),
        (("--dequantise-seed", "-1"), "dequantise_seed"),
        (("--plot", "/proc/none/a.png"), "cannot be written"),
    ],
)
def test_bad_options_are_bad_input(
    lull: Say, checkout: Path, args: tuple[str, ...], message: str
) -> None:
    code, _, err = lull("trace", str(checkout / AZURE), *args)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_dispersion_and_memory_by_hand() -> None:
    counts = np.array([4, 0, 4, 0, 4, 0], dtype=np.int64)
    assert dispersion(counts, window_s=1) == pytest.approx(4.8 / 2)
    assert dispersion(counts, window_s=2) == 0.0
    assert dispersion(counts, window_s=4) is None
    assert dispersion(np.zeros(9, dtype=np.int64), window_s=1) is None
    assert autocorrelation(counts, lag=1) == pytest.approx(-1.0)
    assert autocorrelation(counts, lag=2) == pytest.approx(1.0)
    assert autocorrelation(np.ones(9, dtype=np.int64), lag=1) is None
    assert autocorrelation(counts, lag=8) is None


def test_the_bars_follow_the_rate() -> None:
    at_ns = np.array([0, 1, 2, 3, 99 * 10**9, 100 * 10**9], dtype=np.int64)
    bars = sparkline(at_ns, width=4)
    assert (bars[0], bars[1:3], len(bars)) == ("█", "  ", 4)
    assert sparkline(np.array([0], dtype=np.int64), width=3).strip() == "█"


def test_columns_are_parsed() -> None:
    assert parse_columns(None) is None
    assert parse_columns("time=a b, time_unit=s") == {"time": "a b", "time_unit": "s"}
