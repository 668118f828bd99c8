"""Exposure as published: so many windows, from traces that are repeated, and no policy at all.

The times of the published merges are unknown. Every policy therefore gets windows placed uniformly
at random in its trace (evenly where its interval is fixed): whatever differs between two of them
is their exposure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.paper_regimes.published import Exposure, Published
from orchestrator.replay.closed_server import ClosedServer
from orchestrator.replay.config import PlantConfig
from orchestrator.workload.config import ClosedLoopConfig, CrowdConfig, TokenRange
from policies.streams import stream

Floats = npt.NDArray[np.float64]
LEAST_DISTANCE_S = 18.0  # of two starts: that of the published random schedules
KNOWS_BURSTS = "stage12_calibrated_replay"
EVEN = ("fixed_h_256", "fixed_h_512")
SLOTS = 16  # more than anybody asks for at once: no queue, as published
PROMPT_TOKENS = 128  # of no effect: the plant's prefill costs nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One replayed run, by the published definitions."""

    windows: float  # realised seconds in windows / length of a window
    requests: int  # asked for before the horizon
    violations: int
    inside: int  # of them, asked for in a window
    p95_ratio: float | None  # inside over outside; None without requests inside

    @property
    def violation_rate(self) -> float:
        return self.violations / self.requests


def paper_plant(published: Published) -> PlantConfig:
    """A step takes as long whatever the batch, for the published latency does not depend on it."""
    return PlantConfig(
        slots=SLOTS,
        step_base_s=published.answer_s / published.tokens,
        step_per_seq_s=0.0,
        prefill_per_token_s=0.0,
        overhead_s=0.0,
        merge_factor=published.factor,
    )


def steady_load(published: Published) -> ClosedLoopConfig:
    return _load(published, users=published.users, crowd=None)


def bursty_load(published: Published) -> ClosedLoopConfig:
    crowd = CrowdConfig(
        users=published.busy_users - published.quiet_users,
        period_s=published.burst_period_s,
        burst_s=published.burst_s,
    )
    return _load(published, users=published.quiet_users, crowd=crowd)


def _load(published: Published, *, users: int, crowd: CrowdConfig | None) -> ClosedLoopConfig:
    return ClosedLoopConfig(
        kind="closed",
        users=users,
        prompt_tokens=TokenRange(low=PROMPT_TOKENS, high=PROMPT_TOKENS),
        output_tokens=TokenRange(low=published.tokens, high=published.tokens),
        crowd=crowd,
    )


def replayed(
    published: Published,
    load: ClosedLoopConfig,
    exposures: Mapping[str, Sequence[Exposure]],
    *,
    replicates: int,
    seed: int,
) -> dict[str, tuple[Figures, ...]]:
    """Every policy's runs; replicate i has the exposure of the policy's i-th published run."""
    plant = paper_plant(published)
    found: dict[str, tuple[Figures, ...]] = {}
    for label, own in exposures.items():
        runs = []
        for replicate in range(replicates):
            name = f"paper_regimes/{label}"
            rng = stream(seed, name, replicate)
            starts = placed(label, own[replicate % len(own)], published, rng=rng)
            runs.append(played(published, plant, load, starts))
        found[label] = tuple(runs)
    return found


def placed(
    label: str, exposure: Exposure, published: Published, *, rng: np.random.Generator
) -> Floats:
    """Starts in [0, horizon) of the trace that is repeated.  # [window], s"""
    if label == KNOWS_BURSTS:
        return outside_bursts(exposure, published, rng=rng)
    n, trace_s = exposure.events, exposure.trace_s
    least_s = trace_s / n if label in EVEN else LEAST_DISTANCE_S
    once = on_a_circle(n, length_s=trace_s, least_s=least_s, rng=rng)
    repeats = int(np.ceil(exposure.horizon_s / trace_s))
    every = (once[None, :] + trace_s * np.arange(repeats)[:, None]).ravel()
    return every[every < exposure.horizon_s]


def on_a_circle(n: int, *, length_s: float, least_s: float, rng: np.random.Generator) -> Floats:
    """n ascending points, uniform among those at least ``least_s`` apart on a circle of that
    length: the rest of the length is cut at random (uniform spacings), then turned at random.
    """
    spare_s = length_s - n * least_s
    if spare_s < -1e-9:
        raise ValueError(f"{n} starts at least {least_s:g} s apart do not fit into {length_s:g} s")
    gaps = least_s + max(spare_s, 0.0) * rng.dirichlet(np.ones(n))
    return np.sort((np.cumsum(gaps) + rng.uniform(0.0, length_s)) % length_s)


def outside_bursts(exposure: Exposure, published: Published, *, rng: np.random.Generator) -> Floats:
    """Starts that touch no burst, else uniform and as far apart as the random ones; by rejection
    one at a time, then of the whole.
    """
    last_s = exposure.horizon_s - published.window_s
    while True:
        at = np.sort(rng.uniform(0.0, last_s, 16 * exposure.events))
        into = at % published.burst_period_s
        quiet = (into >= published.burst_s) & (
            into <= published.burst_period_s - published.window_s
        )
        free = at[quiet]
        if len(free) < exposure.events:
            continue
        chosen = np.sort(rng.choice(free, exposure.events, replace=False))
        if np.all(np.diff(chosen) >= LEAST_DISTANCE_S):
            return chosen


def played(
    published: Published, plant: PlantConfig, load: ClosedLoopConfig, starts: Floats
) -> Figures:
    """One run of the closed loop with these windows, cut at the horizon."""
    ends = np.minimum(starts + published.window_s, published.horizon_s)
    server = ClosedServer(plant, config=load, seed=0)  # tokens are fixed: nothing is drawn
    server.add_windows(np.column_stack([starts, ends]), np.full(len(starts), plant.merge_factor))
    server.advance(published.horizon_s + 60.0)  # the last answers
    served = server.served()
    asked = served.at_s < published.horizon_s
    at_s = served.at_s[asked]
    took_s = served.done_at_s[asked] - at_s
    began, over = (np.searchsorted(edges, at_s, side="right") for edges in (starts, ends))
    inside = began > over
    return Figures(
        windows=float((ends - starts).sum()) / published.window_s,
        requests=len(at_s),
        violations=int((took_s > published.slo_s).sum()),
        inside=int(inside.sum()),
        p95_ratio=float(np.quantile(took_s[inside], 0.95) / np.quantile(took_s[~inside], 0.95))
        if inside.any()
        else None,
    )
