"""The types of a run on disk and of what is computed from it; reading and writing is rundir.py."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from actors.events import Event

ArmKind = Literal["no_sync", "policy", "matched_random", "placebo", "oracle", "aa", "data_parallel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpec:
    """One arm of one seed. ``label`` is stable over seeds, e.g. matched_random-of-wa_ewma-d0."""

    kind: ArmKind
    label: str  # no_sync-start, no_sync-end, wa_ewma, matched_random-of-X-d0, placebo-of-X, ...
    policy: str | None  # key of study.policies for kind policy and aa
    of: str | None  # for controls
    draw: int | None  # for matched_random
    position: Literal["start", "end"] | None  # for no_sync


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run folder as read; complete says whether its last event is a complete arm_finished."""

    path: Path
    arm: ArmSpec
    seed: int
    config: dict[str, Any]  # config.json: {study, arm, seed, request_hash, corridor, run_hash}
    provenance: dict[str, Any]
    events: tuple[Event, ...]
    requests: pa.Table
    train: pa.Table
    pressure: pa.Table
    status: Literal["complete", "invalid", "partial"]
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetrics:
    """metrics.json: a pure function of a RunRecord. None where unknown, never 0.

    Counted requests: scheduled in [warmup_s, horizon_s). Percentiles: successful requests, linear
    interpolation, None under 20. Windows: planned [start, end) of each merge (or marked window).
    """

    arm: str
    kind: str
    seed: int
    status: str
    why: str | None
    source: str
    engine: str
    engine_version: str
    request_hash: str  # recomputed from requests.parquet
    requests_scheduled_all: int  # also those before the warm-up ended
    requests_scheduled: int
    requests_sent: int
    requests_ok: int
    requests_failed: int
    outcomes: dict[str, int]
    violations: int
    violation_rate: float | None
    violations_not_yet_arrived: int | None  # violations of requests scheduled after a window began
    requests_in_windows: int
    violations_in_windows: int
    e2e_p50_s: float | None
    e2e_p95_s: float | None
    e2e_p99_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    itl_p95_s: float | None
    goodput_rps: float | None
    lateness_p99_outside_s: float | None
    lateness_p99_inside_s: float | None
    merge_count: int
    marked_windows: int  # merges plus suppressed ones
    merge_planned_s: float
    merge_real_s: float | None  # sum over merges of the longest island's real work
    merge_emulated_s: float | None
    merge_emulated_share: float | None
    merge_overran: int
    violations_per_merge: float | None
    merge_parts_mean_s: dict[str, float]  # wait, codec, all_reduce, outer_step, checkpoint, ...
    hashes_equal: bool | None  # over islands after every merge
    forced_share: float | None  # decisions by corridor or budget among merges
    blind_ticks: int
    train_loss_start: float | None
    train_loss_end: float | None
    train_loss_by_island: dict[str, tuple[float | None, float | None]]
    train_tokens_per_s: float | None
    train_steps: int
    serving_pressure_mean: float | None
    faults: tuple[str, ...]
    merge_late_end_max_s: float | None = (
        None  # islands went on after the planned end; None: no merge
    )
    merge_steps_min: int | None = None  # least inner steps of an island before a merge
    train_late_steps: int | None = None  # inner steps that began later than paced
    island_warnings: tuple[str, ...] = ()
