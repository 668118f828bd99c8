"""Runs as the fit looks at them: what was asked and when, what merged, and what it took.

The plant answers the same requests in the same windows, so that both can be laid side by side.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from actors.events import MergeStarted
from orchestrator.config import SloConfig
from orchestrator.metrics import Flags, Floats, floats, read_requests, real_merges
from orchestrator.records import ArmSpec, RunRecord
from orchestrator.replay.calibrated import RunKey
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.plant import overheads, paces, serve, slow_windows

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Latencies:
    """What each request of a run took, from its scheduled time; NaN where it never got there."""

    ttft_s: Floats  # [request]
    e2e_s: Floats
    violates: Flags
    ok: Flags


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One run's requests and windows, and its measured latencies."""

    key: RunKey
    arm: ArmSpec
    request_id: Ints  # [request], in order of the scheduled time
    sidecar: Ints
    at_s: Floats  # scheduled: the lateness of the client is part of what is fitted
    prompt_tokens: Ints
    output_tokens: Ints  # as answered; as asked where no answer came
    counted: Flags
    windows: Floats  # [merge, 2] planned start and end of those that took place
    start_ticks: tuple[int, ...]
    real_s: Floats  # [merge] the slowest island's real work, before what fills the window
    horizon_s: float
    slo: SloConfig
    measured: Latencies

    @property
    def merging(self) -> bool:
        return len(self.windows) > 0


def measured_run(record: RunRecord) -> MeasuredRun:
    """A complete run; ValueError for another."""
    if record.status != "complete":
        raise ValueError(f"{record.path}: is {record.status} ({record.why}); it shows nothing")
    r, table = read_requests(record), record.requests
    order = np.lexsort((r.request_id, r.scheduled_at_s))
    done = floats(table, "completion_tokens")
    asked = floats(table, "output_tokens")
    merges = real_merges(record)
    return MeasuredRun(
        key=run_key(record),
        arm=record.arm,
        request_id=r.request_id[order],
        sidecar=floats(table, "sidecar").astype(np.int64)[order],
        at_s=r.scheduled_at_s[order],
        prompt_tokens=floats(table, "prompt_tokens").astype(np.int64)[order],
        output_tokens=np.where(r.ok & (done > 0), done, asked).astype(np.int64)[order],
        counted=r.counted[order],
        windows=_edges([m.started for m in merges]),
        start_ticks=tuple(m.started.tick for m in merges),
        real_s=np.array([0.0 if m.slowest is None else m.slowest.real_s for m in merges]),
        horizon_s=float(record.config["study"]["horizon_s"]),
        slo=SloConfig.model_validate(record.config["study"]["slo"]),
        measured=Latencies(
            ttft_s=r.ttft_s[order],
            e2e_s=r.e2e_s[order],
            violates=r.violates[order],
            ok=r.ok[order],
        ),
    )


def after_real(run: MeasuredRun) -> MeasuredRun:
    """The run with windows that begin where the real work of each merge ended."""
    windows = run.windows.copy()
    windows[:, 0] += run.real_s
    left = windows[:, 0] < windows[:, 1]
    return replace(
        run,
        windows=windows[left],
        start_ticks=tuple(t for t, kept in zip(run.start_ticks, left, strict=True) if kept),
        real_s=np.zeros(int(left.sum())),
    )


def tpot_s(run: MeasuredRun) -> Floats:
    """Measured time per output token after the first; NaN where there is none.  # [request]"""
    gaps = np.where(run.output_tokens > 1, run.output_tokens - 1, np.nan)
    return (run.measured.e2e_s - run.measured.ttft_s) / gaps


def _edges(merges: Sequence[MergeStarted]) -> Floats:
    edges = [(m.planned_start_s, m.planned_end_s) for m in merges]
    return np.array(edges, dtype=np.float64).reshape(-1, 2)


def run_key(record: RunRecord) -> RunKey:
    """Name and content: the same run under another name, or edited, is told apart."""
    digest = hashlib.sha256(f"{record.arm.label} {record.seed}".encode())
    table = record.requests
    for name in ("request_id", "scheduled_at_s", "sent_at_s", "first_token_at_s", "done_at_s"):
        digest.update(np.ascontiguousarray(floats(table, name)).tobytes())
    digest.update("\n".join(table.column("outcome").to_pylist()).encode())
    for event in record.events:
        if isinstance(event, MergeStarted):
            digest.update(f"{event.planned_start_s} {event.planned_end_s}".encode())
    return RunKey(
        name=record.path.name,
        arm=record.arm.label,
        seed=record.seed,
        request_hash=str(record.config.get("request_hash")),
        content_sha256=digest.hexdigest(),
    )


def predicted(
    run: MeasuredRun,
    *,
    plant: PlantConfig,
    noise_seed: int | None = None,
) -> Latencies:
    """The plant's answers to the run's requests in the run's windows; every sidecar on its own.

    ``noise_seed``: another draw of the plant's noise than the one that a replay of the seed has.
    """
    seed = run.key.seed if noise_seed is None else noise_seed
    windows, factors = slow_windows(plant, seed=seed, ticks=run.start_ticks, windows=run.windows)
    own_paces = paces(plant, seed=seed, horizon_s=run.horizon_s)
    waits_s = overheads(plant, seed=seed, request_ids=run.request_id)
    ttft_s, e2e_s = np.full((2, len(run.at_s)), np.nan)
    for sidecar in np.unique(run.sidecar):
        here = run.sidecar == sidecar
        served = serve(
            plant,
            at_s=run.at_s[here],
            prompt_tokens=run.prompt_tokens[here],
            output_tokens=run.output_tokens[here],
            overheads_s=waits_s[here],
            windows=windows,
            factors=factors,
            paces=own_paces,
        )
        ttft_s[here] = served.first_token_at_s - run.at_s[here]
        e2e_s[here] = served.done_at_s - run.at_s[here]
    return Latencies(
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        violates=_violates(run, ttft_s=ttft_s, e2e_s=e2e_s),
        ok=np.isfinite(e2e_s),
    )


def _violates(run: MeasuredRun, *, ttft_s: Floats, e2e_s: Floats) -> Flags:
    slo = run.slo
    found = ~(e2e_s <= slo.e2e_s)
    if slo.ttft_s is not None:
        found |= ~(ttft_s <= slo.ttft_s)
    if slo.tpot_s is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            found |= (e2e_s - ttft_s) / (run.output_tokens - 1) > slo.tpot_s
    return found
