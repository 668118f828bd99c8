"""Columns of a request file before it is ordered and numbered: synthetic, or a slice of a trace."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orchestrator.workload.arrivals import arrivals
from orchestrator.workload.config import (
    ReadOptions,
    SyntheticConfig,
    TokenRange,
    TraceConfig,
    TraceSource,
)
from orchestrator.workload.servegen import dataset_path
from orchestrator.workload.slices import US_PER_S, Slices, cut, pick, rows_before
from orchestrator.workload.traces import Trace, TraceWarning, read_trace
from orchestrator.workload.transforms import rate_scaled, scaled_tokens, superposed
from policies.streams import stream

Ints = npt.NDArray[np.int64]
PROMPT_SEEDS = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One entry a request; in no order."""

    at_us: Ints
    sidecar: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    prompt_seed: Ints


def join(drafts: Sequence[Draft]) -> Draft:
    """All requests of several streams."""
    return Draft(
        at_us=np.concatenate([d.at_us for d in drafts]),
        sidecar=np.concatenate([d.sidecar for d in drafts]),
        prompt_tokens=np.concatenate([d.prompt_tokens for d in drafts]),
        output_tokens=np.concatenate([d.output_tokens for d in drafts]),
        prompt_seed=np.concatenate([d.prompt_seed for d in drafts]),
    )


def synthetic(load: SyntheticConfig, *, seed: int, horizon_s: float, sidecar: int) -> Draft:
    """One sidecar's own stream; another sidecar more leaves it as it is."""
    at_s = arrivals(load, horizon_s=horizon_s, rng=stream(seed, "arrivals", sidecar))
    size = len(at_s)
    prompts = _lengths(load.prompt_tokens, size=size, rng=stream(seed, "prompt_tokens", sidecar))
    outputs = _lengths(load.output_tokens, size=size, rng=stream(seed, "output_tokens", sidecar))
    return Draft(
        at_us=np.floor(at_s * US_PER_S).astype(np.int64),
        sidecar=np.full(size, sidecar),
        prompt_tokens=prompts,
        output_tokens=outputs,
        prompt_seed=stream(seed, "prompts", sidecar).integers(PROMPT_SEEDS, size=size),
    )


def from_trace(
    load: TraceConfig, *, seed: int, horizon_s: float, sidecars: int, study_dir: Path
) -> Draft:
    """Slice ``seed`` of the trace, its rows dealt to the sidecars at random."""
    trace, slices = trace_slices(load, horizon_s=horizon_s, study_dir=study_dir)
    mine = pick(slices, seed=seed, trace=trace, config=load, horizon_s=horizon_s)
    size = len(mine.rows)
    return Draft(
        at_us=mine.at_us,
        sidecar=stream(seed, "sidecars").integers(sidecars, size=size),
        prompt_tokens=scaled_tokens(
            trace.context_tokens[mine.rows], scale=load.token_scale, clip=load.prompt_tokens_clip
        ),
        output_tokens=scaled_tokens(
            trace.generated_tokens[mine.rows], scale=load.token_scale, clip=load.output_tokens_clip
        ),
        prompt_seed=stream(seed, "prompts").integers(PROMPT_SEEDS, size=size),
    )


def since(draft: Draft, start_us: int) -> Draft:
    """The requests from ``start_us`` on, which becomes time 0."""
    if not start_us:
        return draft
    kept = draft.at_us >= start_us
    return Draft(
        at_us=draft.at_us[kept] - start_us,
        sidecar=draft.sidecar[kept],
        prompt_tokens=draft.prompt_tokens[kept],
        output_tokens=draft.output_tokens[kept],
        prompt_seed=draft.prompt_seed[kept],
    )


def before_slice(
    load: TraceConfig, *, seed: int, horizon_s: float, history_s: float, study_dir: Path
) -> Ints:
    """Run times below 0, in microseconds, of the trace's rows just before the seed's slice."""
    trace, slices = trace_slices(load, horizon_s=horizon_s, study_dir=study_dir)
    mine = pick(slices, seed=seed, trace=trace, config=load, horizon_s=horizon_s)
    return rows_before(trace, mine, config=load, history_s=history_s)


def trace_slices(load: TraceConfig, *, horizon_s: float, study_dir: Path) -> tuple[Trace, Slices]:
    """The trace of a study and its qualifying windows; parsed once while the files are unchanged.

    Superposed and rate-scaled before it is cut; both are the same for all seeds of the study.
    """
    sources: tuple[TraceConfig | TraceSource, ...] = (load, *load.superpose)
    traces = [read_source(study_dir / source.path, reading(source)) for source in sources]
    trace = superposed(traces) if len(traces) > 1 else traces[0]
    if load.rate_scale != 1.0:
        trace = rate_scaled(trace, scale=load.rate_scale, spread_s=load.rate_scale_spread_s, seed=0)
    return trace, cut(trace, config=load, horizon_s=horizon_s)


def load_steps(load: TraceConfig, trace: Trace, *, horizon_s: float) -> tuple[str, ...]:
    """Everything done to the trace of a study on the way to its request files, in order."""
    prompt, output, rule = load.prompt_tokens_clip, load.output_tokens_clip, load.slice
    thin = () if load.thin == 1.0 else (f"thinned to {load.thin:g} with seed 0",)
    return (
        *trace.steps,
        *thin,
        f"cut into windows of {horizon_s * load.time_scale:g} s from {rule.offset_s:g} s on; "
        "seed k takes the k-th that meets load.slice",
        f"time scale {load.time_scale:g}",
        f"tokens times {load.token_scale:g}, prompt in {prompt.low}..{prompt.high}, output in "
        f"{output.low}..{output.high}",
    )


def reading(load: ReadOptions) -> ReadOptions:
    """The part of a config that says how to read the file."""
    return ReadOptions(**{name: getattr(load, name) for name in ReadOptions.model_fields})


def read_source(path: Path, options: ReadOptions) -> Trace:
    """The file as read, before anything is laid over it; once while it is unchanged."""
    stamps = _stamp(path), _stamp(dataset_path(path, options))
    if stamps[0] is None:
        return read_trace(path, options)  # says what is wrong with the path
    return _read_once(path, options, stamps)


Stamp = tuple[int, int] | None  # time of change in ns, bytes; None: no such file


def _stamp(path: Path) -> Stamp:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=4)
def _read_once(path: Path, options: ReadOptions, stamps: tuple[Stamp, Stamp]) -> Trace:
    with warnings.catch_warnings():  # a study's plan says them as its notes
        warnings.simplefilter("ignore", TraceWarning)
        return read_trace(path, options)


def _lengths(tokens: TokenRange, *, size: int, rng: np.random.Generator) -> Ints:
    return rng.integers(tokens.low, tokens.high, endpoint=True, size=size)
