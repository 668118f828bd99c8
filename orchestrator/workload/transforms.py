"""What can be done to a trace: slice, time scale, rate scale, tokens, thinning, superposition.

Each gives a new trace and says so in its ``steps``; whatever is drawn, is drawn from a stated seed.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from orchestrator.workload.config import TokenRange
from orchestrator.workload.trace import Ints, Trace, frozen
from policies.streams import stream

COARSE_NS = 10_000_000  # a grid finer than 10 ms is resolution, not an artefact


def grid_step_ns(at_ns: Ints) -> int | None:
    """The step when at least every other request ties and all times lie on one coarse grid."""
    starts = np.concatenate([[True], at_ns[1:] != at_ns[:-1]])
    distinct = at_ns[starts]
    if len(distinct) < 3 or 2 * len(distinct) > len(at_ns):
        return None
    gaps = np.diff(distinct)
    step = int(np.median(gaps))
    off = np.abs(gaps - step * np.rint(gaps / step))
    return step if step >= COARSE_NS and off.max() <= 0.01 * step else None


def dequantised(trace: Trace, *, step_ns: int, seed: int) -> Trace:
    """Each request at a uniform place of the step that its time begins."""
    shift = stream(seed, "dequantise").integers(step_ns, size=len(trace.at_ns))
    step = f"each time spread over its {step_ns / 1e9:g} s step with seed {seed}"
    return _remade(trace, at_ns=trace.at_ns + shift, rows=None, step=step)


def time_scaled(trace: Trace, *, scale: float) -> Trace:
    """``scale`` seconds of the trace become one second."""
    _check_positive("time_scale", scale)
    at_ns = np.floor(trace.at_ns / scale).astype(np.int64)
    return _remade(trace, at_ns=at_ns, rows=None, step=f"time scale {scale:g}")


def thinned(trace: Trace, *, share: float, seed: int) -> Trace:
    """Each request is kept with probability ``share``; ValueError when none is."""
    if not 0 < share <= 1:
        raise ValueError(f"thin={share:g}; give a share above 0 and up to 1")
    rows = np.flatnonzero(stream(seed, "thin").random(len(trace.at_ns)) < share)
    if not len(rows):
        raise ValueError(f"{trace.path}: thin={share:g} keeps no request; raise it")
    step = f"thinned to {share:g} with seed {seed}: {len(rows)} of {len(trace.at_ns)} requests"
    return _remade(trace, at_ns=trace.at_ns[rows], rows=rows, step=step)


def rate_scaled(trace: Trace, *, scale: float, spread_s: float, seed: int) -> Trace:
    """Each request stands ``scale`` times on average: floor(scale) times, and once more with the
    rest as probability. The first copy keeps its time, others come within ``spread_s`` after it.
    """
    _check_positive("rate_scale", scale)
    rng = stream(seed, "rate_scale")
    copies = int(scale) + (rng.random(len(trace.at_ns)) < scale % 1)
    rows = np.repeat(np.arange(len(trace.at_ns)), copies)
    if not len(rows):
        raise ValueError(f"{trace.path}: rate_scale={scale:g} keeps no request; raise it")
    later = np.concatenate([[False], rows[1:] == rows[:-1]])
    shift = np.where(later, rng.integers(max(1, round(spread_s * 1e9)), size=len(rows)), 0)
    step = f"rate scale {scale:g} (copies within {spread_s:g} s) with seed {seed}"
    return _remade(trace, at_ns=trace.at_ns[rows] + shift, rows=rows, step=step)


def tokens_scaled(
    trace: Trace, *, scale: float, prompt_clip: TokenRange, output_clip: TokenRange
) -> Trace:
    """Token counts times ``scale``, rounded, then clipped."""
    _check_positive("token_scale", scale)
    columns = frozen(
        scaled_tokens(trace.context_tokens, scale=scale, clip=prompt_clip),
        scaled_tokens(trace.generated_tokens, scale=scale, clip=output_clip),
    )
    step = (
        f"tokens times {scale:g}, prompt in {prompt_clip.low}..{prompt_clip.high}, "
        f"output in {output_clip.low}..{output_clip.high}"
    )
    return replace(
        trace,
        context_tokens=columns[0],
        generated_tokens=columns[1],
        steps=(*trace.steps, step),
    )


def scaled_tokens(tokens: Ints, *, scale: float, clip: TokenRange) -> Ints:
    scaled: Ints = np.clip(np.rint(tokens * scale), clip.low, clip.high).astype(np.int64)
    return scaled


def sliced(trace: Trace, *, start_s: float, length_s: float) -> Trace:
    """Requests in [start_s, start_s + length_s) after the first; ValueError when there are none."""
    low_ns, high_ns = round(start_s * 1e9), round((start_s + length_s) * 1e9)
    low, high = np.searchsorted(trace.at_ns, [low_ns, high_ns])
    if low == high:
        raise ValueError(
            f"{trace.path}: no request in [{start_s:g}, {start_s + length_s:g}) s of "
            f"{trace.duration_s:g} s"
        )
    rows = np.arange(low, high)
    step = f"sliced to [{start_s:g}, {start_s + length_s:g}) s"
    return _remade(trace, at_ns=trace.at_ns[rows], rows=rows, step=step)


def superposed(traces: Sequence[Trace]) -> Trace:
    """All requests of several traces, each from its own first request on."""
    first = traces[0]
    at_ns = np.concatenate([t.at_ns for t in traces])
    joined = replace(
        first,
        at_ns=at_ns,
        context_tokens=np.concatenate([t.context_tokens for t in traces]),
        generated_tokens=np.concatenate([t.generated_tokens for t in traces]),
        notes=tuple(note for t in traces for note in t.notes),
        steps=tuple(f"{t.path.name}: {step}" for t in traces for step in t.steps),
    )
    step = f"superposed {', '.join(t.path.name for t in traces)}"
    return _remade(joined, at_ns=at_ns, rows=None, step=step)


def _remade(trace: Trace, *, at_ns: Ints, rows: Ints | None, step: str) -> Trace:
    """Times in order again, counted from the first; ``rows`` of the trace belong to them."""
    rows = np.arange(len(at_ns)) if rows is None else rows
    order = np.argsort(at_ns, kind="stable")
    first_ns = int(at_ns[order[0]])
    columns = frozen(
        at_ns[order] - first_ns,
        trace.context_tokens[rows[order]],
        trace.generated_tokens[rows[order]],
    )
    origin = trace.origin
    return replace(
        trace,
        at_ns=columns[0],
        context_tokens=columns[1],
        generated_tokens=columns[2],
        origin=None if origin is None else replace(origin, first_ns=origin.first_ns + first_ns),
        steps=(*trace.steps, step),
    )


def _check_positive(name: str, scale: float) -> None:
    if not 0 < scale < float("inf"):
        raise ValueError(f"{name}={scale:g}; give a number above 0")
