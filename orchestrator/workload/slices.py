"""Cut a trace into disjoint windows of run time and keep those that meet the study's rule.

Seed k takes the k-th qualifying window, so no two seeds share a request of the trace.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.workload.config import SliceRule, TraceConfig
from orchestrator.workload.trace import Trace
from policies.streams import stream

US_PER_S = 1_000_000
MOST_WINDOWS = 100_000
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One qualifying window; ``rows`` index the trace, ``at_us`` is run time from its start."""

    window: int
    start_s: float  # trace time, from the first request of the trace
    rows: Ints
    at_us: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """The qualifying windows in trace order, and how many were refused for what."""

    windows: int
    qualifying: tuple[Slice, ...]
    refused: dict[str, int]  # rule -> windows


def cut(trace: Trace, *, config: TraceConfig, horizon_s: float) -> Slices:
    """Whole windows only: the one in which the trace ends was not seen to its end."""
    length_ns = round(horizon_s * config.time_scale * 1e9)
    offset_ns = round(config.slice.offset_s * 1e9)
    if length_ns * MOST_WINDOWS < int(trace.at_ns[-1]):
        raise ValueError(
            f"{trace.path}: load.time_scale={config.time_scale:g} cuts {trace.duration_s:g} s into "
            f"more than {MOST_WINDOWS} windows; give seconds of the trace for a second of the run"
        )
    windows = max(0, (int(trace.at_ns[-1]) - offset_ns) // max(1, length_ns))
    # Thinned once, before the windows and apart from the study's seeds: all seeds see one table.
    kept = _thinned(trace, config=config)
    kept_ns = trace.at_ns[kept]
    edges = np.searchsorted(kept_ns, offset_ns + length_ns * np.arange(windows + 1))
    qualifying: list[Slice] = []
    refused: dict[str, int] = {}
    for i in range(windows):
        rows = kept[edges[i] : edges[i + 1]]
        start_ns = offset_ns + i * length_ns
        at_us = _run_time_us(
            trace.at_ns[rows] - start_ns, time_scale=config.time_scale, horizon_s=horizon_s
        )
        why = failed_rule(at_us, rule=config.slice, horizon_s=horizon_s)
        if why is None:
            qualifying.append(Slice(window=i, start_s=start_ns / 1e9, rows=rows, at_us=at_us))
        else:
            refused[why] = refused.get(why, 0) + 1
    return Slices(windows=windows, qualifying=tuple(qualifying), refused=refused)


def rows_before(trace: Trace, mine: Slice, *, config: TraceConfig, history_s: float) -> Ints:
    """Run times in [-history_s, 0), in microseconds, of what the trace holds before a slice."""
    start_ns = round(mine.start_s * 1e9)
    length_ns = round(history_s * config.time_scale * 1e9)
    if start_ns < length_ns:
        raise ValueError(
            f"{trace.path}: history.length_s={history_s:g} needs {length_ns / 1e9:g} s of the "
            f"trace before a slice, and a slice starts at {mine.start_s:g} s; raise "
            "load.slice.offset_s or shorten the history"
        )
    at_ns = trace.at_ns[_thinned(trace, config=config)] - start_ns
    at_ns = at_ns[(at_ns >= -length_ns) & (at_ns < 0)]
    return np.floor(at_ns / (1e3 * config.time_scale)).astype(np.int64)


def _thinned(trace: Trace, *, config: TraceConfig) -> Ints:
    """Rows that are kept, ascending."""
    return np.flatnonzero(stream(0, "thin").random(len(trace.at_ns)) < config.thin)


def _run_time_us(at_ns: Ints, *, time_scale: float, horizon_s: float) -> Ints:
    """Whole microseconds before the horizon, whatever the division rounds to."""
    at_us = np.floor(at_ns / (1e3 * time_scale)).astype(np.int64)
    return np.minimum(at_us, int(np.ceil(horizon_s * US_PER_S)) - 1)


def pick(
    slices: Slices, *, seed: int, trace: Trace, config: TraceConfig, horizon_s: float
) -> Slice:
    """The slice of ``seed``, or an error that says what to relax."""
    if seed < len(slices.qualifying):
        return slices.qualifying[seed]
    length_s = horizon_s * config.time_scale
    if not trace.duration_s:
        raise ValueError(
            f"{trace.path}: all its requests ({len(trace.at_ns)}) come at one moment, which is no "
            "window; give a trace that lasts"
        )
    if not slices.windows:
        raise ValueError(
            f"{trace.path}: {trace.duration_s:g} s long, no whole window of horizon_s * time_scale "
            f"= {length_s:g} s after offset_s={config.slice.offset_s:g}; lower load.time_scale"
        )
    refused = "; ".join(f"{count} fail {rule}" for rule, count in slices.refused.items())
    most = len(slices.qualifying) - 1
    seeds = {-1: "", 0: "use seed 0, or "}.get(most, f"use seeds 0 to {most}, or ")
    raise ValueError(
        f"{trace.path}: seed {seed} needs {seed + 1} slices, {len(slices.qualifying)} of "
        f"{slices.windows} windows qualify ({refused or 'none refused'}); "
        f"{seeds}relax load.slice, load.thin or load.time_scale"
    )


def failed_rule(at_us: Ints, *, rule: SliceRule, horizon_s: float) -> str | None:
    """The first condition of the rule that these arrivals break, with its limit."""
    if len(at_us) < rule.min_requests:
        return f"min_requests={rule.min_requests}"
    if len(at_us) > rule.max_requests:
        return f"max_requests={rule.max_requests}"
    if burst_requests(at_us, burst_s=rule.burst_s) > rule.max_burst_requests:
        return f"max_burst_requests={rule.max_burst_requests}"
    if quiet_fraction(at_us, horizon_s=horizon_s) < rule.min_quiet_fraction:
        return f"min_quiet_fraction={rule.min_quiet_fraction:g}"
    return None


def burst_requests(at_us: Ints, *, burst_s: float) -> int:
    """Most arrivals in any [t, t + burst_s); ``at_us`` ascending."""
    if not len(at_us):
        return 0
    ends = np.searchsorted(at_us, at_us + round(burst_s * US_PER_S), side="left")
    return int((ends - np.arange(len(at_us))).max())


def quiet_fraction(at_us: Ints, *, horizon_s: float) -> float:
    """Share of the horizon's 1 s bins with less than half of the mean count."""
    bins = max(1, int(np.ceil(horizon_s)))
    counts = np.bincount(at_us // US_PER_S, minlength=bins)
    return float((counts < len(at_us) / bins / 2).mean())
