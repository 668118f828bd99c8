"""Each format read exactly: against a second reader made of csv, json and decimal alone."""

import csv
import gzip
import itertools
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.workload.config import Columns, ReadOptions
from orchestrator.workload.trace import Trace, TraceWarning
from orchestrator.workload.traces import read_trace

HERE = Path(__file__).parent / "traces"
AUTO = ReadOptions()
Row = tuple[Decimal, int, int]  # s since 1970 or the file's zero, prompt, output


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What must agree; times in whole nanoseconds."""

    rows: int
    first_ns: int
    last_ns: int
    min_gap_ns: int
    tokens: list[tuple[int, int]]


def second_reader_azure(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        (_seconds(r["TIMESTAMP"]), int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in rows
    ]


def _seconds(text: str) -> Decimal:
    """Seconds since 1970 of a wall-clock time in UTC."""
    text = text.removesuffix("+00:00")
    whole, _, fraction = text.partition(".")
    since = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S") - datetime(1970, 1, 1)
    return Decimal(since.days * 86_400 + since.seconds) + Decimal(f"0.{fraction or '0'}")


def second_reader_burstgpt(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        (Decimal(r["Timestamp"]), int(r["Request tokens"]), int(r["Response tokens"])) for r in rows
    ]


def second_reader_mooncake(path: Path) -> list[Row]:
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    rows = [json.loads(line, parse_float=Decimal) for line in lines]
    return [(Decimal(r["timestamp"]) / 1000, r["input_length"], r["output_length"]) for r in rows]


def facts_of_rows(rows: list[Row]) -> Facts:
    times = [int(at * 10**9) for at, _, _ in sorted(rows, key=lambda r: r[0])]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return Facts(
        rows=len(rows),
        first_ns=times[0],
        last_ns=times[-1],
        min_gap_ns=min(gap for gap in gaps if gap > 0),
        tokens=[(prompt, output) for _, prompt, output in sorted(rows, key=lambda r: r[0])],
    )


def facts_of(trace: Trace) -> Facts:
    assert trace.origin is not None
    gaps = np.diff(trace.at_ns)
    return Facts(
        rows=len(trace.at_ns),
        first_ns=trace.origin.first_ns,
        last_ns=trace.origin.first_ns + int(trace.at_ns[-1]),
        min_gap_ns=int(gaps[gaps > 0].min()),
        tokens=list(
            zip(trace.context_tokens.tolist(), trace.generated_tokens.tolist(), strict=True)
        ),
    )


def quietly(path: Path, options: ReadOptions = AUTO) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        return read_trace(path, options)


Reader = Callable[[Path], list[Row]]
FILES: list[tuple[str, Reader, str, str]] = [
    ("azure_conv_first500.csv", second_reader_azure, "azure", "a time without a zone"),
    ("azure_2024_handmade.csv", second_reader_azure, "azure", "a time with a zone"),
    ("burstgpt_6_columns.csv", second_reader_burstgpt, "burstgpt", "seconds"),
    ("burstgpt_8_columns.csv", second_reader_burstgpt, "burstgpt", "seconds"),
    ("mooncake_conversation_first400.jsonl.gz", second_reader_mooncake, "mooncake", "milliseconds"),
]


@pytest.mark.parametrize(("name", "reader", "format_", "time_form"), FILES)
@pytest.mark.parametrize("block_bytes", [1 << 23, 300])
def test_a_format_reads_as_the_second_reader_does(
    name: str,
    reader: Reader,
    format_: str,
    time_form: str,
    block_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.workload.blocks.BLOCK_BYTES", block_bytes)
    trace = quietly(HERE / name)
    assert facts_of(trace) == facts_of_rows(reader(HERE / name))
    assert trace.origin is not None
    assert (trace.origin.format, trace.origin.time_form) == (format_, time_form)


@pytest.mark.parametrize(("name", "reader", "format_", "time_form"), FILES)
def test_the_name_of_a_file_says_nothing_and_gzip_changes_nothing(
    name: str, reader: Reader, format_: str, time_form: str, tmp_path: Path
) -> None:
    raw = (HERE / name).read_bytes()
    plain = gzip.decompress(raw) if name.endswith(".gz") else raw
    (tmp_path / "a.parquet").write_bytes(plain)
    (tmp_path / "b.json").write_bytes(gzip.compress(plain))
    for path in (tmp_path / "a.parquet", tmp_path / "b.json"):
        assert facts_of(quietly(path)) == facts_of(quietly(HERE / name))


WHOLE: list[tuple[str, Reader, int, float]] = [  # rows and length: README of the source folders
    ("AzureLLMInferenceTrace_code.csv", second_reader_azure, 8819, 3435.948056),
    ("AzureLLMInferenceTrace_conv_first39min.csv", second_reader_azure, 13860, 2339.804446),
    ("conversation_trace.jsonl.gz", second_reader_mooncake, 12031, 3536.999),
]


@pytest.mark.parametrize(("name", "reader", "rows", "duration_s"), WHOLE)
def test_a_whole_trace_reads_as_the_second_reader_does(
    name: str, reader: Reader, rows: int, duration_s: float, checkout: Path
) -> None:
    """Where the file is: two of them are too large to stand here, CI keeps them beside."""
    homes = (checkout / "experiments/traces", checkout.parent / "shared/traces")
    path = next((path for home in homes for path in home.rglob(name)), None)
    if path is None:
        pytest.skip(f"{name} is neither under experiments/traces nor beside the checkout")
    trace = quietly(path)
    assert facts_of(trace) == facts_of_rows(reader(path))
    assert len(trace.at_ns) == rows
    assert trace.duration_s == pytest.approx(duration_s, abs=1e-9)


def test_failed_requests_of_burstgpt_are_kept_or_dropped_as_told() -> None:
    for name in ("burstgpt_6_columns.csv", "burstgpt_8_columns.csv"):
        with pytest.warns(TraceWarning, match="3 of 40 requests failed .*: kept"):
            kept = read_trace(HERE / name)
        with pytest.warns(TraceWarning, match="3 of 40 requests failed .*: dropped"):
            dropped = read_trace(HERE / name, ReadOptions(failed="drop"))
        assert (len(kept.at_ns), len(dropped.at_ns)) == (40, 37)
        assert int(dropped.generated_tokens.min()) > 0
        assert "3 failed request(s) dropped (failed: drop)" in dropped.steps
        assert kept.duration_s == dropped.duration_s == 315.0


def test_a_file_of_failures_alone_is_not_dropped_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text("Timestamp,Model,Request tokens,Response tokens\n1,m,5,0\n2,m,5,0\n")
    with pytest.raises(ValueError, match=r"every request failed .*; set failed: keep"):
        read_trace(path, ReadOptions(failed="drop"))


def test_a_coarse_grid_is_told_and_spread_only_on_demand() -> None:
    path = HERE / "mooncake_conversation_first400.jsonl.gz"
    with pytest.warns(TraceWarning, match="times lie on a 3 s grid"):
        stored = read_trace(path)
    one, again, other = (read_trace(path, ReadOptions(dequantise_seed=seed)) for seed in (7, 7, 8))
    assert one.at_ns.tolist() == again.at_ns.tolist() != other.at_ns.tolist()
    assert "with seed 7" in one.steps[-1]
    assert one.origin is not None
    assert stored.origin is not None
    back = np.sort((one.at_ns + one.origin.first_ns - stored.origin.first_ns) // 1_000_000)
    assert np.all((back - stored.at_ns // 1_000_000) >= 0)
    assert np.all((back - stored.at_ns // 1_000_000) <= 3000)
    assert sorted(one.context_tokens.tolist()) == sorted(stored.context_tokens.tolist())
    assert len(np.unique(one.at_ns)) == 400


def test_a_seed_for_times_on_no_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="lie on no grid; leave dequantise_seed out"):
        read_trace(HERE / "azure_conv_first500.csv", ReadOptions(dequantise_seed=1))


def mapped(unit: str) -> ReadOptions:
    return ReadOptions.model_validate(
        {
            "columns": {
                "time": "when",
                "time_unit": unit,
                "prompt_tokens": "n in",
                "output_tokens": "n_out",
            }
        }
    )


@pytest.mark.parametrize(
    ("unit", "factor"), [("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)]
)
def test_plain_csv_and_jsonl_read_by_the_names_and_units_of_the_config(
    tmp_path: Path, unit: str, factor: int
) -> None:
    times = [1, 25, 1_748_779] if unit == "ns" else ["1.5", "25", "1748779.125"]
    wanted = [int(Decimal(str(t)) * factor) for t in times]
    text = "x,when,n in,n_out\n" + "".join(f"a,{t},{i},9\n" for i, t in enumerate(times))
    (tmp_path / "a").write_text(text)
    lines = [f'{{"n in": {i}, "when": {t}, "n_out": 9}}\n' for i, t in enumerate(times)]
    (tmp_path / "b").write_text("".join(lines))
    for name, format_ in (("a", "csv"), ("b", "jsonl")):
        trace = read_trace(tmp_path / name, mapped(unit))
        assert trace.origin is not None
        assert (trace.at_ns + trace.origin.first_ns).tolist() == wanted
        assert trace.context_tokens.tolist() == [0, 1, 2]
        assert trace.origin.format == format_


def test_a_unit_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("when,n in,n_out\n1748779200000,1,1\n")
    with pytest.raises(ValueError, match="is not in seconds; it looks like milliseconds"):
        read_trace(path, mapped("s"))
    with pytest.raises(ValueError, match="'1748779200000' is no time; write YYYY"):
        read_trace(path, mapped("iso"))


def test_digits_below_a_nanosecond_are_cut_not_rounded_up(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("when,n in,n_out\n0.30000000000000004,1,1\n0.9999999999999,1,1\n")
    assert read_trace(path, mapped("s")).at_ns.tolist() == [0, 699_999_999]


@pytest.mark.parametrize(
    ("times", "unit", "wanted"),
    [
        (pa.array([5, 7, 7], pa.int32()), "s", [0, 2 * 10**9, 2 * 10**9]),
        (pa.array([0.5, 0.75, 2.0]), "s", [0, 250_000_000, 1_500_000_000]),
        (pa.array([1, 2, 1_500_000_000], pa.timestamp("ns")), "iso", [0, 1, 1_499_999_999]),
        (
            pa.array([10**6, 10**6 + 1, 10**7], pa.timestamp("us", "UTC")),
            "iso",
            [0, 1000, 9 * 10**9],
        ),
        (
            pa.array([f"2025-06-01T12:00:00.{i:07d}+02:00" for i in range(3)]),
            "iso",
            [0, 100, 200],
        ),
    ],
)
def test_parquet_reads_integers_floats_timestamps_and_texts(
    tmp_path: Path, times: pa.Array, unit: str, wanted: list[int]
) -> None:
    table = pa.table({"when": times, "n in": pa.array([1, 2, 3]), "n_out": pa.array([4, 5, 6])})
    pq.write_table(table, tmp_path / "t")
    trace = read_trace(tmp_path / "t", mapped(unit))
    assert trace.at_ns.tolist() == wanted
    assert trace.generated_tokens.tolist() == [4, 5, 6]
    assert trace.origin is not None
    assert trace.origin.format == "parquet"


def test_the_servegen_fixture_gives_the_listed_number_of_requests(tmp_path: Path) -> None:
    path = HERE / "servegen_r1_chunk-48-trace.csv"
    with path.open(newline="") as file:
        windows = [(float(row[0]), round(float(row[1]) * 600)) for row in csv.reader(file)]
    trace = quietly(path)
    assert trace.origin is not None
    at_s = (trace.at_ns + trace.origin.first_ns) / 1e9
    for start_s, requests in windows:
        assert int(((at_s >= start_s) & (at_s < start_s + 600)).sum()) == requests
    assert quietly(path).at_ns.tolist() == trace.at_ns.tolist()
    other = quietly(path, ReadOptions(generate_seed=1))
    assert len(other.at_ns) == len(trace.at_ns)
    assert other.at_ns.tolist() != trace.at_ns.tolist()


def test_a_part_of_servegen_is_that_part_of_the_whole() -> None:
    path = HERE / "servegen_r1_chunk-48-trace.csv"
    whole = quietly(path)
    part = quietly(path, ReadOptions(generate_from_s=1200.0, generate_for_s=1800.0))
    assert whole.origin is not None
    assert part.origin is not None
    at_ns = whole.at_ns + whole.origin.first_ns
    inside = (at_ns >= 1200 * 10**9) & (at_ns < 3000 * 10**9)
    assert (part.at_ns + part.origin.first_ns).tolist() == at_ns[inside].tolist()
    assert part.context_tokens.tolist() == whole.context_tokens[inside].tolist()


def test_servegen_gaps_have_the_family_and_tokens_the_histogram(tmp_path: Path) -> None:
    """Gamma of shape 0.25 has a cv of 2; Weibull of shape 2 one of 0.523."""
    rows = "0,50,2,Gamma,0.25,0.08\n600,50,0.5,Weibull,2,0.02\n1200,0,0,,,\n"
    (tmp_path / "c-trace.csv").write_text(rows)
    dataset = {"0": {"input_tokens": "{7: 0.25, 9: 0.75}", "output_tokens": "{3: 1.0}"}}
    (tmp_path / "c-dataset.json").write_text(json.dumps(dataset))
    trace = read_trace(tmp_path / "c-trace.csv")
    assert len(trace.at_ns) == 60_000
    gaps = [np.diff(trace.at_ns[:30_000]), np.diff(trace.at_ns[30_000:])]
    assert [g.std() / g.mean() for g in gaps] == [
        pytest.approx(2.0, rel=0.05),
        pytest.approx(0.5227, rel=0.05),
    ]
    assert (trace.context_tokens == 7).mean() == pytest.approx(0.25, abs=0.01)
    assert set(trace.context_tokens.tolist()) == {7, 9}
    assert set(trace.generated_tokens.tolist()) == {3}


def test_servegen_draws_no_more_than_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.workload.servegen.MOST_REQUESTS", 5000)
    with pytest.warns(TraceWarning, match="only windows before 1200 s drawn"):
        trace = read_trace(HERE / "servegen_r1_chunk-48-trace.csv")
    assert len(trace.at_ns) <= 5000


def test_a_stated_dataset_is_used(tmp_path: Path) -> None:
    shutil.copy(HERE / "servegen_r1_chunk-48-trace.csv", tmp_path / "w.csv")
    shutil.copy(HERE / "servegen_r1_chunk-48-dataset.json", tmp_path / "d.json")
    with pytest.raises(ValueError, match=r"w-dataset\.json: cannot be read"):
        read_trace(tmp_path / "w.csv")
    trace = read_trace(tmp_path / "w.csv", ReadOptions(dataset="d.json"))
    assert trace.at_ns.tolist() == quietly(HERE / "servegen_r1_chunk-48-trace.csv").at_ns.tolist()


def test_columns_must_differ() -> None:
    with pytest.raises(ValueError, match="one column cannot serve twice"):
        Columns(time="t", time_unit="s", prompt_tokens="t", output_tokens="o")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "csv"}, "format='csv' needs columns"),
        (
            {"format": "azure", "columns": mapped("s").columns},
            "columns with format='azure'; its columns are known",
        ),
    ],
)
def test_a_format_and_its_columns_must_fit(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReadOptions.model_validate(settings)


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.mark.parametrize("quoted", ["l", '"l"', " l"])
def test_a_total_of_burstgpt_that_is_not_the_sum_is_said_with_its_values(
    tmp_path: Path, quoted: str
) -> None:
    path = tmp_path / "burst.csv"
    rows = [f"{i},m,10,{i},{10 + i}{' ' * (i % 2)},{quoted}\n" for i in range(1, 9)]
    path.write_text(BURST + "".join(rows).replace(",10,5,15 ,", ",10,5,99,").replace(",16,", ",,"))
    with pytest.warns(TraceWarning, match="Total tokens"):
        trace = read_trace(path)
    (note,) = trace.notes
    assert "2 row(s) whose Total tokens is not Request tokens + Response tokens" in note
    assert "the first at line 6: '99' for 10 + 5; the total is not used" in note
    assert trace.generated_tokens.tolist() == list(range(1, 9))
    path.write_text(BURST + "".join(rows))
    assert read_trace(path).notes == ()
