"""The published settings and results that the replay is set against, from paper_audit's tables."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parents[1] / "paper_audit" / "data"
FACTOR_OF = "vllm-1p5b-sync-heavy"  # of stage 10: the run that a window's slow-down is taken from
UNLOOPED = ("random_matched", "stage12_calibrated_replay")  # stage 13: drawn over the whole replay
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Merges of a training run whose trace is repeated until the replay ends."""

    events: int
    trace_s: float
    horizon_s: float

    @property
    def windows(self) -> float:
        """In the replay; an average, for the last repeat is cut."""
        return self.events * self.horizon_s / self.trace_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published run of stage 11."""

    seed: int
    exposure: Exposure
    requests: int
    violations: int
    inside: int  # requests that started in a window
    p95_ratio: float  # inside over outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursty:
    """One policy of stage 13: means over its runs, and the exposures that its traces have."""

    exposures: tuple[Exposure, ...]
    violation_rate: float
    inside: float
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Settings and results, as far as they are needed here."""

    window_s: float
    horizon_s: float
    slo_s: float
    users: int
    tokens: int  # of every answer
    factor: float  # a window's slow-down, measured in stage 10
    burst_period_s: float
    burst_s: float
    quiet_users: int
    busy_users: int
    steady: Mapping[str, tuple[Run, ...]]  # by policy
    bursty: Mapping[str, Bursty]

    @property
    def answer_s(self) -> float:
        """Seconds of a request outside windows: in all runs of stage 11, users x time that was
        worked, at 1 / factor in windows, over requests.
        """
        worked_s, requests = 0.0, 0
        for run in (r for runs in self.steady.values() for r in runs):
            merging_s = run.exposure.windows * self.window_s
            worked_s += self.horizon_s - merging_s * (1.0 - 1.0 / self.factor)
            requests += run.requests
        return self.users * worked_s / requests


def read_published(folder: Path = DATA) -> Published:
    """ValueError for a setting that is not the same in all runs, KeyError for a missing column."""
    steady = _rows(folder / "stage11.csv")
    bursty = [r for r in _rows(folder / "stage13.csv") if r["origin"] == "reported"]
    factor = next(r for r in _rows(folder / "stage10.csv") if r["run"] == FACTOR_OF)
    window_s, horizon_s = _one(steady, "sync_window_s"), _one(steady, "duration_s")
    runs: dict[str, tuple[Run, ...]] = {}
    for row in steady:
        runs[row["policy"]] = (*runs.get(row["policy"], ()), _run(row))
    return Published(
        window_s=window_s,
        horizon_s=horizon_s,
        slo_s=_one(steady, "slo_ms") / 1000.0,
        users=int(_one(steady, "concurrency")),
        tokens=int(_one(steady, "max_new_tokens")),
        factor=float(factor["sync_p95_ratio"]),
        burst_period_s=_one(bursty, "burst_period_s"),
        burst_s=_one(bursty, "burst_window_s"),
        quiet_users=int(_one(bursty, "quiet_concurrency")),
        busy_users=int(_one(bursty, "busy_concurrency")),
        steady=runs,
        bursty={
            row["policy"]: _bursty(row, runs, bursty, horizon_s=horizon_s)
            for row in _rows(folder / "stage13_summary.csv")
        },
    )


def _rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _one(rows: Sequence[Row], column: str) -> float:
    values = {float(row[column]) for row in rows}
    if len(values) != 1:
        raise ValueError(f"{column} is not one value in all runs: {sorted(values)}")
    return values.pop()


def _exposure(row: Row) -> Exposure:
    return Exposure(
        events=int(row["sync_events"]),
        trace_s=float(row["sync_trace_duration_s"]),
        horizon_s=float(row["duration_s"]),
    )


def _run(row: Row) -> Run:
    return Run(
        seed=int(row["seed"]),
        exposure=_exposure(row),
        requests=int(row["requests"]),
        violations=int(row["slo_violations"]),
        inside=int(row["sync_active_count"]),
        p95_ratio=float(row["sync_p95_ratio"]),
    )


def _bursty(
    row: Row, steady: Mapping[str, Sequence[Run]], reported: Sequence[Row], *, horizon_s: float
) -> Bursty:
    """Its own schedule's exposure, that of the same traces in stage 11, or of the runs given."""
    label = row["policy"]
    if label in UNLOOPED:
        events = int(float(row["sync_events_mean"]))
        exposures = [Exposure(events=events, trace_s=horizon_s, horizon_s=horizon_s)]
    elif label in steady:
        exposures = [run.exposure for run in steady[label]]
    else:
        exposures = [_exposure(r) for r in reported if r["policy"] == label]
    tokens = _one(reported, "max_new_tokens")
    return Bursty(
        exposures=tuple(exposures),
        violation_rate=float(row["slo_violation_pct_mean"]) / 100.0,
        inside=float(row["sync_active_count_mean"]),
        requests=float(row["tokens_per_s_mean"]) * horizon_s / tokens,
    )
