"""The additive cost of a merge at every tick, from what a seed's no_sync runs recorded.

No merge disturbed those runs: what they had in flight is the traffic's own.
"""

from collections.abc import Sequence

import numpy as np

from orchestrator.arms import study_corridor
from orchestrator.calibration.evidence import Evidence, Run
from orchestrator.calibration.overlap import Block, Floats
from orchestrator.metrics import marked_windows
from policies.corridor import Corridor


def overlap_blocks(evidence: Evidence, policy: str) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """One block a seed with the policy's realised start ticks; and which seeds lack one, and why.

    new_cost[t]: counted requests scheduled in [t, t + W). cost[t]: those, and the requests that
    had been scheduled and were not done at t in no_sync, the mean over its runs.
    """
    blocks: list[Block] = []
    gaps: list[str] = []
    for seed in evidence.study.seeds:
        mine = evidence.complete(policy, seed)
        bases = evidence.completed(evidence.labels("no_sync"), seed)
        if mine is None or not bases:
            missing = policy if mine is None else "no_sync"
            gaps.append(f"seed {seed}: no complete {missing} run")
            continue
        blocks.append(_block(mine, bases, tick_s=evidence.study.tick_s))
    return tuple(blocks), tuple(gaps)


def _block(mine: Run, bases: Sequence[Run], *, tick_s: float) -> Block:
    corridor, budget = run_corridor(mine)
    new, flight = zip(
        *(
            traffic_costs(
                b.requests.scheduled_at_s[b.requests.counted],
                b.requests.end_s[b.requests.counted],
                corridor,
                tick_s=tick_s,
            )
            for b in bases
        ),
        strict=True,
    )
    new_cost = np.mean(new, axis=0)
    return Block(
        name=mine.name,
        cluster=f"seed {mine.record.seed}",
        corridor=corridor,
        budget=budget,
        starts=tuple(w.tick for w in marked_windows(mine.record)),
        cost=new_cost + np.mean(flight, axis=0),
        new_cost=new_cost,
    )


def run_corridor(run: Run) -> tuple[Corridor, int]:
    """Corridor and budget of config.json; ValueError where they are not those of its study."""
    try:
        fields = dict(run.record.config["corridor"])
        budget = int(fields.pop("budget"))
        found = Corridor(**fields), budget
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{run.name}: no corridor in config.json ({error})") from error
    if run.study is None:
        raise ValueError(f"{run.name}: the study in its config.json cannot be read")
    planned = study_corridor(run.study), run.study.corridor.budget_merges
    if found != planned:
        raise ValueError(
            f"{run.name}: config.json has {found[0]} with budget {found[1]}, its study gives "
            f"{planned[0]} with budget {planned[1]}; was it edited?"
        )
    return found


def traffic_costs(
    at_s: Floats, end_s: Floats, corridor: Corridor, *, tick_s: float
) -> tuple[Floats, Floats]:
    """Arriving in [t, t + W), and in flight at t, for each tick 0..T, of counted requests."""
    starts_s = tick_s * np.arange(corridor.horizon_ticks + 1)
    before = np.searchsorted(np.sort(at_s), starts_s)
    done = np.searchsorted(np.sort(end_s), starts_s, side="right")
    flight = np.maximum(before - done, 0)  # below 0 only where a request ended as it came
    return arrivals_cost(at_s, corridor, tick_s=tick_s), flight.astype(np.float64)


def arrivals_cost(at_s: Floats, corridor: Corridor, *, tick_s: float) -> Floats:
    """Requests that arrive in [t, t + W) for each tick 0..T.  # [horizon_ticks + 1]"""
    ordered = np.sort(at_s)
    starts_s = tick_s * np.arange(corridor.horizon_ticks + 1)
    ends = np.searchsorted(ordered, starts_s + tick_s * corridor.width_ticks)
    return (ends - np.searchsorted(ordered, starts_s)).astype(np.float64)
