"""The table of a study on the step clock: means and intervals over seeds, and what is unknown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from actors.events import Event, IslandDropped, MergeFailed
from orchestrator.arms import expand_arms
from orchestrator.config import StudyConfig
from orchestrator.records import ArmSpec
from orchestrator.rundir import run_hash, run_name, write_study
from orchestrator.training.record import StepRecord, StepWriter, read_step_run
from orchestrator.training.result import (
    mean_interval,
    result_lines,
    step_metrics,
    study_result,
)
from tests.orchestrator.training.made_runs import (
    PROVENANCE,
    finished,
    merged,
    rows,
    started,
    validated,
)

MakeStudy = Callable[..., StudyConfig]
ARMS: list[dict[str, Any]] = [
    {"kind": "policy", "policy": "every"},
    {"kind": "policy", "policy": "wa_ewma"},
    {"kind": "matched_random", "of": "wa_ewma", "draws": 2},
]
POLICIES = {
    "every": {"kind": "fixed_h", "h_steps": 100},
    "wa_ewma": {"kind": "wa_ewma", "half_life_s": 2.0, "mean_half_life_s": 20.0},
}


@pytest.fixture
def study(make_study: MakeStudy) -> StudyConfig:
    return make_study(clock="steps", arms=ARMS, policies=POLICIES, seeds=[0, 1, 2])


def config_of(study: StudyConfig, arm: ArmSpec, seed: int) -> dict[str, Any]:
    return {
        "study": study.model_dump(mode="json"),
        "arm": {name: getattr(arm, name) for name in ArmSpec.__slots__},
        "seed": seed,
        "run_hash": run_hash(study, arm),
        "request_hash": "0" * 64,
    }


def write_run(
    study_dir: Path,
    study: StudyConfig,
    label: str,
    seed: int,
    *,
    loss: float | None,
    status: str = "complete",
    more: tuple[Event, ...] = (),
) -> StepRecord:
    arm = next(a for a in expand_arms(study) if a.label == label)
    folder = study_dir / run_name(arm, seed, run_hash(study, arm))
    writer = StepWriter(folder, keep=1)
    writer.begin(config=config_of(study, arm, seed), provenance=PROVENANCE)
    writer.take([started(1), *more], {})
    if loss is not None:
        writer.event(validated(writer.next_id(), 9.0))
        writer.event(validated(writer.next_id(), loss, closing=True))
    for island in (0, 1):
        writer.train_rows(rows(1, 20, island=island, loss=3.0))
        writer.event(finished(writer.next_id(), island, "same"))
    writer.finish(status, None if status == "complete" else "island 1 lost", 60.0)
    return read_step_run(folder)


# Means


@pytest.mark.parametrize("values", [[1.0, 2.0], [3.1, 2.9, 3.4, 3.0, 2.2]])
def test_the_interval_is_scipy_s_t_interval(values: list[float]) -> None:
    mean, low, high = mean_interval(values)
    wanted = stats.t.interval(
        0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values)
    )
    assert mean == pytest.approx(sum(values) / len(values))
    assert (low, high) == pytest.approx(wanted)


def test_too_few_values_have_no_interval_and_none_no_mean() -> None:
    assert mean_interval([2.5]) == (2.5, None, None)
    assert mean_interval([]) == (None, None, None)


# One run


def test_a_run_s_metrics_come_from_its_events_and_rows(study: StudyConfig, tmp_path: Path) -> None:
    dropped = IslandDropped(event_id=3, at_s=1.0, island=1, round=0, why="killed")
    failed = MergeFailed(event_id=4, cause_id=1, round=1, at_s=1.0, why="too few")
    more = (merged(2, 0, "a", "a"), dropped, failed)
    record = write_run(tmp_path, study, "every", 1, loss=2.5, more=more)
    found = step_metrics(record)
    assert (found.arm, found.kind, found.seed, found.status) == ("every", "policy", 1, "complete")
    assert (found.validation_loss, found.train_loss_end) == (2.5, 3.0)
    assert (found.tokens, found.inner_steps) == (2 * 20 * 32, 40)
    assert (found.merges, found.merges_failed) == (1, 1)
    assert (found.islands_dropped, found.islands_joined, found.checkpoints_failed) == (1, 0, 0)
    assert (found.hashes_equal, found.parameter_hash) == (True, "same")


@pytest.mark.parametrize(
    ("merge", "hashes", "equal"),
    [
        ({}, ("a", "a"), True),
        ({}, ("a", "b"), False),
        ({}, ("a", ""), True),  # one was lost before it could tell
        ({"fragments": 2}, ("a", "b"), None),  # islands agree on the fragment, not on the whole
        ({"overlap_steps": 2}, ("a", "b"), None),
    ],
)
def test_islands_are_compared_where_a_merge_makes_them_equal(
    make_study: MakeStudy,
    tmp_path: Path,
    merge: dict[str, Any],
    hashes: tuple[str, ...],
    equal: bool | None,
) -> None:
    study = make_study(clock="steps", merge=merge)
    record = write_run(tmp_path, study, "wa_ewma", 0, loss=2.0, more=(merged(2, 0, *hashes),))
    assert step_metrics(record).hashes_equal is equal


def test_what_a_run_does_not_tell_is_unknown(study: StudyConfig, tmp_path: Path) -> None:
    found = step_metrics(write_run(tmp_path, study, "every", 0, loss=None))
    assert (found.validation_loss, found.hashes_equal) == (None, None)


# The study


def test_arms_are_compared_with_fixed_h_seed_by_seed(study: StudyConfig, tmp_path: Path) -> None:
    write_study(tmp_path, study)
    losses: dict[str, tuple[float, ...]] = {"every": (2.0, 2.2, 2.1), "wa_ewma": (2.1, 2.5, 2.1)}
    for draw, loss in ((0, 2.0), (1, 3.0)):
        losses[f"matched_random-of-wa_ewma-d{draw}"] = (loss,) * 3
    for label, values in losses.items():
        for seed, loss in enumerate(values):
            write_run(tmp_path, study, label, seed, loss=loss)
    result = study_result(tmp_path)
    assert result.yardstick == "every"
    arms = {arm.arm: arm for arm in result.arms}
    assert set(arms) == {"every", "wa_ewma", "matched_random-of-wa_ewma"}
    assert {arm.seeds for arm in result.arms} == {3}
    assert arms["every"].price_mean is None
    price = mean_interval([0.1, 0.3, 0.0])
    found = arms["wa_ewma"]
    assert (found.price_mean, found.price_low, found.price_high) == pytest.approx(price)
    assert arms["matched_random-of-wa_ewma"].loss_mean == pytest.approx(2.5)  # a seed's draws: one
    assert len(result.runs) == 12
    text = "\n".join(result_lines(result))
    assert "nothing was served" in text
    assert "minus every" in text
    assert "2.1000 [" in text


def test_a_seed_without_a_loss_or_without_its_yardstick_is_left_out(
    study: StudyConfig, tmp_path: Path
) -> None:
    write_study(tmp_path, study)
    write_run(tmp_path, study, "every", 0, loss=2.0)
    write_run(tmp_path, study, "every", 1, loss=2.0, status="invalid")
    for seed in range(3):
        write_run(tmp_path, study, "wa_ewma", seed, loss=None if seed == 2 else 2.4)
    for draw, loss in ((0, 2.0), (1, None)):
        write_run(tmp_path, study, f"matched_random-of-wa_ewma-d{draw}", 0, loss=loss)
    arms = {arm.arm: arm for arm in study_result(tmp_path).arms}
    assert arms["every"].seeds == 1
    assert arms["wa_ewma"].seeds == 2
    assert arms["wa_ewma"].loss_mean == pytest.approx(2.4)
    assert arms["wa_ewma"].price_mean == pytest.approx(0.4)
    assert arms["wa_ewma"].price_low is None  # one pair has no interval
    assert arms["matched_random-of-wa_ewma"].loss_mean is None
    assert any(line.endswith("-") for line in result_lines(study_result(tmp_path)))


def test_no_table_is_made_of_a_run_whose_config_was_edited(
    study: StudyConfig, tmp_path: Path
) -> None:
    write_study(tmp_path, study)
    record = write_run(tmp_path, study, "every", 0, loss=2.5)
    assert len(study_result(tmp_path).runs) == 1
    config = record.config
    config["study"]["islands"]["outer"]["lr"] = 0.123
    (record.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="edited since"):
        study_result(tmp_path)


def test_only_run_folders_are_read_wherever_the_study_lies(
    study: StudyConfig, tmp_path: Path
) -> None:
    study_dir = tmp_path / "a.partial-study"
    write_study(study_dir, study)
    run = write_run(study_dir, study, "every", 0, loss=2.0).path
    run.rename(run.with_name(f"{run.name}.partial-1"))  # put aside
    write_run(study_dir, study, "every", 1, loss=2.0)
    assert [run.seed for run in study_result(study_dir).runs] == [1]
