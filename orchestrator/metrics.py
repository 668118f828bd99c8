"""A run's record to its metrics: pure, so that the same folder always gives the same figures.

Counted requests are those scheduled in [warmup_s, horizon_s). What is unknown is None, never 0.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actors.events import (
    Decided,
    Faulted,
    IslandFinished,
    MergeFinished,
    MergePart,
    MergeStarted,
    Ticked,
)
from actors.load.request import Outcome, Request
from orchestrator.record_tables import Window, planned_windows
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.workload.requests import request_hash
from policies.observation import Action, Reason

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
LEAST_FOR_PERCENTILE = 20
LOSS_STEPS = 20  # inner steps averaged for the loss at the start and at the end
FORCED = {Reason.AT_CEILING, Reason.BUDGET, Reason.STARVED}
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """A run's requests as columns, null as NaN; ``violates`` by the study's SLO.  # [request]"""

    request_id: npt.NDArray[np.int64]
    scheduled_at_s: Floats
    end_s: Floats  # done, or the E2E limit where it never got done
    e2e_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    lateness_s: Floats
    itl_s: npt.NDArray[np.object_]
    outcome: npt.NDArray[np.object_]
    ok: Flags
    sent: Flags
    in_window: Flags
    counted: Flags
    violates: Flags
    contradicting: Flags  # a stated latency is not what the row's own times say


def read_requests(record: RunRecord) -> Requests:
    """The columns; where a stated latency and the row's times differ, the larger one counts."""
    table, study = record.requests, record.config["study"]
    slo = study["slo"]
    at_s, done_s = floats(table, "scheduled_at_s"), floats(table, "done_at_s")
    first_s, tokens = floats(table, "first_token_at_s"), floats(table, "completion_tokens")
    sent_s = floats(table, "sent_at_s")
    gaps = np.where(tokens > 1, tokens - 1, np.nan)
    outcome = np.array(table.column("outcome").to_pylist(), dtype=object)
    ok = outcome == str(Outcome.OK)
    done_ok_s = np.where(ok, done_s, np.nan)  # a failure has an end, but no latency
    latencies = {}
    contradicting = np.zeros(len(at_s), dtype=bool)
    for name, computed in (
        ("e2e_s", done_ok_s - at_s),
        ("ttft_s", first_s - at_s),
        ("tpot_s", (done_ok_s - first_s) / gaps),
        ("lateness_s", sent_s - at_s),
    ):
        stated = floats(table, name)
        contradicting |= ~np.isclose(stated, computed, rtol=0, atol=_ROUNDING_S, equal_nan=True)
        latencies[name] = np.fmax(stated, computed)
    violates = ~ok | beyond_slo(
        slo, **{name: latencies[name] for name in ("e2e_s", "ttft_s", "tpot_s")}
    )
    return Requests(
        request_id=table.column("request_id").to_numpy(),
        scheduled_at_s=at_s,
        end_s=np.where(np.isnan(done_s), at_s + slo["e2e_s"], done_s),
        **latencies,
        itl_s=np.array([*table.column("itl_s").to_pylist(), None], dtype=object)[:-1],
        outcome=outcome,
        ok=ok,
        sent=~np.isnan(sent_s),
        in_window=within(at_s, planned_windows(record.events)),
        counted=(at_s >= study["warmup_s"]) & (at_s < study["horizon_s"]),
        violates=violates,
        contradicting=contradicting,
    )


def beyond_slo(slo: Mapping[str, Any], *, e2e_s: Floats, ttft_s: Floats, tpot_s: Floats) -> Flags:
    """Which answered requests are above a limit; what is no number, or impossible, violates."""
    violates: Flags = ~((e2e_s >= 0.0) & (e2e_s <= slo["e2e_s"]))
    if slo["ttft_s"] is not None:
        violates |= ~(ttft_s <= slo["ttft_s"])
    if slo["tpot_s"] is not None:  # a single token has no time per further token
        violates |= tpot_s > slo["tpot_s"]
    return violates


def within(at_s: Floats, windows: Iterable[Window]) -> Flags:
    """Which moments lie in some window [start, end)."""
    inside: Flags = np.zeros(len(at_s), dtype=bool)
    for start_s, end_s in windows:
        inside |= (at_s >= start_s) & (at_s < end_s)
    return inside


def floats(table: pa.Table, name: str) -> Floats:
    """A column as float64, null as NaN."""
    values: Floats = table.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False)
    return values


def percentile(values: Floats, q: float) -> float | None:
    """Linear interpolation; None under 20 values."""
    return percentiles(values, (q,))[0]


def percentiles(values: Floats, qs: Sequence[float]) -> list[float | None]:
    """Several of the same values, which are ordered once."""
    known = values[~np.isnan(values)]
    if len(known) < LEAST_FOR_PERCENTILE:
        return [None] * len(qs)
    with np.errstate(invalid="ignore"):  # between two infinities: nan, which the gate refuses
        found: list[float | None] = np.quantile(known, qs, method="linear").tolist()
    return found


def run_metrics(record: RunRecord) -> RunMetrics:
    """All figures of one run."""
    requests = read_requests(record)
    return RunMetrics(
        arm=record.arm.label,
        kind=record.arm.kind,
        seed=record.seed,
        status=record.status,
        why=record.why,
        source=_text(record, "source"),
        engine=_text(record, "engine"),
        engine_version=_text(record, "engine_version"),
        request_hash=recorded_request_hash(record),
        **_counts(record, requests),
        **_latencies(requests),
        **_merges(record, violations=int((requests.violates & requests.counted).sum())),
        **_training(record.train),
        blind_ticks=sum(isinstance(e, Ticked) and e.sample.blind for e in record.events),
        serving_pressure_mean=_pressure(record),
        faults=_faults(record, requests),
        **_finished_islands(record),
    )


def _text(record: RunRecord, key: str) -> str:
    value = record.provenance.get(key)
    return "unknown" if value is None else str(value)


def recorded_request_hash(record: RunRecord) -> str:
    """Hash of the request file as requests.parquet has it."""
    return request_hash(_scheduled(record.requests))


def _scheduled(table: pa.Table) -> Iterable[Request]:
    names = ("request_id", "sidecar", "scheduled_at_s", "prompt_tokens", "output_tokens")
    columns = table.select([*names, "prompt_seed"]).to_pylist()
    return (Request(**row) for row in sorted(columns, key=lambda row: int(row["request_id"])))


def _counts(record: RunRecord, r: Requests) -> dict[str, Any]:
    study = record.config["study"]
    counted, violates = r.counted, r.counted & r.violates
    n, failed = int(counted.sum()), int((counted & ~r.ok).sum())
    starts_s = [e.planned_start_s for e in record.events if isinstance(e, MergeStarted)]
    return {
        "requests_scheduled_all": len(counted),
        "requests_scheduled": n,
        "requests_sent": int((counted & r.sent).sum()),
        "requests_ok": n - failed,
        "requests_failed": failed,
        "outcomes": dict(sorted(Counter(str(o) for o in r.outcome[counted]).items())),
        "violations": int(violates.sum()),
        "violation_rate": int(violates.sum()) / n if n else None,
        "violations_not_yet_arrived": int(
            (violates & ~in_flight_at(r.scheduled_at_s, r.end_s, starts_s)).sum()
        )
        if starts_s
        else None,
        "requests_in_windows": int((counted & r.in_window).sum()),
        "violations_in_windows": int((violates & r.in_window).sum()),
        "goodput_rps": int((counted & ~r.violates).sum()) / (study["horizon_s"] - study["warmup_s"])
        if n
        else None,
    }


def in_flight_at(at_s: Floats, end_s: Floats, starts_s: Sequence[float]) -> Flags:
    """Requests that had arrived and were not done when some window began."""
    before: Flags = np.zeros(len(at_s), dtype=bool)
    for start_s in starts_s:
        before |= (at_s < start_s) & (end_s > start_s)
    return before


def _latencies(r: Requests) -> dict[str, Any]:
    fine = r.counted & r.ok
    gaps = r.itl_s[fine]
    pooled = np.array([g for row in gaps for g in row], dtype=np.float64)
    sent = r.counted & r.sent
    return {
        "e2e_p50_s": percentile(r.e2e_s[fine], 0.50),
        "e2e_p95_s": percentile(r.e2e_s[fine], 0.95),
        "e2e_p99_s": percentile(r.e2e_s[fine], 0.99),
        "ttft_p50_s": percentile(r.ttft_s[fine], 0.50),
        "ttft_p95_s": percentile(r.ttft_s[fine], 0.95),
        "tpot_p50_s": percentile(r.tpot_s[fine], 0.50),
        "tpot_p95_s": percentile(r.tpot_s[fine], 0.95),
        "itl_p95_s": percentile(pooled, 0.95) if len(gaps) >= LEAST_FOR_PERCENTILE else None,
        "lateness_p99_outside_s": percentile(r.lateness_s[sent & ~r.in_window], 0.99),
        "lateness_p99_inside_s": percentile(r.lateness_s[sent & r.in_window], 0.99),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """One real merge: its planned window and, once it finished, what the islands did."""

    started: MergeStarted
    finished: MergeFinished | None

    @property
    def slowest(self) -> MergePart | None:
        """The island with the longest real work."""
        parts = self.finished.parts if self.finished is not None else ()
        return max(parts, key=lambda p: p.real_s, default=None)

    @property
    def planned_s(self) -> float:
        return self.started.planned_end_s - self.started.planned_start_s


def real_merges(record: RunRecord) -> tuple[Merge, ...]:
    """Merges that were not suppressed, in order."""
    finished = {e.round: e for e in record.events if isinstance(e, MergeFinished)}
    return tuple(
        Merge(started=e, finished=finished.get(e.round))
        for e in record.events
        if isinstance(e, MergeStarted) and not e.suppressed
    )


def marked_windows(record: RunRecord) -> tuple[MergeStarted, ...]:
    """Merges and, in a placebo, the windows that were only marked."""
    return tuple(e for e in record.events if isinstance(e, MergeStarted))


def _merges(record: RunRecord, *, violations: int) -> dict[str, Any]:
    merges, windows = real_merges(record), marked_windows(record)
    slowest = [m.slowest for m in merges]
    known = [p for p in slowest if p is not None]
    whole = len(known) == len(merges)
    planned_s = sum(m.planned_s for m in merges)
    emulated_s = sum((p.emulated_s for p in known), 0.0) if whole else None
    return {
        "merge_count": len(merges),
        "marked_windows": len(windows),
        "merge_planned_s": sum((w.planned_end_s - w.planned_start_s for w in windows), 0.0),
        "merge_real_s": sum((p.real_s for p in known), 0.0) if whole else None,
        "merge_emulated_s": emulated_s,
        "merge_emulated_share": None
        if emulated_s is None or not merges
        else emulated_s / planned_s,
        "merge_overran": sum(m.finished is not None and m.finished.overran for m in merges),
        "merge_late_end_max_s": _late_end_max_s(merges),
        "merge_steps_min": _steps_min(merges, record.train),
        "violations_per_merge": violations / len(merges) if merges else None,
        "merge_parts_mean_s": _part_means(merges),
        "hashes_equal": _hashes_equal(merges),
        "forced_share": _forced_share(record),
    }


def _late_end_max_s(merges: Sequence[Merge]) -> float | None:
    """How long after its planned end a window ended: its load did not stop, or did not get to run.

    At least 0; None without a finished merge.
    """
    late_s = [m.finished.at_s - m.started.planned_end_s for m in merges if m.finished is not None]
    return max(0.0, *late_s) if late_s else None


def _steps_min(merges: Sequence[Merge], train: pa.Table) -> int | None:
    """Least inner steps that an island began since its merge before, or since the start.

    An island makes no step until the real work of a merge is done, so the ends of that part them.
    None without a finished merge, or without training rows.
    """
    if not train.num_rows:
        return None
    island, at_s = train.column("island").to_numpy(), floats(train, "at_s")
    parts = [p for m in merges if m.finished is not None for p in m.finished.parts]
    counts: list[int] = []
    for i in np.unique(island):
        ends_s = [-np.inf, *sorted(p.ended_at_s for p in parts if p.island == i)]
        counts += np.diff(np.searchsorted(np.sort(at_s[island == i]), ends_s)).tolist()
    return min(counts, default=None)


def _part_means(merges: Sequence[Merge]) -> dict[str, float]:
    parts = [p for m in merges if m.finished is not None for p in m.finished.parts]
    names = [
        "wait_s",
        "codec_s",
        "all_reduce_s",
        "outer_step_s",
        "checkpoint_s",
        "real_s",
        "emulated_s",
        "fill_cpu_s",
    ]
    if not parts:
        return {}
    if any(p.export_s > 0 for p in parts):  # only where a server is given the weights
        names.append("export_s")
    return {n.removesuffix("_s"): float(np.mean([getattr(p, n) for p in parts])) for n in names}


def _hashes_equal(merges: Sequence[Merge]) -> bool | None:
    """None without merges, or when a merge never told."""
    told = [m.finished.parts for m in merges if m.finished is not None]
    if any(len({p.parameter_hash for p in parts}) > 1 for parts in told):
        return False
    return True if merges and len(told) == len(merges) and all(told) else None


def _forced_share(record: RunRecord) -> float | None:
    reasons = [
        e.decision.reason
        for e in record.events
        if isinstance(e, Decided) and e.decision.action is Action.MERGE
    ]
    return sum(r in FORCED for r in reasons) / len(reasons) if reasons else None


def _training(train: pa.Table) -> dict[str, Any]:
    losses: dict[str, list[float]] = defaultdict(list)
    islands = [str(i) for i in train.column("island").to_pylist()]
    order = np.lexsort((floats(train, "step"), floats(train, "round"), floats(train, "at_s")))
    loss = floats(train, "loss")
    for i in order:
        losses[islands[i]] += [] if np.isnan(loss[i]) else [float(loss[i])]
    ends = {
        island: (_mean(values[:LOSS_STEPS]), _mean(values[-LOSS_STEPS:]))
        for island, values in sorted(losses.items())
    }
    last_s = float(np.max(floats(train, "at_s"), initial=0.0))
    tokens = float(floats(train, "tokens").sum())
    return {
        "train_loss_start": _mean([a for a, _ in ends.values() if a is not None]),
        "train_loss_end": _mean([b for _, b in ends.values() if b is not None]),
        "train_loss_by_island": ends,
        "train_tokens_per_s": tokens / last_s if last_s > 0 else None,
        "train_steps": len(islands),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _pressure(record: RunRecord) -> float | None:
    study, at_s = record.config["study"], floats(record.pressure, "at_s")
    serving = floats(record.pressure, "serving")
    inside = (at_s >= study["warmup_s"]) & (at_s < study["horizon_s"]) & ~np.isnan(serving)
    return _mean(serving[inside].tolist())


def _finished_islands(record: RunRecord) -> dict[str, Any]:
    """What the islands said at the end; late steps unknown when none came to it."""
    finished = [e for e in record.events if isinstance(e, IslandFinished)]
    return {
        "train_late_steps": sum(e.late_steps for e in finished) if finished else None,
        "island_warnings": tuple(f"island {e.island}: {w}" for e in finished for w in e.warnings),
    }


def _faults(record: RunRecord, r: Requests) -> tuple[str, ...]:
    faults = [f"{e.kind}: {e.what}" for e in record.events if isinstance(e, Faulted)]
    if r.contradicting.any():
        first = int(r.request_id[np.argmax(r.contradicting)])
        faults.append(
            f"record_contradicts: {int(r.contradicting.sum())} rows of requests.parquet state a "
            f"latency that is not what their times say, first request {first}"
        )
    return tuple(faults)
