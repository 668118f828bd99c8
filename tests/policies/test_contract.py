"""What every policy of the union, and every control, must keep."""

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
from policies.contract import (
    FRAME,
    ContractBroken,
    check_deciding_changes_nothing,
    check_json_trip,
    check_pickled_goes_on,
    check_policy,
    check_same_samples_same_decisions,
    check_the_past_alone_counts,
    decisions,
)
from policies.controls import ScheduledPolicy
from policies.observation import (
    Action,
    Decision,
    IslandProgress,
    Policy,
    Reading,
    Reason,
    Sample,
    Seen,
)

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
# Tests share the machine: how long an example takes says nothing.
UNHURRIED = settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])


def fresh(name: str) -> Policy:
    if name == "scheduled":
        return ScheduledPolicy((4, 9, 30))
    return build_policy(
        BY_NAME[name], step_interval_s=0.25, tick_s=1.0, frame=FRAME, random_starts=(4, 9, 30)
    )


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
@given(log=logs(), data=st.data())
def test_decisions_follow_from_the_samples_alone_bit_for_bit(
    name: str, log: list[Sample], data: st.DataObject
) -> None:
    def make() -> Policy:
        return fresh(name)

    check_same_samples_same_decisions(make, log)
    check_json_trip(make, log)
    check_pickled_goes_on(make, log, cut=data.draw(st.integers(0, len(log))))


@pytest.mark.parametrize("name", NAMES)
@UNHURRIED
@given(log=logs(), times=st.integers(1, 3))
def test_deciding_changes_nothing(name: str, log: list[Sample], times: int) -> None:
    check_deciding_changes_nothing(lambda: fresh(name), log, times=times)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@UNHURRIED
@given(log=logs(), other=contents, data=st.data())
def test_what_comes_later_changes_no_earlier_decision(
    name: str, log: list[Sample], other: dict[str, Any], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(log)))
    changed = [replace(sample, **other) for sample in log]
    check_the_past_alone_counts(lambda: fresh(name), log, changed, cut=cut)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_policy_keeps_the_contract_as_users_are_told_to_check_it(name: str) -> None:
    check_policy(lambda: fresh(name), seed=5)


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


class Faulty:
    """Answers with the number of samples so far, and breaks one rule where told to."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.seen = 0
        self.box = [0]

    def observe(self, sample: Sample) -> None:
        self.seen += 1

    def decide(self, seen: Seen) -> Any:
        score: Any = float(self.seen)
        match self.fault:
            case "counts its questions":
                self.seen += 1
            case "remembers its questions":
                self.box[0] += 1
            case "is not reproducible":
                CALLS.append(1)
                score = float(len(CALLS))
            case "nan":
                score = float("nan")
            case "numpy":
                score = np.int64(self.seen)
            case "no decision":
                return Action.DEFER
        return Decision(action=Action.DEFER, reason=Reason.SCORE_BELOW, score=score)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        return {**state, "seen": 0} if self.fault == "forgets when moved" else state


CALLS: list[int] = []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("counts its questions", "asked twice, it gave two answers"),
        ("remembers its questions", "decide changed the policy's state"),
        ("is not reproducible", "a second run on the same samples changed the decision"),
        ("nan", "cannot be written as strict JSON"),
        ("numpy", "cannot be written as strict JSON"),
        ("no decision", "which is no Decision"),
        ("forgets when moved", "pickling changed the decision"),
    ],
)
def test_a_policy_that_breaks_a_rule_is_told_which(fault: str, said: str) -> None:
    check_policy(lambda: Faulty("none"))
    with pytest.raises(ContractBroken, match=said):
        check_policy(lambda: Faulty(fault))
