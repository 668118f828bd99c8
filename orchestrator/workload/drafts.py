"""Columns of a request file before it is ordered and numbered: synthetic, or a slice of a trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orchestrator.workload.arrivals import bursts, onoff, poisson
from orchestrator.workload.config import (
    BurstsConfig,
    OnOffConfig,
    PoissonConfig,
    TokenRange,
    TraceConfig,
)
from orchestrator.workload.slices import US_PER_S, Slices, cut, pick
from orchestrator.workload.traces import Trace, read_trace
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


def synthetic(
    load: PoissonConfig | BurstsConfig | OnOffConfig, *, seed: int, horizon_s: float, sidecar: int
) -> Draft:
    """One sidecar's own stream; another sidecar more leaves it as it is."""
    rng = stream(seed, "arrivals", sidecar)
    match load:
        case PoissonConfig():
            at_s = poisson(load, horizon_s=horizon_s, rng=rng)
        case BurstsConfig():
            at_s = bursts(load, horizon_s=horizon_s, rng=rng)
        case OnOffConfig():
            at_s = onoff(load, horizon_s=horizon_s, rng=rng)
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
        prompt_tokens=_scaled(trace.context_tokens[mine.rows], load.prompt_tokens_clip, load),
        output_tokens=_scaled(trace.generated_tokens[mine.rows], load.output_tokens_clip, load),
        prompt_seed=stream(seed, "prompts").integers(PROMPT_SEEDS, size=size),
    )


def trace_slices(load: TraceConfig, *, horizon_s: float, study_dir: Path) -> tuple[Trace, Slices]:
    """The trace of a study and its qualifying windows; parsed once while the file is unchanged."""
    path = study_dir / load.path
    try:
        stat = path.stat()
    except OSError:
        trace = read_trace(path)  # says what is wrong with the path
    else:
        trace = _read_once(path, stat.st_mtime_ns, stat.st_size)
    return trace, cut(trace, config=load, horizon_s=horizon_s)


@lru_cache(maxsize=4)
def _read_once(path: Path, mtime_ns: int, size_bytes: int) -> Trace:
    return read_trace(path)


def _lengths(tokens: TokenRange, *, size: int, rng: np.random.Generator) -> Ints:
    return rng.integers(tokens.low, tokens.high, endpoint=True, size=size)


def _scaled(tokens: Ints, clip: TokenRange, load: TraceConfig) -> Ints:
    scaled: Ints = np.clip(np.rint(tokens * load.token_scale), clip.low, clip.high).astype(np.int64)
    return scaled
