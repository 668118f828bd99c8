"""Bad input: every file of bad/ as its README says, and more faults; one line, with the place."""

import csv
import gzip
import io
import json
import warnings
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.workload.config import ReadOptions
from orchestrator.workload.fields import (
    CLOCKS,
    EPOCHS,
    NUMBERS,
    TimeForm,
    form_of,
    time_column,
    time_ns,
    token_column,
    tokens_of,
)
from orchestrator.workload.trace import TraceWarning
from orchestrator.workload.traces import read_trace

BAD = Path(__file__).parent / "bad"
with (BAD / "expected.csv").open(newline="") as _file:
    EXPECTED = list(csv.DictReader(_file))
ODD = {  # what must be said of a file that is read all the same
    "one_step_back.csv": "line 9; sorted by TIMESTAMP",
    "one_row.csv": "no rate can be computed",
    "epoch_ms.csv": "epoch milliseconds",
    "semicolon.csv": "separated by ';'",
}


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case["file"])
def test_a_bad_file_is_read_or_refused_as_its_readme_says(case: dict[str, str]) -> None:
    path = BAD / case["file"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            trace = read_trace(path)
        except ValueError as error:
            text = str(error)
            assert case["verdict"] in ("reject", "either")
            assert text.startswith(f"{path}: ")
            assert not case["line"] or f"line {case['line']}" in text
            assert case["column"] in text
            assert "\n" not in text
            return
    assert case["verdict"] in ("accept", "accept_warn", "either")
    assert len(trace.at_ns) == int(case["rows"])
    assert trace.duration_s == pytest.approx(float(case["duration_s"]), abs=1e-9)
    texts = [str(w.message) for w in said if w.category is TraceWarning]
    assert texts == list(trace.notes)
    assert bool(texts) == (path.name in ODD)
    assert all(ODD[path.name] in text for text in texts)


def test_every_file_of_the_folder_is_expected() -> None:
    files = {path.name for path in BAD.iterdir()} - {"README.md", "expected.csv"}
    assert files == {case["file"] for case in EXPECTED}


def zipped(text: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.csv", text)
    return packed.getvalue()


HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
T = b"2025-06-01 12:00:00.0000000"
GOOD = HEADER + T + b",5,6\n"
MANY = HEADER + (T + b",5,6\n") * 5000
BURST = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MOON = b'{"timestamp": 0, "input_length": 5, "output_length": 6, "hash_ids": []}\n'
WINDOWS = b"0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n"
FAULTS: dict[str, tuple[bytes, str]] = {
    "nan tokens": (GOOD + T + b",nan,6\n", "line 3, column ContextTokens: 'nan' is no whole"),
    "token overflow": (
        GOOD + T + b",5,9223372036854775808\n",
        "line 3, column GeneratedTokens: 92",
    ),
    "very many digits": (GOOD + T + b"," + b"9" * 5000 + b",6\n", "line 3, column ContextTokens"),
    "mixed zones": (
        GOOD + T + b"+02:00,5,6\n",
        "line 3, column TIMESTAMP: '2025-06-01 12:00:00.0000000+02:00' is a time with a zone, but",
    ),
    "impossible zone": (HEADER + T + b"+99:00,5,6\n", "line 2, column TIMESTAMP: "),
    "mark inside": (GOOD + b"\xef\xbb\xbf" + T + b",5,6\n", "line 3, column TIMESTAMP: '\\ufeff20"),
    "header again": (GOOD + HEADER, "line 3, column TIMESTAMP: the header again"),
    "quoted newline": (GOOD + b'"2025-06-01\n12:00:01",5,6\n', "line 3: a quoted field does not"),
    "utf-16": ("".join(map(chr, GOOD)).encode("utf-16"), "line 1: is UTF-16 or UTF-32 text"),
    "utf-16 without a mark": ("".join(map(chr, GOOD)).encode("utf-16-le"), "line 1: is UTF-16"),
    "latin-1": (GOOD + T + b",5,6\xe9\n", "line 3: byte 0xe9 is no UTF-8"),
    "zero bytes": (GOOD + b"\x00" * 40, "line 3: byte 0x00 is a zero byte"),
    "mixed epoch units": (
        HEADER + b"1748779200,5,6\n1748779200123,5,6\n",
        "line 3, column TIMESTAMP: '1748779200123' is epoch milliseconds, but line 2 is epoch sec",
    ),
    "exponent": (HEADER + b"1.7487792e9,5,6\n", "'1.7487792e9' is in exponent notation"),
    "negative time": (BURST + b"-5,m,1,1,2,l\n", "line 2, column Timestamp: '-5' is negative"),
    "no time": (HEADER + b",5,6\n", "line 2, column TIMESTAMP: '' is no time"),
    "decimal comma": (BURST + b'"5,5",m,1,1,2,l\n', "line 2, column Timestamp: '5,5' is no time"),
    "leap second": (HEADER + b"2016-12-31 23:59:60,5,6\n", "line 2, column TIMESTAMP: "),
    "30 February": (HEADER + b"2024-02-30 00:00:00,5,6\n", "line 2, column TIMESTAMP: "),
    "year 2300": (HEADER + b"2300-01-01 00:00:00,5,6\n", "is outside 64-bit nanoseconds"),
    "one bad line at the end": (MANY + T + b",5,x\n", "line 5002, column GeneratedTokens: 'x'"),
    "short line at the end": (MANY + T[:9], "line 5002 has 1 field(s) ['2025-06-0']"),
    "one field more": (GOOD + T + b",5,6,7\n", "line 3 has 4 field(s)"),
    "CR alone": (GOOD.replace(b"\n", b"\r"), "line 1: lines end in CR alone"),
    "CR inside": (GOOD + T + b",5,6\r" + T + b",5,6\n", "line 3: "),
    "blank line above": (b"\n" + GOOD, "line 1: is blank"),
    "column twice": (b"TIMESTAMP," + GOOD, "line 1: column TIMESTAMP is there more than once"),
    "other case": (GOOD.lower(), "line 1: column TIMESTAMP is missing; found timestamp, context"),
    "zip": (zipped(GOOD), "is a zip archive; unpack it"),
    "bzip2": (b"BZh91AY&SY" + b"\x80" * 50, "is packed by bzip2"),
    "gzip twice": (gzip.compress(gzip.compress(GOOD)), "is packed by gzip twice"),
    "damaged gzip": (gzip.compress(MANY)[:-8] + b"\x00" * 8, "gzip data is damaged"),
    "gzip of nothing": (gzip.compress(b""), "the file is empty"),
    "JSON array": (b"[" + MOON.strip() + b"]", "line 1: begins a JSON array"),
    "array line": (MOON + b"[1, 2]\n", "line 2: is list, not an object"),
    "two objects": (MOON + MOON.strip() + MOON, "line 2: is no whole JSON object (Extra data)"),
    "object over two lines": (MOON + MOON.replace(b", ", b",\n", 1), "line 2: is no whole JSON"),
    "missing key": (
        MOON + b'{"timestamp": 1, "input_length": 2}\n',
        "line 2, column output_length",
    ),
    "null": (MOON + MOON.replace(b"5", b"null"), "line 2, column input_length: 'null' is not a n"),
    "text for a number": (MOON + MOON.replace(b"5", b'"5"'), "line 2, column input_length: '5' is"),
    "true for a number": (
        MOON + MOON.replace(b"5", b"true"),
        "line 2, column input_length: 'true'",
    ),
    "fraction of a token": (
        MOON + MOON.replace(b"5", b"5.5"),
        "line 2, column input_length: '5.5'",
    ),
    "JSON NaN": (MOON + MOON.replace(b"5", b"NaN"), "line 2: is no whole JSON object (NaN is no J"),
    "negative tokens": (
        MOON + MOON.replace(b"5", b"-5"),
        "line 2, column input_length: -5 is outsi",
    ),
    "negative milliseconds": (
        MOON + MOON.replace(b"0", b"-3", 1),
        "line 2, column timestamp: '-3'",
    ),
    "key twice": (
        MOON.replace(b'"hash_ids"', b'"timestamp"'),
        "line 1: is no whole JSON object (key 'timestamp' stands twice",
    ),
    "deep JSON": (b'{"a": ' + b"[" * 100_000 + b"\n", "line 1: is no whole JSON object"),
    "no column of parquet": (b"PAR1", "is Parquet; give columns"),
    "servegen family": (
        WINDOWS.replace(b"Gamma", b"Gamma", 1) + b"1200,1,1,Pareto,1,1\n",
        "line 3, c",
    ),
    "servegen shape": (
        WINDOWS + b"1200,1,1,Gamma,0,1\n",
        "line 3, column shape: '0' is no positive",
    ),
    "servegen rate": (WINDOWS + b"1200,inf,1,Gamma,1,1\n", "line 3, column rate_per_s: 'inf'"),
    "servegen step": (
        WINDOWS + b"1300,1,1,Gamma,1,1\n",
        "line 3, column start_s: 1300 follows 600",
    ),
    "servegen fields": (WINDOWS + b"1200,1,1\n", "line 3 has 3 field(s)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_in_one_line_with_its_place(tmp_path: Path, fault: str) -> None:
    content, message = FAULTS[fault]
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the text is compared below
        read_trace(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 6000


HISTOGRAMS = {
    "no file": (None, "dataset.json: cannot be read"),
    "no JSON": ("{", "is no JSON"),
    "no segments": ("{}", "holds no segments"),
    "code": ({"input_tokens": "__import__('os').getpid()", "output_tokens": "{}"}, "is no {tokens"),
    "a list": ({"input_tokens": [1], "output_tokens": "{}"}, "is no {tokens: probability} literal"),
    "probability": ({"input_tokens": "{5: 2.0}", "output_tokens": "{}"}, "2.0 is no probability"),
    "sum": ({"input_tokens": "{5: 0.5}", "output_tokens": "{}"}, "probabilities sum to 0.5, not 1"),
    "token": ({"input_tokens": "{-5: 1.0}", "output_tokens": "{}"}, "-5 is no number of tokens"),
    "field": ({"output_tokens": "{5: 1.0}"}, "needed are output_tokens and one of input_tokens"),
    "empty segment": (
        {"input_tokens": "{}", "output_tokens": "{}"},
        "has requests at 0 s, for which",
    ),
}


@pytest.mark.parametrize("fault", HISTOGRAMS)
def test_a_faulty_dataset_of_servegen_is_refused(tmp_path: Path, fault: str) -> None:
    fields, message = HISTOGRAMS[fault]
    (tmp_path / "c-trace.csv").write_bytes(WINDOWS)
    if fields is not None:
        text = fields if isinstance(fields, str) else json.dumps({"0": fields})
        (tmp_path / "c-dataset.json").write_text(text)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the text is compared below
        read_trace(tmp_path / "c-trace.csv")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def parquet_options(unit: str = "s") -> ReadOptions:
    return ReadOptions.model_validate(
        {"columns": {"time": "t", "time_unit": unit, "prompt_tokens": "p", "output_tokens": "o"}}
    )


ONE = pa.array([1, 2])
PARQUETS: dict[str, tuple[dict[str, pa.Array], str, str]] = {
    "nulls": ({"t": ONE, "p": pa.array([1, None]), "o": ONE}, "s", "column p, row 2: is null"),
    "no column": ({"t": ONE, "p": ONE}, "s", "column o is missing; found t, p"),
    "float tokens": ({"t": ONE, "p": pa.array([1.0, 2.0]), "o": ONE}, "s", "column p: is double"),
    "text for a number": ({"t": pa.array(["1", "2"]), "p": ONE, "o": ONE}, "s", "time_unit s does"),
    "timestamp for seconds": (
        {"t": pa.array([1, 2], pa.timestamp("us")), "p": ONE, "o": ONE},
        "s",
        "column t: is timestamp[us], which columns.time_unit s does not fit",
    ),
    "number for iso": ({"t": ONE, "p": ONE, "o": ONE}, "iso", "column t: is int64, which columns"),
    "NaN": ({"t": pa.array([1.0, float("nan")]), "p": ONE, "o": ONE}, "s", "row 2: nan is no time"),
    "negative": ({"t": ONE, "p": pa.array([1, -2]), "o": ONE}, "s", "column p, row 2: -2 is outs"),
    "bad text": ({"t": pa.array(["2025-06-01 00:00:00", "x"]), "p": ONE, "o": ONE}, "iso", "row 2"),
    "no rows": ({k: pa.array([], pa.int64()) for k in "tpo"}, "s", "no requests"),
}


@pytest.mark.parametrize("fault", PARQUETS)
def test_a_faulty_parquet_is_refused_with_its_row(tmp_path: Path, fault: str) -> None:
    columns, unit, message = PARQUETS[fault]
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the text is compared below
        read_trace(tmp_path / "t.parquet", parquet_options(unit))
    assert str(refused.value).startswith(str(tmp_path / "t.parquet"))
    assert message in str(refused.value)


def test_a_truncated_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"t": ONE, "p": ONE, "o": ONE}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="Parquet data is damaged"):
        read_trace(path, parquet_options())


def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(ValueError, match=r"cannot be read \(Permission denied\)"):
        read_trace(tmp_path / "a.csv")


def test_a_line_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.workload.blocks.LONGEST_LINE_BYTES", 1000)
    monkeypatch.setattr("orchestrator.workload.blocks.BLOCK_BYTES", 1000)
    (tmp_path / "a.csv").write_bytes(GOOD + b"x" * 5000)
    with pytest.raises(ValueError, match="line 3: is longer than"):
        read_trace(tmp_path / "a.csv")


@pytest.mark.parametrize("asked", ["mooncake", "jsonl", "parquet", "servegen"])
def test_a_csv_is_not_read_as_another_kind(tmp_path: Path, asked: str) -> None:
    (tmp_path / "a.csv").write_bytes(GOOD)
    columns = parquet_options().columns if asked in ("jsonl", "parquet") else None
    options = ReadOptions.model_validate({"format": asked, "columns": columns})
    with pytest.raises(ValueError, match=f"is CSV, which format='{asked}' is not"):
        read_trace(tmp_path / "a.csv", options)


FORMS = [*CLOCKS, *EPOCHS, *NUMBERS.values()]
_DAYS = st.sampled_from(
    ["2023-11-16", "2024-02-29", "2023-02-29", "1969-12-31", "1600-01-01", "2262-04-12"]
)
_CLOCKS = st.sampled_from(
    [" 18:17:03", "T23:59:59", " 23:59:60", " 24:00:00", " 18:17", "  18:17:03"]
)
_PARTS = st.sampled_from(["", ".", ".5", ".9799600", ".123456789", ".1234567891"])
_ZONES = st.sampled_from(["", "Z", "+00:00", "-0530", "+23:59", "+24:00", "+05:60", "z"])
_DIGITS = st.integers(-5, 10**20).map(str)
CELLS = st.one_of(
    st.tuples(_DAYS, _CLOCKS, _PARTS, _ZONES).map("".join),
    st.tuples(_DIGITS, _PARTS).map("".join),
    st.tuples(_DIGITS.map(lambda d: d[:10]), _PARTS).map("".join),
    st.text(max_size=3),
)


@settings(deadline=None, max_examples=60)
@given(cells=st.lists(CELLS, min_size=1, max_size=2), form=st.sampled_from(FORMS))
def test_columns_of_times_are_the_cells_or_nothing(cells: list[str], form: TimeForm) -> None:
    column = time_column(pa.array(cells, pa.string()), form)
    try:
        slow = [time_ns(c, form_of(c, (form,), where=""), where="") for c in cells]
    except ValueError:
        assert column is None
    else:
        assert column is not None
        assert column.tolist() == slow


@settings(deadline=None, max_examples=40)
@given(cells=st.lists(st.text("+-0123456789_ ", max_size=11), max_size=3))
def test_columns_of_tokens_are_the_cells_or_nothing(cells: list[str]) -> None:
    column = token_column(pa.array(cells, pa.string()))
    if column is not None:
        assert column.tolist() == [tokens_of(c, where="") for c in cells]


PIECES = st.sampled_from(
    ["", " ", "5", "+5", '"5"', "5.0", "x", "-1", "\t", '"', "2025-06-01 12:00:00", ",", ", 7"]
)


@settings(deadline=None, max_examples=40)
@given(rows=st.lists(st.lists(PIECES, min_size=2, max_size=4), min_size=1, max_size=3))
def test_a_csv_reads_the_same_in_bulk_and_cell_by_cell(
    rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    body = "".join(",".join(row) + "\n" for row in rows)
    path.write_bytes(GOOD + body.encode())
    results = []
    for columns_too in (True, False):
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", TraceWarning)
            if not columns_too:
                patch.setattr("orchestrator.workload.csv_rows._columns", lambda *_, **__: None)
            try:
                trace = read_trace(path)
                results.append(str((trace.at_ns.tolist(), trace.context_tokens.tolist())))
            except ValueError as error:
                results.append(str(error))
    assert results[0] == results[1]
