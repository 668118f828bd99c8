"""The arms of a study: which runs a seed's block holds, in which order, on which schedules."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from orchestrator.config import (
    AaArm,
    DataParallelArm,
    MatchedRandomArm,
    NoSyncArm,
    OracleArm,
    PlaceboArm,
    PolicyArm,
    StudyConfig,
)
from orchestrator.records import ArmSpec
from policies.corridor import Corridor, corridor_from_steps
from policies.guards import cut_corridor
from policies.streams import stream


def expand_arms(study: StudyConfig) -> tuple[ArmSpec, ...]:
    """All runs of one seed; no_sync stands at the start and at the end of the block."""
    arms: list[ArmSpec] = []
    for arm in study.arms:
        match arm:
            case NoSyncArm():
                arms += [_spec("no_sync", f"no_sync-{p}", position=p) for p in ("start", "end")]
            case PolicyArm(policy=name):
                arms.append(_spec("policy", name, policy=name))
            case MatchedRandomArm(of=of, draws=draws):
                arms += [
                    _spec("matched_random", f"matched_random-of-{of}-d{d}", of=of, draw=d)
                    for d in range(draws)
                ]
            case PlaceboArm(of=of):
                arms.append(_spec("placebo", f"placebo-of-{of}", of=of))
            case OracleArm(of=of):
                arms.append(_spec("oracle", f"oracle-of-{of}", of=of))
            case DataParallelArm():
                arms.append(_spec("data_parallel", "data_parallel"))
            case AaArm(of=of):
                arms.append(_spec("aa", f"aa-of-{of}", policy=of, of=of))
    labels = [arm.label for arm in arms]
    doubles = sorted(label for label, times in Counter(labels).items() if times > 1)
    if doubles:
        raise ValueError(f"arms: {', '.join(doubles)} stands twice; list every arm once")
    return tuple(arms)


def _spec(kind: str, label: str, **more: object) -> ArmSpec:
    fields = {"policy": None, "of": None, "draw": None, "position": None, **more}
    return ArmSpec(kind=kind, label=label, **fields)  # type: ignore[arg-type]


def block_order(study: StudyConfig, seed: int) -> tuple[ArmSpec, ...]:
    """A seed's block: no_sync first and last, the rest in an order drawn from the seed."""
    arms = expand_arms(study)
    inner = [a for a in arms if a.position is None]
    order = stream(seed, "arm-order").permutation(len(inner))
    start = [a for a in arms if a.position == "start"]
    end = [a for a in arms if a.position == "end"]
    return (*start, *(inner[i] for i in order), *end)


def study_corridor(study: StudyConfig) -> Corridor:
    """The study's corridor in ticks, checked against horizon and budget.

    A starvation bound cuts the ceiling of every arm, controls too: they are drawn from the same
    schedules that the policies are held to.
    """
    corridor = corridor_from_steps(
        study.corridor,
        step_interval_s=study.islands.step_interval_s,
        tick_s=study.tick_s,
        window_s=study.merge.window_s,
        horizon_s=study.horizon_s,
    )
    if study.guards is None or study.guards.max_gap_s is None:
        return corridor
    return cut_corridor(
        corridor,
        max_gap_s=study.guards.max_gap_s,
        tick_s=study.tick_s,
        budget=study.corridor.budget_merges,
    )


def check_warmup(study: StudyConfig, corridor: Corridor) -> None:
    """ValueError where a merge could start among requests that are not counted."""
    limit_s = corridor.floor_ticks * study.tick_s
    if study.warmup_s > limit_s:
        raise ValueError(
            f"warmup_s={study.warmup_s:g} is above the first possible merge at {limit_s:g} s; "
            "lower warmup_s or raise corridor.floor_steps, so that every window is measured"
        )


def random_schedule(study: StudyConfig, arm: ArmSpec, seed: int) -> tuple[int, ...]:
    """Start ticks of a matched_random or placebo arm: uniform over the budget's feasible set."""
    budget = study.corridor.budget_merges
    if budget is None:
        raise ValueError(f"{arm.label}: free cadence has no feasible set to draw a schedule from")
    name = f"{arm.kind}-schedule"
    rng = stream(seed, name, *(int(b) for b in (arm.of or "").encode()), arm.draw or 0)
    starts = study_corridor(study).sample(budget, size=1, rng=rng)
    return tuple(int(t) for t in starts[0])


def oracle_schedule(study: StudyConfig, scheduled_at_s: Sequence[float]) -> tuple[int, ...]:
    """Start ticks that the fewest requests are scheduled under: the bound of any placer.

    cost[t] = requests of the seed's file scheduled in [t, t + W), which nobody knows at t;
    Corridor.best takes the feasible schedule of the budget with the least sum.
    """
    corridor, budget = study_corridor(study), study.corridor.budget_merges
    if budget is None:
        raise ValueError("oracle: free cadence has no feasible set to take the best schedule of")
    at_s = np.sort(np.asarray(scheduled_at_s, dtype=np.float64))
    # The same products as the windows that the coordinator plans: tick * tick_s.
    edges_s = np.arange(corridor.horizon_ticks + 1 + corridor.width_ticks) * study.tick_s
    before = np.searchsorted(at_s, edges_s, side="left")  # requests scheduled before each edge
    cost = before[corridor.width_ticks :] - before[: corridor.horizon_ticks + 1]
    _, starts = corridor.best(cost, budget)
    return starts
