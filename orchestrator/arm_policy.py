"""The policy of an arm inside its corridor: built here alone, for the run and its re-decision.

Pure: study, arm, seed and the seed's request times give the same wrapper, always.
"""

from collections.abc import Sequence

from orchestrator.arms import oracle_schedule, random_schedule, study_corridor
from orchestrator.config import StudyConfig
from orchestrator.records import ArmSpec
from policies.build import build_policy, needs_probes
from policies.config import UniformRandomConfig
from policies.controls import ScheduledPolicy
from policies.corridor import target_gap_ticks
from policies.frame import Frame
from policies.guards import Guards
from policies.observation import Policy
from policies.plugins import AnyPolicyConfig
from policies.wrapper import CorridorWrapper


def arm_wrapper(
    study: StudyConfig, arm: ArmSpec, *, seed: int, scheduled_at_s: Sequence[float]
) -> CorridorWrapper | None:
    """What decides in this arm, before its first sample; None where nothing merges.

    ``scheduled_at_s`` are the times of the seed's request file; only the oracle looks at them.
    """
    if arm.kind in ("no_sync", "data_parallel"):
        return None
    if arm.policy is not None:
        return policy_wrapper(study, study.policies[arm.policy], arm=arm, seed=seed)
    return schedule_wrapper(
        study, control_starts(study, arm, seed=seed, scheduled_at_s=scheduled_at_s)
    )


def control_starts(
    study: StudyConfig, arm: ArmSpec, *, seed: int, scheduled_at_s: Sequence[float]
) -> tuple[int, ...]:
    """Start ticks of a matched_random, placebo or oracle arm, which stand before its run."""
    if arm.kind == "oracle":
        return oracle_schedule(study, scheduled_at_s)
    return random_schedule(study, arm, seed)


def schedule_wrapper(study: StudyConfig, starts: tuple[int, ...]) -> CorridorWrapper:
    """A control's schedule in the study's corridor."""
    return _within(study, ScheduledPolicy(starts), needs_probes=False, control=True)


def policy_wrapper(
    study: StudyConfig, config: AnyPolicyConfig, *, arm: ArmSpec, seed: int
) -> CorridorWrapper:
    """Any policy in the study's corridor; ``arm`` and ``seed`` draw uniform_random's schedule."""
    random = isinstance(config, UniformRandomConfig)
    policy = build_policy(
        config,
        step_interval_s=study.islands.step_interval_s,
        tick_s=study.tick_s,
        frame=Frame(
            corridor=study_corridor(study), target_gap_ticks=_gap_ticks(study), tick_s=study.tick_s
        ),
        random_starts=random_schedule(study, arm, seed) if random else (),
    )
    return _within(study, policy, needs_probes=needs_probes(config), control=random)


def _within(
    study: StudyConfig, policy: Policy, *, needs_probes: bool, control: bool
) -> CorridorWrapper:
    """A control's schedule is fixed beforehand, so fairness, which defers, would bend it."""
    corridor = study_corridor(study)
    guards = None
    if study.guards is not None:
        guards = Guards(
            study.guards, width_ticks=corridor.width_ticks, tick_s=study.tick_s, fair=not control
        )
    return CorridorWrapper(
        corridor,
        budget=study.corridor.budget_merges,
        policy=policy,
        tick_s=study.tick_s,
        target_gap_ticks=_gap_ticks(study),
        needs_probes=needs_probes,
        guards=guards,
    )


def _gap_ticks(study: StudyConfig) -> int:
    gap = target_gap_ticks(
        study.corridor, step_interval_s=study.islands.step_interval_s, tick_s=study.tick_s
    )
    return min(gap, study_corridor(study).ceiling_ticks)
