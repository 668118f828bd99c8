"""The request file of a seed: when, how many tokens, which prompt; equal in every arm.

Times are whole microseconds, so that JSON and parquet give them back exactly.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from actors.load.request import Request
from orchestrator.workload.config import (
    BurstsConfig,
    ClosedLoopConfig,
    DiurnalConfig,
    LoadConfig,
    SyntheticConfig,
    TraceConfig,
)
from orchestrator.workload.drafts import (
    Draft,
    before_slice,
    from_trace,
    join,
    since,
    synthetic,
)
from orchestrator.workload.slices import US_PER_S


class Scheduled(Protocol):
    """What a hash needs: a Request, a RequestRow, or anything with the same names."""

    @property
    def request_id(self) -> int: ...
    @property
    def sidecar(self) -> int: ...
    @property
    def scheduled_at_s(self) -> float: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def prompt_seed(self) -> int: ...


def make_requests(
    load: LoadConfig,
    *,
    seed: int,
    horizon_s: float,
    sidecars: int,
    study_dir: Path,
    history_s: float = 0.0,
) -> tuple[Request, ...]:
    """The requests of ``seed`` in [0, horizon_s), in order of time.

    With ``history_s`` a synthetic law starts so long before 0 (another draw of the seed's traffic);
    slices of a trace stay what they are.

    Each sidecar has its own arrival stream: independent ones when synthetic; the rows of a trace
    slice are dealt at random, and the slice rule holds for all sidecars together.
    """
    if sidecars < 1:
        raise ValueError(f"sidecars={sidecars}; requests need at least 1 sidecar to go to")
    if isinstance(load, ClosedLoopConfig):
        raise ValueError(
            "load.kind='closed': when a user asks again depends on the answers, so no request file "
            "can be made beforehand; use it in a replay, or give an open load"
        )
    if isinstance(load, TraceConfig):
        draft = from_trace(
            load, seed=seed, horizon_s=horizon_s, sidecars=sidecars, study_dir=study_dir
        )
    else:
        with _fits_into_memory(load.kind, horizon_s=horizon_s + history_s):
            draft = since(
                _streams(
                    load, seed=seed, history_s=history_s, horizon_s=horizon_s, sidecars=sidecars
                ),
                round(history_s * US_PER_S),
            )
    if not len(draft.at_us):
        raise ValueError(
            f"load of kind {load.kind!r} makes no request in {horizon_s:g} s with seed {seed}; "
            "raise its rate or the horizon"
        )
    return _numbered(draft)


@contextmanager
def _fits_into_memory(kind: str, *, horizon_s: float) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise ValueError(
            f"load.kind={kind!r}: its requests of {horizon_s:g} s do not fit into memory "
            f"({error}); lower its rates, or horizon_s"
        ) from error


def earlier_arrivals(
    load: LoadConfig,
    *,
    seed: int,
    horizon_s: float,
    history_s: float,
    sidecars: int,
    study_dir: Path,
) -> npt.NDArray[np.int64]:
    """Times in [-history_s, 0) in microseconds, ascending, over all sidecars: what came before the
    requests of ``make_requests``. ValueError when a trace does not reach back so far.
    """
    if isinstance(load, ClosedLoopConfig):
        raise ValueError("load.kind='closed' has no traffic before its run")
    if isinstance(load, TraceConfig):
        return before_slice(
            load, seed=seed, horizon_s=horizon_s, history_s=history_s, study_dir=study_dir
        )
    start_us = round(history_s * US_PER_S)
    every = _streams(load, seed=seed, history_s=history_s, horizon_s=horizon_s, sidecars=sidecars)
    return np.sort(every.at_us[every.at_us < start_us]) - start_us


def _streams(
    load: SyntheticConfig, *, seed: int, history_s: float, horizon_s: float, sidecars: int
) -> Draft:
    """Every sidecar's stream over [-history_s, horizon_s), in times from -history_s on."""
    if history_s and isinstance(load, BurstsConfig | DiurnalConfig):
        load = load.model_copy(update={"phase_s": load.phase_s + history_s})
    return join(
        [
            synthetic(load, seed=seed, horizon_s=history_s + horizon_s, sidecar=i)
            for i in range(sidecars)
        ]
    )


def _numbered(draft: Draft) -> tuple[Request, ...]:
    order = np.lexsort((draft.sidecar, draft.at_us))  # stable: by time, then by sidecar
    columns = (draft.sidecar, draft.at_us, draft.prompt_tokens, draft.output_tokens)
    rows = zip(*(c[order].tolist() for c in (*columns, draft.prompt_seed)), strict=True)
    return tuple(
        Request(
            request_id=request_id,
            sidecar=sidecar,
            scheduled_at_s=at_us / US_PER_S,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            prompt_seed=prompt_seed,
        )
        for request_id, (sidecar, at_us, prompt_tokens, output_tokens, prompt_seed) in enumerate(
            rows
        )
    )


def request_hash(requests: Iterable[Scheduled]) -> str:
    """sha256 over every field of every request, in the order given."""
    digest = hashlib.sha256(b"lull requests 1\n")
    for r in requests:
        digest.update(
            struct.pack(
                "<qqdqqq",
                r.request_id,
                r.sidecar,
                r.scheduled_at_s,
                r.prompt_tokens,
                r.output_tokens,
                r.prompt_seed,
            )
        )
    return digest.hexdigest()


def check_requests(requests: Sequence[Request], *, max_model_len_tokens: int) -> None:
    """Refuse a request file with a request that the model cannot hold."""
    too_long = [r for r in requests if r.prompt_tokens + r.output_tokens > max_model_len_tokens]
    if not too_long:
        return
    worst = max(too_long, key=lambda r: r.prompt_tokens + r.output_tokens)
    raise ValueError(
        f"request {worst.request_id} at {worst.scheduled_at_s:g} s has {worst.prompt_tokens} "
        f"prompt + {worst.output_tokens} output = {worst.prompt_tokens + worst.output_tokens} "
        f"tokens, the model holds {max_model_len_tokens} ({len(too_long)} of {len(requests)} "
        "requests are too long); lower the load's token ranges or clips, or raise "
        "max_model_len_tokens"
    )
