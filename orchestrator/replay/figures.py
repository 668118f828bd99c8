"""What a replayed run comes to: one row of replay.parquet, by the definitions of metrics.py.

Unknown is None, never 0. ``source: replay, engine: model`` for every row.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFigures:
    """One run, that is one arm of one seed.

    Counted requests: scheduled in [warmup_s, horizon_s). Percentiles: linear interpolation, None
    under 20. Windows: planned [start, end) of each merge or marked window. ``overlap``: requests
    in flight at the starts or arriving in the windows, on the traffic of the seed's no_sync;
    ``new_overlap``: the arriving ones alone; ``_mean``, ``_variance``: exact, of as many merges
    placed uniformly (None without a budget). ``pooled_``: over all replayed draws of a control in
    the seed, the same in each of their rows, because no percentile follows from those of parts.
    """

    replicate: int  # the seed
    arm: str  # label
    kind: str
    policy: str | None
    of: str | None
    draw: int | None
    position: str | None
    request_hash: str
    status: str
    requests_scheduled: int
    violations: int
    violation_rate: float | None
    violations_not_yet_arrived: int | None  # None without a window
    requests_in_windows: int
    violations_in_windows: int
    e2e_p50_s: float | None
    e2e_p95_s: float | None
    e2e_p99_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    goodput_rps: float | None
    merge_count: int
    marked_windows: int
    merge_planned_s: float
    starts: tuple[int, ...]  # ticks, marked windows too
    forced_share: float | None
    overlap: float | None  # None without a window
    overlap_mean: float | None
    overlap_variance: float | None
    new_overlap: float | None
    new_overlap_mean: float | None
    new_overlap_variance: float | None
    inside_p95_s: float | None  # E2E of the requests scheduled in this arm's windows
    inside_p95_no_sync_s: float | None  # E2E of the same request ids in the seed's no_sync
    pooled_requests: int | None  # in the windows of matched_random's draws, or of the placebo
    pooled_p95_s: float | None  # their E2E there; None for other arms, and under 20 requests
    pooled_p95_no_sync_s: float | None  # of the same ids, once for each no_sync arm of the study
    excess_s: float | None  # sum of E2E here minus in no_sync; None where the requests differ
