"""What a run on the step clock is made of: traffic by ticks, and equal training for every arm."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from actors.events import HistoryTold
from orchestrator.arms import expand_arms
from orchestrator.config import StudyConfig
from orchestrator.training.step_plan import (
    ASSUMED_SERVICE_S,
    step_arms,
    step_plan,
    traffic_by_tick,
    train_ticks,
)
from tests.synthetic import study_runs

MakeStudy = Callable[..., StudyConfig]
STEPS = {"clock": "steps"}


def counted(
    at_s: Sequence[float], *, ticks: int, tick_s: float, service_s: float
) -> tuple[list[int], list[int]]:
    """The same by a second reading: one request after the other, in whole microseconds."""
    at_us = [round(t * 1e6) for t in at_s]
    tick_us, service_us = round(tick_s * 1e6), round(service_s * 1e6)
    arrivals = [sum((i - 1) * tick_us < t <= i * tick_us for t in at_us) for i in range(ticks)]
    ends_us = [i * tick_us for i in range(ticks)]
    in_flight = [sum(end - service_us < t <= end for t in at_us) for end in ends_us]
    return arrivals, in_flight


@pytest.mark.parametrize("tick_s", [0.25, 1.0])
@pytest.mark.parametrize("service_s", [0.2, 3.1])
def test_traffic_is_what_a_second_reading_counts(tick_s: float, service_s: float) -> None:
    rng = np.random.default_rng(5)
    at_s = [*np.round(rng.uniform(0.0, 20.0, size=300), 6).tolist(), 0.0, 1.0, 1.000001, 5.0, 5.0]
    rng.shuffle(at_s)
    ticks = int(20 / tick_s) + 1
    arrivals, in_flight = traffic_by_tick(at_s, ticks=ticks, tick_s=tick_s, service_s=service_s)
    wanted = counted(at_s, ticks=ticks, tick_s=tick_s, service_s=service_s)
    assert (list(arrivals), list(in_flight)) == wanted
    assert sum(arrivals) == len(at_s)


def test_no_traffic_is_zero_at_every_tick() -> None:
    assert traffic_by_tick([], ticks=3, tick_s=1.0, service_s=1.0) == ((0, 0, 0), (0, 0, 0))


def test_a_block_holds_every_arm_once_and_no_sync_only_at_its_start(make_study: MakeStudy) -> None:
    study = make_study(**STEPS, aa=True, draws=2)
    labels = [arm.label for arm in step_arms(study, 0)]
    assert sorted(labels) == sorted(a.label for a in expand_arms(study) if a.position != "end")
    assert labels[0] == "no_sync-start"


def test_each_arm_s_plan_says_what_it_is(make_study: MakeStudy) -> None:
    arms: list[dict[str, Any]] = [
        {"kind": "no_sync"},
        {"kind": "policy", "policy": "wa_ewma"},
        {"kind": "placebo", "of": "wa_ewma"},
        {"kind": "data_parallel"},
    ]
    study = make_study(**STEPS, arms=arms, seeds=[4], training={"validate_every_merges": 3})
    requests = next(rows for _, _, rows in study_runs(study))
    told = HistoryTold(event_id=0, first_tick=-1, arrivals=(2,), in_flight=(1,), service_s=0.2)
    plans = {
        arm.label: step_plan(study, arm, seed=4, requests=requests, history=told, folder="runs/x")
        for arm in step_arms(study, 4)
    }
    assert [label for label, plan in plans.items() if plan.suppressed] == ["placebo-of-wa_ewma"]
    assert [label for label, plan in plans.items() if plan.data_parallel] == ["data_parallel"]
    wanted = counted(
        [r.scheduled_at_s for r in requests], ticks=61, tick_s=1.0, service_s=ASSUMED_SERVICE_S
    )
    for label, plan in plans.items():
        assert (plan.arm, plan.seed, plan.history, plan.folder) == (label, 4, told, "runs/x")
        assert (plan.tick_s, plan.width_ticks, plan.horizon_ticks) == (1.0, 4, 60)
        assert (list(plan.arrivals), list(plan.in_flight)) == wanted
        assert plan.validate_every_merges == 3
        assert plan.train_ticks == 60 - 4 * 4  # every arm trains as long as the one with windows


def test_requests_are_in_flight_as_long_as_the_history_says(make_study: MakeStudy) -> None:
    study = make_study(**STEPS, seeds=[0], history={"length_s": 5.0, "service_s": 2.5})
    arm = step_arms(study, 0)[0]
    requests = next(rows for _, _, rows in study_runs(study))
    plan = step_plan(study, arm, seed=0, requests=requests, history=None, folder="x")
    at_s = [r.scheduled_at_s for r in requests]
    assert list(plan.in_flight) == counted(at_s, ticks=61, tick_s=1.0, service_s=2.5)[1]


def test_training_is_not_cut_where_windows_are_not_known_or_pause_nothing(
    make_study: MakeStudy,
) -> None:
    free = {"budget_merges": None}
    arms = [{"kind": "policy", "policy": "wa_ewma"}]
    assert train_ticks(make_study(**STEPS, corridor=free, judge=[], arms=arms)) is None
    assert train_ticks(make_study(**STEPS, merge={"overlap_steps": 5})) is None
    assert train_ticks(make_study(**STEPS)) == 44
