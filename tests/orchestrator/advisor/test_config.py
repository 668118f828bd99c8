"""The advice: what cannot be kept is refused, with the key and a way out; steps become ticks."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.advisor.setting import load_advice, setting_at
from tests.advising import SERVER, advice


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vllm_metrics_url": "127.0.0.1:8000"}, "no http:// or https:// URL"),
        ({"vllm_metrics_url": "http://a"}, "telemetry left out; give the full scales"),
        ({"telemetry": SERVER["telemetry"]}, "vllm_metrics_url=None with telemetry given"),
        ({"policy": {"kind": "uniform_random"}}, "is a control and never deployable"),
        ({"policy": {"kind": "fixed"}}, "unknown policy kind 'fixed'"),
        ({"corridor": {"floor_steps": 0}}, "floor_steps=0 would merge without a step"),
        ({"tick_steps": 41}, r"no multiple of tick_steps=41 lies in \[floor_steps=10, ceiling"),
        ({"notice_steps": 10}, "notice_steps=10 is not below corridor.floor_steps=10"),
        ({"step_s": None, "notice_steps": 8}, "are too few to measure it; give step_s"),
        ({"horizon_steps": 100}, "horizon_steps=100 with corridor.budget_merges=None; give both"),
        ({"corridor": {"budget_merges": 3}}, "horizon_steps=None with corridor.budget_merges=3"),
        (
            {"corridor": {"budget_merges": 30}, "horizon_steps": 200},
            "budget_merges=30 does not fit .* feasible budgets: 4 to 20",
        ),
        ({"silence_s": 4.0}, "silence_s=4 is not above window_s=4"),
        ({"learners": 0}, "greater than or equal to 1"),
        ({"tick_step": 5}, "Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_kept_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        advice(**changes)


def test_steps_become_ticks_that_never_leave_the_corridor() -> None:
    config = advice(tick_steps=7, corridor={"floor_steps": 10, "ceiling_steps": 40})
    for step_s in (0.01, 0.5, 30.0):
        setting = setting_at(config, step_s=step_s)
        corridor = setting.corridor
        assert (corridor.floor_ticks * 7, corridor.ceiling_ticks * 7) == (14, 35)
        assert setting.tick_s == step_s * 7
        assert setting.target_gap_ticks == 3  # 20 steps, to the nearest tick
        assert (corridor.width_ticks - 1) * setting.tick_s < 4.0
        assert corridor.width_ticks * setting.tick_s >= 4.0 - 1e-9


def test_the_horizon_is_that_of_the_steps_with_their_windows() -> None:
    config = advice(corridor={"budget_merges": 6}, horizon_steps=200, window_s=5.0)
    setting = setting_at(config, step_s=0.5)
    assert setting.corridor.width_ticks == 2
    assert setting.corridor.horizon_ticks == 40 + 6 * 2
    setting.corridor.require(6)


def test_a_file_is_read_and_its_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "advice.yaml"
    path.write_text(
        "advice:\n"
        "  name: mine\n  learners: 2\n  vllm_metrics_url: http://127.0.0.1:8000/metrics\n"
        "  telemetry: {serving_full_requests: 16, network_full_bytes_per_s: 1e9,\n"
        "    checkpoint_full_bytes_per_s: 1e9}\n"
        "  corridor: {floor_steps: 50, ceiling_steps: 200, target_steps: 100,\n"
        "    budget_merges: null}\n"
        "  policy: {kind: stopping}\n  tick_steps: 5\n  window_s: 4.0\n"
    )
    config = load_advice(path)
    assert (config.name, config.measured_steps, config.step_s) == ("mine", 20, None)
    text = path.read_text()
    path.write_text(text.replace("tick_steps", "tick_step"))
    with pytest.raises(ValueError, match=r"advice.tick_step: unknown key; did you mean 'tick_st"):
        load_advice(path)
    path.write_text(text.replace("kind: stopping", "kind: stopping, bin: 3"))
    with pytest.raises(ValueError, match=r"advice.policy.bin: unknown key; did you mean 'bins'"):
        load_advice(path)
    path.write_text("name: mine\n")
    with pytest.raises(ValueError, match="advice: is missing"):
        load_advice(path)
