"""Arms, block order and control schedules: determined by the seed, feasible, paired."""

from pathlib import Path

import pytest

from orchestrator.arms import block_order, expand_arms, random_schedule, study_corridor
from orchestrator.config import NoSyncArm, StudyConfig
from orchestrator.study import load_study

QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart" / "study.yaml"


@pytest.fixture(scope="module")
def study() -> StudyConfig:
    return load_study(QUICKSTART)


def test_a_block_starts_and_ends_without_merges(study: StudyConfig) -> None:
    for seed in range(20):
        labels = [a.label for a in block_order(study, seed)]
        assert labels[0] == "no_sync-start"
        assert labels[-1] == "no_sync-end"
        assert sorted(labels) == sorted(a.label for a in expand_arms(study))


def test_the_order_depends_on_the_seed_alone(study: StudyConfig) -> None:
    orders = {tuple(a.label for a in block_order(study, seed)) for seed in range(20)}
    assert len(orders) > 10
    assert block_order(study, 3) == block_order(study, 3)


def test_control_schedules_keep_corridor_and_budget(study: StudyConfig) -> None:
    corridor = study_corridor(study)
    controls = [a for a in expand_arms(study) if a.kind in ("matched_random", "placebo")]
    seen = set()
    for seed in range(50):
        for arm in controls:
            starts = random_schedule(study, arm, seed)
            assert len(starts) == study.corridor.budget_merges
            assert corridor.contains(starts)
            seen.add(starts)
    assert len(seen) > 20


def test_draws_are_independent_and_reproducible(study: StudyConfig) -> None:
    arm = next(a for a in expand_arms(study) if a.kind == "matched_random")
    assert random_schedule(study, arm, 5) == random_schedule(study, arm, 5)
    placebo = next(a for a in expand_arms(study) if a.kind == "placebo")
    pairs = [
        (random_schedule(study, arm, s), random_schedule(study, placebo, s)) for s in range(20)
    ]
    assert any(a != b for a, b in pairs)


def test_an_arm_listed_twice_is_refused(study: StudyConfig) -> None:
    twice = study.model_copy(update={"arms": (*study.arms, NoSyncArm(kind="no_sync"))})
    with pytest.raises(ValueError, match="no_sync-end, no_sync-start stands twice"):
        expand_arms(twice)
