"""What every policy of the union, and every control, must keep."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.build import build_policy
from policies.config import (
    AnalogConfig,
    EnsembleConfig,
    EwmaThresholdConfig,
    FixedHConfig,
    PolicyConfig,
    PressureGateConfig,
    SeasonConfig,
    StoppingConfig,
    UniformRandomConfig,
    WaEwmaConfig,
    WaScoreConfig,
)
from policies.controls import ScheduledPolicy
from policies.corridor import Corridor
from policies.frame import Frame
from policies.observation import Action, Decision, IslandProgress, Policy, Reading, Sample, Seen

# Short memories, so that they act within a log.
MEMBERS = (
    EwmaThresholdConfig(kind="ewma_threshold", memory_s=20.0, least_data_s=6.0, refit_s=3.0),
    StoppingConfig(kind="stopping", bins=3, memory_s=20.0, least_data_s=6.0, refit_s=3.0),
    SeasonConfig(
        kind="season", memory_s=30.0, least_data_s=6.0, refit_s=3.0, least_correlation=0.0
    ),
    AnalogConfig(
        kind="analog",
        neighbours=2,
        context_s=3.0,
        bins=3,
        memory_s=25.0,
        least_data_s=6.0,
        refit_s=3.0,
    ),
)
CONFIGS: list[PolicyConfig] = [
    FixedHConfig(kind="fixed_h", h_steps=20),
    PressureGateConfig(kind="pressure_gate", pressure_threshold=0.4),
    WaScoreConfig(kind="wa_score", token_scale_tokens=1000.0, stale_scale_s=30.0),
    WaEwmaConfig(kind="wa_ewma", half_life_s=2.0, mean_half_life_s=20.0, w_stale=0.1),
    *MEMBERS,
    EnsembleConfig(kind="ensemble", members=MEMBERS, gain_half_life_s=30.0),
    UniformRandomConfig(kind="uniform_random"),
]
FORESIGHT = StoppingConfig(
    kind="stopping",
    levels_of="forecast",
    bins=3,
    memory_s=60.0,
    least_data_s=6.0,
    refit_s=3.0,
)
BY_NAME: dict[str, PolicyConfig] = {**{c.kind: c for c in CONFIGS}, "foresight": FORESIGHT}
FORECASTERS = (*(c.kind for c in MEMBERS), "foresight", "ensemble")
NAMES = [*BY_NAME, "scheduled"]
DECISION_TICKS = 30
KNOWN_TICKS = 45  # as many as the greediest of them needs
FRAME = Frame(
    corridor=Corridor(floor_ticks=0, ceiling_ticks=11, width_ticks=3, horizon_ticks=60),
    target_gap_ticks=6,
    tick_s=1.0,
)
# Tests share the machine: how long an example takes says nothing.
UNHURRIED = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])


def fresh(name: str) -> Policy:
    if name == "scheduled":
        return ScheduledPolicy((4, 9, 30))
    return build_policy(
        BY_NAME[name], step_interval_s=0.25, tick_s=1.0, frame=FRAME, random_starts=(4, 9, 30)
    )


def seen_at(sample: Sample) -> Seen:
    last_end = sample.tick // 12 * 12
    return Seen(
        tick=sample.tick,
        now_s=sample.now_s,
        tick_s=1.0,
        last_end_tick=last_end,
        earliest_tick=last_end,
        latest_tick=last_end + 11,
        merges_done=sample.tick // 12,
        budget=4,
        width_ticks=3,
        target_gap_ticks=6,
        blind=sample.blind,
    )


def decisions(policy: Policy, samples: list[Sample]) -> list[Decision]:
    answers = []
    for sample in samples:
        policy.observe(sample)
        answers.append(policy.decide(seen_at(sample)))
    return answers


readings = st.none() | st.builds(Reading, value=st.floats(0, 1), age_s=st.floats(0, 3))
islands = st.builds(
    IslandProgress,
    island=st.integers(0, 3),
    steps_since_merge=st.integers(0, 100),
    tokens_since_merge=st.integers(0, 3000),
    loss_drop=st.none() | st.floats(-1, 1),
    staleness_s=st.floats(0, 60),
)
contents = st.fixed_dictionaries(
    {
        "arrivals": st.none() | st.integers(0, 50),
        "in_flight": st.none() | st.integers(0, 50),
        "serving": readings,
        "network": readings,
        "checkpoint": readings,
        "islands": st.lists(islands, max_size=3).map(tuple),
        "blind": st.booleans(),
    }
)


@st.composite
def logs(draw: st.DrawFn) -> list[Sample]:
    late_s = draw(st.floats(0, 0.4))  # a tick's sample is taken a little after the tick
    filled: list[dict[str, Any]] = draw(st.lists(contents, min_size=1, max_size=DECISION_TICKS))
    if draw(st.booleans()):  # with enough known counts before, so that the forecasters act
        rng = np.random.default_rng(draw(st.integers(0, 9)))
        known = rng.integers(0, 9, size=(KNOWN_TICKS, 2)).tolist()
        plain = {**filled[0], "blind": False}
        filled = [{**plain, "arrivals": a, "in_flight": f} for a, f in known] + filled
    return [Sample(tick=t, now_s=t + late_s * (t % 2), **f) for t, f in enumerate(filled)]


def test_every_kind_of_the_union_is_tested_here() -> None:
    union = get_args(get_args(PolicyConfig)[0])
    assert {type(c) for c in CONFIGS} == set(union)


@pytest.mark.parametrize("name", NAMES)
@UNHURRIED
@given(log=logs())
def test_the_same_samples_give_the_same_decisions_bit_for_bit(name: str, log: list[Sample]) -> None:
    first = decisions(fresh(name), log)
    assert decisions(fresh(name), log) == first


@pytest.mark.parametrize("name", NAMES)
@UNHURRIED
@given(log=logs(), data=st.data())
def test_a_pickled_policy_goes_on_where_it_stood(
    name: str, log: list[Sample], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(log)))
    policy = fresh(name)
    before = decisions(policy, log[:cut])
    moved: Policy = pickle.loads(pickle.dumps(policy))
    assert before + decisions(moved, log[cut:]) == decisions(fresh(name), log)


@pytest.mark.parametrize("name", NAMES)
@UNHURRIED
@given(log=logs(), times=st.integers(1, 3))
def test_deciding_changes_nothing(name: str, log: list[Sample], times: int) -> None:
    asked, unasked = fresh(name), fresh(name)
    for sample in log:
        asked.observe(sample)
        unasked.observe(sample)
        state = pickle.dumps(asked)
        answers = {asked.decide(seen_at(sample)) for _ in range(times)}
        assert len(answers) == 1
        assert pickle.dumps(asked) == state
    assert unasked.decide(seen_at(log[-1])) in answers


@pytest.mark.parametrize("name", NAMES)
@UNHURRIED
@given(log=logs(), other=contents, data=st.data())
def test_what_comes_later_changes_no_earlier_decision(
    name: str, log: list[Sample], other: dict[str, Any], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(log)))
    changed = [*log[:cut], *(replace(sample, **other) for sample in log[cut:])]
    assert decisions(fresh(name), changed)[:cut] == decisions(fresh(name), log)[:cut]


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_answers_when_nothing_is_known(
    name: str, make_sample: Callable[..., Sample]
) -> None:
    log = [make_sample(tick) for tick in range(DECISION_TICKS)]
    answers = decisions(fresh(name), log)
    assert {type(a) for a in answers} == {Decision}
    merged = any(a.action is Action.MERGE for a in answers)
    # Forecasters keep the target cadence until they have data.
    by_the_clock = ("fixed_h", "scheduled", "uniform_random", *FORECASTERS)
    assert merged == (name in by_the_clock)


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_answers_before_its_first_sample(
    name: str, make_seen: Callable[..., Seen]
) -> None:
    assert fresh(name).decide(make_seen(tick=0)).action is Action.DEFER
