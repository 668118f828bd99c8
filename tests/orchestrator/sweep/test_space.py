"""SPACE.yaml is refused with its place, and settings are told by their content."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config import StudyConfig
from orchestrator.sweep.config import SpaceConfig, load_space
from orchestrator.sweep.settings import (
    check_space,
    controls_id,
    grid_values,
    make_setting,
    random_values,
)

SPACE: dict[str, Any] = {
    "policy": "wa_ewma",
    "parameters": {"policies.wa_ewma.half_life_s": {"low": 0.5, "high": 32, "scale": "log"}},
    "settings": 10,
    "seed": 0,
    "tuning": {"seeds": {"first": 0, "count": 6}, "draws": 4},
    "judging": {"seeds": {"first": 100, "count": 5}},
}
HALF_LIFE = "policies.wa_ewma.half_life_s"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"settingz": 3}, "space.yaml: settingz: unknown key; did you mean 'settings'?"),
        ({"parameters": {}}, "parameters"),
        ({"parameters": {"a": {"low": 1.0}}}, "parameters.a: give values: [...], or low and high"),
        ({"parameters": {"a": {"low": 2, "high": 1}}}, "low=2 is not below high=1"),
        ({"parameters": {"a": {"low": 0, "high": 1, "scale": "log"}}}, "number above 0"),
        ({"parameters": {"a": {"values": [1, 1]}}}, "each once"),
        ({"parameters": {"a": {"values": [1], "low": 1}}}, "keep one of them"),
        ({"parameters": {"a": {"valuex": [1]}}}, "parameters.a.valuex: unknown key; did you mean"),
        ({"judging": {"seeds": {"first": 4, "count": 5}}}, "share 4, 5; judge on seeds that took"),
        ({"settings": 0}, "settings"),
        ({"stopping": {"confidence": 0.2}}, "stopping.confidence"),
        ({"seed": None}, "seed"),
    ],
)
def test_a_bad_space_is_refused_with_its_place(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump({**SPACE, **change}))
    with pytest.raises(ValueError, match=r"space\.yaml: ") as refused:
        load_space(path)
    assert expected in str(refused.value)


def test_a_good_space_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(SPACE))
    space = load_space(path)
    assert space.tuning.seeds.seeds == (0, 1, 2, 3, 4, 5)
    assert space.judging.draws == 99
    assert space.stopping is None


@pytest.mark.parametrize(
    ("path", "parameter", "expected"),
    [
        ("policies.wa_ewma.half_live_s", {"low": 1.0, "high": 2.0}, "did you mean 'half_life_s'?"),
        ("policies.fixed.h", {"values": [1]}, "is no setting of the policy; tune"),
        ("merge.window_s", {"values": [1.0]}, "is no setting of the policy; tune"),
        ("guards.max_gap_s", {"values": [1.0]}, "the study does not set it"),
        ("corridor.target_steps", {"low": 60.5, "high": 90.0}, "it takes whole numbers"),
        ("corridor.target_steps", {"values": [60.5]}, "it takes whole numbers"),
        ("policies.wa_ewma.kind", {"low": 0.0, "high": 1.0}, "takes no numbers"),
        ("corridor.floor_steps.x", {"values": [1]}, "which has no 'x'"),
    ],
)
def test_a_parameter_without_a_place_in_the_study_is_refused(
    make_study: Callable[..., StudyConfig],
    make_space: Callable[..., SpaceConfig],
    path: str,
    parameter: dict[str, Any],
    expected: str,
) -> None:
    space = make_space(parameters={path: parameter})
    with pytest.raises(ValueError, match="parameters") as refused:
        check_space(make_study(), space)
    assert expected in str(refused.value)


def test_a_policy_or_a_budget_that_lacks_is_refused(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig]
) -> None:
    with pytest.raises(ValueError, match="'wa' is none of the study's policies: wa_ewma"):
        check_space(make_study(), make_space(policy="wa"))
    free = make_study(
        corridor={"budget_merges": None}, judge=[], arms=[{"kind": "policy", "policy": "wa_ewma"}]
    )
    with pytest.raises(ValueError, match="free cadence"):
        check_space(free, make_space())


def test_a_setting_is_told_by_its_content_alone(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig]
) -> None:
    study, space = make_study(), make_space()
    own = make_setting(study, space, {HALF_LIFE: 3.0})
    assert own.study is not None
    elsewhere = make_study(seeds=[7, 8, 9], study="other", question="?", aa=True)
    assert make_setting(elsewhere, space, {HALF_LIFE: 3.0}).setting == own.setting
    assert make_setting(study, space, {HALF_LIFE: 3}).setting == own.setting
    assert make_setting(study, space, {HALF_LIFE: 3.0000001}).setting != own.setting
    slower = make_study(slo={"e2e_s": 9.0})
    assert make_setting(slower, space, {HALF_LIFE: 3.0}).setting != own.setting
    assert controls_id(own.study) == controls_id(study)
    wider = make_setting(study, space, {"corridor.ceiling_steps": 240})
    assert wider.study is not None
    assert controls_id(wider.study) != controls_id(study)


def test_values_that_make_no_study_are_refused_with_the_reason(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig]
) -> None:
    study, space = make_study(), make_space()
    above = make_setting(study, space, {"corridor.floor_steps": 130})
    assert above.study is None
    assert "target_steps=120 lies outside" in str(above.refused)
    many = make_setting(study, space, {"corridor.budget_merges": 40})
    assert "budget_merges=40 does not fit" in str(many.refused)


def test_the_budget_follows_the_target_where_asked_for(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig]
) -> None:
    space = make_space(
        budget_from_target=True, parameters={"corridor.target_steps": {"values": [60, 120]}}
    )
    budgets = []
    for steps in (60, 120):
        made = make_setting(make_study(), space, {"corridor.target_steps": steps}).study
        assert made is not None
        budgets.append(made.corridor.budget_merges)
    # 60 s horizon, 4 s windows, 0.1 s a step: 60 // (4 + 6) and 60 // (4 + 12)
    assert budgets == [6, 3]


def test_a_grid_has_every_combination_once_and_its_ends(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig]
) -> None:
    parameters = {
        HALF_LIFE: {"low": 1.0, "high": 16.0, "scale": "log", "grid_points": 3},
        "corridor.target_steps": {"low": 100, "high": 120, "grid_points": 3},
        "policies.wa_ewma.w_stale": {"values": [0.0, 0.5]},
    }
    space = make_space(parameters=parameters, settings=18)
    found = list(grid_values(make_study(), space))
    assert len(found) == len({tuple(v.values()) for v in found}) == 18
    assert [v[HALF_LIFE] for v in found[::6]] == pytest.approx([1.0, 4.0, 16.0])
    assert {v["corridor.target_steps"] for v in found} == {100, 110, 120}
    assert all(isinstance(v["corridor.target_steps"], int) for v in found)
    with pytest.raises(ValueError, match="settings=17 is below the grid's 3 x 3 x 2 = 18"):
        next(grid_values(make_study(), make_space(parameters=parameters, settings=17)))


def test_random_values_lie_inside_and_repeat_by_seed(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig]
) -> None:
    space = make_space(
        parameters={
            HALF_LIFE: {"low": 0.5, "high": 32.0, "scale": "log"},
            "corridor.target_steps": {"low": 100, "high": 102},
            "policies.wa_ewma.w_stale": {"values": [0.0, 0.5]},
        }
    )
    found = list(islice(random_values(make_study(), space), 200))
    assert found == list(islice(random_values(make_study(), space), 200))
    lives = [float(v[HALF_LIFE]) for v in found]
    assert 0.5 <= min(lives) < 1.0
    assert 16.0 < max(lives) <= 32.0
    assert 70 < sum(life < 4.0 for life in lives) < 130  # the middle of the logarithm
    assert {v["corridor.target_steps"] for v in found} == {100, 101, 102}
    assert {v["policies.wa_ewma.w_stale"] for v in found} == {0.0, 0.5}
