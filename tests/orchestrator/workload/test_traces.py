"""Reading Azure-format traces: what is read, what is warned about, what is refused and how."""

import warnings
from pathlib import Path

import pytest

from orchestrator.workload.traces import TraceWarning, read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0314660,3180,8\n"


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_seven_digits_of_fraction_are_kept(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HEADER + ROWS))
    assert trace.at_ns.tolist() == [0, 51_506_000]
    assert trace.context_tokens.tolist() == [4808, 3180]
    assert trace.generated_tokens.tolist() == [10, 8]
    assert trace.notes == ()


def test_midnight_and_leap_day_do_not_break_time(tmp_path: Path) -> None:
    rows = "2024-02-29 23:59:59.9999999,1,1\n2024-03-01 00:00:00.0000000,1,1\n"
    assert read_trace(written(tmp_path, HEADER + rows)).at_ns.tolist() == [0, 100]


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff" + (HEADER + ROWS).replace("\n", "\r\n"),  # byte-order mark, CRLF
        (HEADER + ROWS).replace("\n", "\r\n").rstrip(),  # no newline at the end
        HEADER + ROWS + "\n\n",
        "GeneratedTokens,extra,TIMESTAMP,ContextTokens\n"
        "10,a,2023-11-16 18:17:03.9799600,4808\n8,b,2023-11-16 18:17:04.0314660,3180\n",
    ],
)
def test_harmless_forms_read_the_same(tmp_path: Path, content: str) -> None:
    plain = read_trace(written(tmp_path, HEADER + ROWS))
    other = read_trace(written(tmp_path, content))
    assert other.at_ns.tolist() == plain.at_ns.tolist()
    assert other.context_tokens.tolist() == plain.context_tokens.tolist()
    assert other.generated_tokens.tolist() == plain.generated_tokens.tolist()


def test_times_with_a_zone_are_brought_to_one_scale(tmp_path: Path) -> None:
    rows = "2025-06-01T14:00:00+02:00,1,1\n2025-06-01T12:00:02.5Z,1,1\n"
    assert read_trace(written(tmp_path, HEADER + rows)).at_ns.tolist() == [0, 2_500_000_000]


def test_epoch_times_are_read_and_their_unit_told(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "1748779200000,1,1\n1748779201163,1,1\n")
    with pytest.warns(TraceWarning, match="epoch milliseconds"):
        assert read_trace(path).duration_s == 1.163


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_taken_from_the_header_and_told(
    tmp_path: Path, delimiter: str
) -> None:
    path = written(tmp_path, (HEADER + ROWS).replace(",", delimiter))
    with pytest.warns(TraceWarning, match="line 1: fields are separated by"):
        trace = read_trace(path)
    assert trace.at_ns.tolist() == [0, 51_506_000]
    assert trace.context_tokens.tolist() == [4808, 3180]


def test_rows_out_of_order_are_sorted_and_told_by_line(tmp_path: Path) -> None:
    rows = (
        "2025-06-01 12:00:00.0000000,1,1\n"
        "2025-06-01 12:00:05.0000000,2,2\n"
        "2025-06-01 12:00:03.0000000,3,3\n"
    )
    with pytest.warns(TraceWarning, match=r"1 row\(s\) earlier than the row before.*line 4"):
        trace = read_trace(written(tmp_path, HEADER + rows))
    assert trace.at_ns.tolist() == [0, 3_000_000_000, 5_000_000_000]
    assert trace.context_tokens.tolist() == [1, 3, 2]


def test_equal_times_keep_their_order(tmp_path: Path) -> None:
    rows = "".join(f"2025-06-01 12:00:00.0000000,{i},1\n" for i in range(20))
    trace = read_trace(written(tmp_path, HEADER + rows))
    assert trace.context_tokens.tolist() == list(range(20))


def test_one_request_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "2025-06-01 12:00:00.0000000,1,1\n")
    with pytest.warns(TraceWarning, match="line 2 is the only request"):
        assert read_trace(path).duration_s == 0.0


TIME = "2025-06-01 12:00:00"
EPOCH = "1748779200000"
NO_NUMBER = "is no whole number"
FAULTS: list[tuple[str | bytes, str]] = [
    ("", "the file is empty"),
    ("\n\n", "the file is empty"),
    (HEADER, "a header and no requests"),
    (
        f"TIMESTAMP,ContextTokens\n{TIME},1\n",
        "line 1: column GeneratedTokens is missing; found TIMESTAMP, ContextTokens",
    ),
    (
        "TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n",
        "line 1: column ContextTokens is there more than once",
    ),
    (f"{HEADER}{ROWS}{TIME},-250,67\n", "line 4, column ContextTokens: -250 is outside 0"),
    (
        f"{HEADER}{TIME},1,99999999999\n",
        "line 2, column GeneratedTokens: 99999999999 is outside",
    ),
    (f'{HEADER}{TIME},"2,345",1\n', f"line 2, column ContextTokens: '2,345' {NO_NUMBER}"),
    (f"{HEADER}{TIME},12.5,1\n", f"line 2, column ContextTokens: '12.5' {NO_NUMBER}"),
    (f"{HEADER}{TIME},1_000,1\n", f"'1_000' {NO_NUMBER}"),
    (f"{HEADER}{TIME},1,\n", f"line 2, column GeneratedTokens: '' {NO_NUMBER}"),
    (f"{HEADER}{TIME},nan,1\n", f"'nan' {NO_NUMBER}"),
    (f"{HEADER}2025-13-01 12:00:00,1,1\n", "TIMESTAMP: '2025-13-01 12:00:00' is no time"),
    (f"{HEADER}yesterday,1,1\n", "line 2, column TIMESTAMP: 'yesterday' is no time; write YYYY"),
    (f"{HEADER}{TIME},1\n", f"line 2 has 2 field(s) ['{TIME}', '1'], the header has 3"),
    (
        f"{HEADER}{ROWS}{EPOCH},1,1\n",
        f"line 4, column TIMESTAMP: '{EPOCH}' is epoch milliseconds, but line 2 is a time",
    ),
    (HEADER.encode() + b"\xff\xfe\n", "line 2: byte 0xff is no UTF-8"),
    (f'{HEADER}{TIME},"1"x,1\n', "line 2: "),
]


@pytest.mark.parametrize(("content", "message"), FAULTS)
def test_a_bad_trace_is_refused_with_file_line_column_and_value(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the text is compared below
        read_trace(path)
    assert str(refused.value).startswith(str(path))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_and_a_folder_are_refused_by_path(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(ValueError, match="cannot be read") as refused:
            read_trace(path)
        assert str(path) in str(refused.value)


def test_the_committed_azure_trace_reads_whole(checkout: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = read_trace(checkout / "experiments/traces/AzureLLMInferenceTrace_code.csv")
    assert len(trace.at_ns) == 8819
    assert trace.duration_s == pytest.approx(3435.948056, abs=1e-9)
    assert int(trace.context_tokens.max()) == 7437
    assert int(trace.generated_tokens.max()) == 1899
