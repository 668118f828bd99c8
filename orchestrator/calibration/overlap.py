"""Requests that merges overlap, against the exact law of uniform placement: additive, so no draws.

A block is one seed's run or one window of a trace; blocks of one cluster are no replicates.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.placement import CONFIDENCE
from orchestrator.calibration.statistics import (
    Interval,
    PermutationResult,
    relative_gain,
    sign_flip,
)
from policies.corridor import Corridor
from policies.streams import stream

Floats = npt.NDArray[np.float64]
Moments = Callable[[Corridor, Floats, int], tuple[float, float]]  # (corridor, cost, budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One placement of ``budget`` merges: cost[t] is that of a merge that starts at tick t."""

    name: str
    cluster: str  # blocks of one cluster (overlapping windows, one hour of a trace) flip together
    corridor: Corridor
    budget: int
    starts: tuple[int, ...]  # ticks
    cost: Floats  # [horizon_ticks + 1] requests in flight at the start, and arriving in [t, t + W)
    new_cost: Floats  # [horizon_ticks + 1] those alone that had not arrived at the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A policy's overlap against exact uniform placement, one entry a cluster."""

    name: str
    new: bool  # the cost that counts not-yet-arrived requests alone
    clusters: tuple[str, ...]
    blocks: int
    policy: tuple[float, ...]  # total over the cluster's blocks
    mean: tuple[float, ...]  # exact, of the same merges placed uniformly
    variance: tuple[float, ...]  # exact; of a cluster of several blocks the upper bound
    flip: PermutationResult  # policy - mean over clusters
    gain: Interval  # (mean - policy) / mean over clusters
    z: float | None  # (sum policy - sum mean) / sqrt(sum variance); None without any variance
    z_p: float | None  # one-sided, standard normal

    @property
    def n(self) -> int:
        return len(self.clusters)


def exact_moments(corridor: Corridor, cost: Floats, budget: int) -> tuple[float, float]:
    """Mean and variance of the total cost of ``budget`` merges placed uniformly."""
    return corridor.moments(cost, budget)


def schedule_problem(block: Block) -> str | None:
    """Why the block's schedule is none of those that uniform placement draws from."""
    if len(block.starts) != block.budget:
        return f"{block.name}: {len(block.starts)} merges, budget {block.budget}"
    if not block.corridor.contains(block.starts):
        return f"{block.name}: schedule {list(block.starts)} is outside {block.corridor}"
    return None


def compare_overlap(
    blocks: Sequence[Block],
    *,
    new: bool,
    gate: GateConfig,
    name: str,
    moments: Moments = exact_moments,
) -> Overlap:
    """Totals by cluster, sign flip and gain over clusters, and the exact-null z.

    z = (sum policy - sum mean) / sqrt(sum variance) is about standard normal when the policy places
    merges uniformly, whatever the traffic. Blocks of one cluster may share traffic, so that their
    placements agree: their variance is taken as (sum of sd)^2, the most that it can be.
    ``name`` keeps random streams apart; ``moments`` may be one that remembers. ValueError, naming
    block and value, for a schedule that is not feasible, a cost that is not finite or negative,
    and for clusters with the same cost, which are no replicates.
    """
    _check(blocks)
    totals: dict[str, list[tuple[float, float, float]]] = {}
    for block in blocks:
        cost = block.new_cost if new else block.cost
        mean, variance = moments(block.corridor, cost, block.budget)
        policy = float(cost[list(block.starts)].sum())
        totals.setdefault(block.cluster, []).append((policy, mean, math.sqrt(max(variance, 0.0))))
    policies, means, sds = (
        tuple(math.fsum(entry[i] for entry in entries) for entries in totals.values())
        for i in range(3)
    )
    return overlap_of(
        policies,
        means,
        sds,
        clusters=tuple(totals),
        blocks=len(blocks),
        new=new,
        gate=gate,
        name=name,
    )


def overlap_of(
    policies: tuple[float, ...],
    means: tuple[float, ...],
    sds: tuple[float, ...],
    *,
    clusters: tuple[str, ...],
    blocks: int,
    new: bool,
    gate: GateConfig,
    name: str,
) -> Overlap:
    """The comparison from each cluster's total, and its mean and sd under uniform placement."""
    z = _z(policies, means, sds)
    cost_name = "new" if new else "all"
    return Overlap(
        name=name,
        new=new,
        clusters=clusters,
        blocks=blocks,
        policy=policies,
        mean=means,
        variance=tuple(sd * sd for sd in sds),
        flip=sign_flip(
            np.subtract(policies, means),
            draws=gate.permutations,
            rng=stream(gate.seed, f"overlap sign flip {cost_name} {name}"),
        ),
        gain=relative_gain(
            policies,
            means,
            confidence=CONFIDENCE,
            draws=gate.resamples,
            rng=stream(gate.seed, f"overlap gain {cost_name} {name}"),
        ),
        z=z,
        z_p=None if z is None else float(stats.norm.cdf(z)),
    )


def _z(policy: Sequence[float], mean: Sequence[float], sd: Sequence[float]) -> float | None:
    """None where the placement could not have changed the cost."""
    spread = math.hypot(*sd)
    if spread <= 1e-9 * (math.fsum(mean) or 1.0):  # rounding of a constant cost
        return None
    return (math.fsum(policy) - math.fsum(mean)) / spread


def _check(blocks: Sequence[Block]) -> None:
    if not blocks:
        raise ValueError("no block to compare; give at least one seed or window")
    seen: dict[bytes, Block] = {}
    for block in blocks:
        for what, cost in (("cost", block.cost), ("new_cost", block.new_cost)):
            _check_cost(block, what, cost)
        problem = schedule_problem(block)
        if problem is not None:
            raise ValueError(f"{problem}; give a feasible schedule of the block's budget")
        if np.ptp(block.cost) == 0.0:
            continue
        other = seen.setdefault(np.ascontiguousarray(block.cost).tobytes(), block)
        if other.cluster != block.cluster:
            raise ValueError(
                f"{other.name} and {block.name} have the same cost at every tick: they are not "
                "independent; put them into one cluster, or leave one out"
            )


def _check_cost(block: Block, what: str, cost: Floats) -> None:
    length = block.corridor.horizon_ticks + 1
    if np.shape(cost) != (length,):
        raise ValueError(
            f"{block.name}: {what} has shape {np.shape(cost)}; give one number a tick, ({length},)"
        )
    bad = ~(np.isfinite(cost) & (np.asarray(cost) >= 0.0))
    if bad.any():
        tick = int(bad.argmax())
        raise ValueError(
            f"{block.name}: {what}[{tick}]={cost[tick]}; a number of requests is finite and at "
            "least 0, and an unknown one cannot count"
        )
