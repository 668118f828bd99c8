"""The arms of a study: which runs a seed's block holds, in which order, on which schedules."""

from orchestrator.config import (
    AaArm,
    MatchedRandomArm,
    NoSyncArm,
    PlaceboArm,
    PolicyArm,
    StudyConfig,
)
from orchestrator.records import ArmSpec
from policies.corridor import Corridor, corridor_from_steps
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
            case AaArm(of=of):
                arms.append(_spec("aa", f"aa-of-{of}", policy=of, of=of))
    labels = [arm.label for arm in arms]
    doubles = sorted({label for label in labels if labels.count(label) > 1})
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
    """The study's corridor in ticks, checked against horizon and budget."""
    return corridor_from_steps(
        study.corridor,
        step_interval_s=study.islands.step_interval_s,
        tick_s=study.tick_s,
        window_s=study.merge.window_s,
        horizon_s=study.horizon_s,
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
