"""What a trace is like: rate, dispersion, memory, quiet time, tokens; null where it is not known.

With c[k] the arrivals of whole second k after the first one, over the floor(T) whole seconds of the
trace: dispersion of w seconds is the variance (n - 1) over the mean of the sums of adjacent windows
of w; autocorrelation is Pearson's between c[k] and c[k + lag], and between 8 s sums; quiet is the
share of windows, moved by 1 s, below a quarter of the mean rate.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from orchestrator.study import explain
from orchestrator.workload.config import ReadOptions
from orchestrator.workload.trace import Ints, Trace, TraceWarning
from orchestrator.workload.traces import read_trace

WINDOWS_S = (1, 8, 60)
LAGS_S = (8, 30, 60)
PERCENTILES = (5, 50, 90, 95, 99)
QUIET_SHARE = 0.25
MOST_SECONDS = 366 * 86_400  # counted one by one: some GB at the most
NS_PER_S = 10**9
_BARS = " ▁▂▃▄▅▆▇█"
Floats = npt.NDArray[np.float64]


def load_described(path: Path, **settings: Any) -> tuple[Trace, dict[str, Any]]:
    """Read with the settings of the command line and describe; ValueError in one line."""
    try:
        options = ReadOptions.model_validate(
            {k: v for k, v in settings.items() if v is not None}, strict=False
        )
    except ValidationError as error:
        raise ValueError(explain(error, where=str(path))) from error
    with _quietly():
        trace = read_trace(path, options)
    return trace, describe(trace)


def parse_columns(text: str | None) -> dict[str, str] | None:
    """time=NAME,time_unit=UNIT,... as a mapping."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(equals and name and value for name, equals, value in pairs):
        raise ValueError(f"--columns {text!r}: write NAME=VALUE pairs parted by commas")
    return {name.strip(): value.strip() for name, _, value in pairs}


@contextmanager
def _quietly() -> Iterator[None]:
    """The notes stand in the description; they need not go out as warnings too."""
    with catch_warnings():
        simplefilter("ignore", TraceWarning)
        yield


def describe(trace: Trace) -> dict[str, Any]:
    """A JSON object; unknown is None."""
    origin, rows = trace.origin, len(trace.at_ns)
    gaps = np.diff(trace.at_ns)
    positive = gaps[gaps > 0]
    known = rows > 1 and trace.at_ns[-1] > 0
    too_long = trace.duration_s > MOST_SECONDS
    counts = np.zeros(0, dtype=np.int64) if too_long else second_counts(trace.at_ns)
    rate = rows / trace.duration_s if known else None
    first, last = _moments(trace)
    return {
        "path": str(trace.path),
        "format": None if origin is None else origin.format,
        "time_form": None if origin is None else origin.time_form,
        "zone": None if origin is None else origin.zone,
        "requests": rows,
        "first_arrival": first,
        "last_arrival": last,
        "duration_s": trace.duration_s,
        "mean_rate_per_s": rate,
        "peak_rate_8s_per_s": peak_rate(trace.at_ns, window_s=8) if known else None,
        "min_positive_gap_s": int(positive.min()) / NS_PER_S if len(positive) else None,
        "longest_gap_s": int(gaps.max()) / NS_PER_S if len(gaps) else None,
        "tied_with_the_row_before": int((gaps == 0).sum()),
        "dispersion": {f"{w}s": dispersion(counts, window_s=w) for w in WINDOWS_S},
        "autocorrelation_1s": {f"{lag}s": autocorrelation(counts, lag=lag) for lag in LAGS_S},
        "autocorrelation_8s": {
            f"{lag}s": autocorrelation(_sums(counts, 8), lag=lag) for lag in LAGS_S
        },
        "quiet_share": {f"{w}s": quiet_share(counts, rate, window_s=w) for w in WINDOWS_S},
        "prompt_tokens": token_percentiles(trace.context_tokens),
        "output_tokens": token_percentiles(trace.generated_tokens),
        "steps": list(trace.steps),
        "warnings": [*trace.notes, *([_too_long(trace)] if too_long else [])],
    }


def _too_long(trace: Trace) -> str:
    gaps = np.diff(trace.at_ns)
    longest_s, row = int(gaps.max()) / NS_PER_S, int(gaps.argmax()) + 1
    return (
        f"{trace.duration_s:.6g} s are more than {MOST_SECONDS} (a year): dispersion, "
        "autocorrelation and quiet share, which count every second, are not known; the longest "
        f"gap, {longest_s:.6g} s, ends at request {row} (from 0, by time): cut the file, or give "
        "load.slice"
    )


def second_counts(at_ns: Ints) -> Ints:
    """Arrivals in each whole second that the trace covers to its end."""
    seconds = int(at_ns[-1] // NS_PER_S)
    return np.bincount(at_ns // NS_PER_S, minlength=seconds)[:seconds]


def dispersion(counts: Ints, *, window_s: int) -> float | None:
    """Variance over mean of the counts in adjacent windows; None with less than two windows."""
    windows = len(counts) // window_s
    sums = counts[: windows * window_s].reshape(windows, window_s).sum(axis=1)
    if windows < 2 or not sums.any():
        return None
    return float(sums.var(ddof=1) / sums.mean())


def autocorrelation(counts: Ints, *, lag: int) -> float | None:
    """Pearson's correlation at a lag in seconds; None when too short or constant."""
    now, later = counts[:-lag], counts[lag:]
    if len(now) < 2 or not now.std() or not later.std():
        return None
    return float(np.corrcoef(now, later)[0, 1])


def quiet_share(counts: Ints, rate_per_s: float | None, *, window_s: int) -> float | None:
    """Share of the windows with a rate below a quarter of the mean; None when there is none."""
    sums = _sums(counts, window_s)
    if rate_per_s is None or not len(sums):
        return None
    return float((sums / window_s < QUIET_SHARE * rate_per_s).mean())


def peak_rate(at_ns: Ints, *, window_s: int) -> float:
    """Most arrivals in any [t, t + window_s), for a second."""
    ends = np.searchsorted(at_ns, at_ns + window_s * NS_PER_S, side="left")
    return float((ends - np.arange(len(at_ns))).max() / window_s)


def token_percentiles(tokens: Ints) -> dict[str, float]:
    """Mean, percentiles (linear interpolation) and maximum."""
    values = np.percentile(tokens, PERCENTILES)
    named = {f"p{p}": float(v) for p, v in zip(PERCENTILES, values, strict=True)}
    return {"mean": float(tokens.mean()), **named, "max": int(tokens.max())}


def _sums(counts: Ints, window_s: int) -> Ints:
    """Sums of every window of whole seconds, moved by 1 s."""
    total = np.concatenate([[0], np.cumsum(counts)])
    return total[window_s:] - total[:-window_s] if len(counts) >= window_s else total[:0]


def _moments(trace: Trace) -> tuple[str | None, str | None]:
    """First and last arrival as the file counts time: a clock, or seconds from its zero."""
    origin = trace.origin
    if origin is None:
        return None, None
    ends = (origin.first_ns, origin.first_ns + int(trace.at_ns[-1]))
    clock = origin.time_form.startswith(("a time", "epoch"))
    suffix = "Z" if origin.zone.startswith("UTC") else ""
    first, last = (_clock(ns) + suffix if clock else _seconds(ns) for ns in ends)
    return first, last


def _clock(at_ns: int) -> str:
    whole, fraction = divmod(at_ns, NS_PER_S)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=whole)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}"


def _seconds(at_ns: int) -> str:
    whole, fraction = divmod(at_ns, NS_PER_S)
    return f"{whole}.{fraction:09d} s"


def described_lines(trace: Trace, found: dict[str, Any]) -> list[str]:
    """The description for people, with the rate as a row of bars."""

    def text(value: float | None) -> str:
        return "not known" if value is None else f"{value:.4g}"

    def listed(name: str) -> str:
        return ", ".join(f"{key} {text(value)}" for key, value in found[name].items())

    rate = text(found["mean_rate_per_s"])
    lines = [
        f"{found['path']}: {found['format']}, {found['time_form']}, zone {found['zone']}",
        f"  requests      {found['requests']} in {found['duration_s']:.9g} s",
        f"  from, to      {found['first_arrival']}, {found['last_arrival']}",
        f"  rate          mean {rate} /s, busiest 8 s {text(found['peak_rate_8s_per_s'])} /s",
        f"  gaps          least above 0 {text(found['min_positive_gap_s'])} s, longest "
        f"{text(found['longest_gap_s'])} s, {found['tied_with_the_row_before']} ties",
        f"  dispersion    {listed('dispersion')} (1 for Poisson)",
        f"  memory        of 1 s counts at lag {listed('autocorrelation_1s')}",
        f"                of 8 s sums at lag {listed('autocorrelation_8s')}",
        f"  quiet         share of windows below a quarter of the mean: {listed('quiet_share')}",
        f"  prompt        tokens {listed('prompt_tokens')}",
        f"  output        tokens {listed('output_tokens')}",
        f"  over time     |{sparkline(trace.at_ns)}|",
    ]
    return lines + [f"  step          {step}" for step in found["steps"]]


def rate_bins(at_ns: Ints, *, bins: int) -> tuple[Floats, Floats]:
    """(edges in s, requests/s) over equal bins of the whole trace."""
    end_s = max(float(at_ns[-1]) / NS_PER_S, 1e-9)
    counts, edges = np.histogram(at_ns / NS_PER_S, bins=bins, range=(0.0, end_s))
    return edges, counts / np.diff(edges)


def sparkline(at_ns: Ints, *, width: int = 72) -> str:
    """One character for each bin of time, by its share of the highest rate."""
    _, rate = rate_bins(at_ns, bins=width)
    levels = np.ceil(rate / rate.max() * (len(_BARS) - 1)).astype(int)
    return "".join(_BARS[level] for level in levels)
