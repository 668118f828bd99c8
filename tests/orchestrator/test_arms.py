"""Arms, block order and control schedules: determined by the seed, feasible, paired."""

import json
from pathlib import Path

import pytest

from orchestrator.arms import (
    block_order,
    expand_arms,
    oracle_schedule,
    random_schedule,
    study_corridor,
)
from orchestrator.config import NoSyncArm, OracleArm, StudyConfig
from orchestrator.rundir import run_hash
from orchestrator.study import load_study
from policies.config import GuardsConfig
from policies.streams import stream

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


def scheduled_inside(study: StudyConfig, starts: tuple[int, ...], at_s: list[float]) -> int:
    width = study_corridor(study).width_ticks
    return sum(
        any(t * study.tick_s <= a < (t + width) * study.tick_s for t in starts) for a in at_s
    )


@pytest.mark.parametrize("seed", range(3))
def test_no_feasible_schedule_has_fewer_arrivals_in_its_windows_than_the_oracle(
    study: StudyConfig, seed: int
) -> None:
    rng = stream(seed, "arrivals of a test")
    at_s = rng.uniform(0.0, study.horizon_s, size=150)
    whole = [float(round(a)) for a in at_s[:50]]  # on the edges of windows: start in, end out
    times = [*at_s[50:].tolist(), *whole]
    best = oracle_schedule(study, times)
    corridor = study_corridor(study)
    assert corridor.contains(best)
    assert len(best) == study.corridor.budget_merges
    drawn = corridor.sample(study.corridor.budget_merges, size=200, rng=rng)
    others = [scheduled_inside(study, tuple(s), times) for s in drawn.tolist()]
    assert scheduled_inside(study, best, times) <= min(others)
    assert oracle_schedule(study, times[::-1]) == best


def test_the_oracle_is_an_arm_of_its_own_and_changes_no_other(study: StudyConfig) -> None:
    of = study.arms[1].policy  # type: ignore[union-attr]
    more = study.model_copy(update={"arms": (*study.arms, OracleArm(kind="oracle", of=of))})
    (added,) = set(expand_arms(more)) - set(expand_arms(study))
    assert (added.kind, added.label, added.policy) == ("oracle", f"oracle-of-{of}", None)
    hashes = {run_hash(more, arm) for arm in expand_arms(more)}
    assert hashes == {run_hash(study, a) for a in expand_arms(study)} | {run_hash(more, added)}
    assert len(hashes) == len({run_hash(study, a) for a in expand_arms(study)}) + 1


def test_a_starvation_bound_cuts_the_corridor_of_every_arm(study: StudyConfig) -> None:
    plain = study_corridor(study)
    bound = plain.ceiling_ticks - 1
    guards = GuardsConfig(max_gap_s=bound * study.tick_s)
    guarded = study.model_copy(update={"guards": guards})
    assert study_corridor(guarded).ceiling_ticks == bound
    arm = next(a for a in expand_arms(study) if a.kind == "matched_random")
    for seed in range(20):
        assert study_corridor(guarded).contains(random_schedule(guarded, arm, seed))
    assert run_hash(guarded, arm) != run_hash(study, arm)
    none = study.model_copy(update={"guards": GuardsConfig()})
    assert study_corridor(none) == plain


def test_a_share_that_somebody_always_exceeds_is_refused(study: StudyConfig) -> None:
    raw = study.model_dump(mode="json")
    raw["sidecars"]["count"] = 2
    raw["guards"] = {"max_overlap_share": 0.5}
    with pytest.raises(ValueError, match=r"max_overlap_share=0.5 with 2 sidecars"):
        StudyConfig.model_validate_json(json.dumps(raw))
    raw["guards"] = {"max_overlap_share": 0.6}
    StudyConfig.model_validate_json(json.dumps(raw))
