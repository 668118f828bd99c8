"""Corridor, budget and blind mode hold under any policy, each with its own reason."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.controls import ScheduledPolicy
from policies.corridor import Corridor
from policies.fixed import FixedH
from policies.observation import Action, Decision, Policy, Reason, Sample, Seen
from policies.wrapper import CorridorWrapper

MakeSample = Callable[..., Sample]
CORRIDOR = Corridor(floor_ticks=3, ceiling_ticks=10, width_ticks=4, horizon_ticks=38)


class Stubborn:
    """Answers from a list, one tick each, whatever is asked; keeps what it saw."""

    def __init__(self, answers: list[bool]) -> None:
        self._answers = answers
        self.asked: list[Seen] = []
        self.observed: list[int] = []

    def observe(self, sample: Sample) -> None:
        self.observed.append(sample.tick)

    def decide(self, seen: Seen) -> Decision:
        self.asked.append(seen)
        merge = self._answers[seen.tick % len(self._answers)]
        return Decision(
            action=Action.MERGE if merge else Action.DEFER, reason=Reason.SCORE_ABOVE, score=1.5
        )


def wrap(
    corridor: Corridor, policy: Policy, *, budget: int | None, needs_probes: bool = True
) -> CorridorWrapper:
    return CorridorWrapper(
        corridor,
        budget=budget,
        policy=policy,
        tick_s=1.0,
        target_gap_ticks=5,
        needs_probes=needs_probes,
    )


def run(
    wrapper: CorridorWrapper, corridor: Corridor, samples: list[Sample]
) -> tuple[list[int], list[Decision]]:
    """Tick through the horizon as a coordinator does."""
    starts: list[int] = []
    decisions = []
    end = 0
    for sample in samples:
        wrapper.observe(sample)
        decision, earliest, latest = wrapper.decide(
            sample,
            merges_done=len(starts),
            last_end_tick=end,
            in_window=bool(starts) and sample.tick < end,
        )
        decisions.append(decision)
        if decision.action is Action.MERGE:
            assert earliest is not None
            assert latest is not None
            assert earliest <= sample.tick <= latest
            starts.append(sample.tick)
            end = sample.tick + corridor.width_ticks
    return starts, decisions


@st.composite
def corridors_with_budget(draw: st.DrawFn) -> tuple[Corridor, int]:
    floor = draw(st.integers(0, 8))
    corridor = Corridor(
        floor_ticks=floor,
        ceiling_ticks=max(1, floor + draw(st.integers(0, 10))),
        width_ticks=draw(st.integers(1, 6)),
        horizon_ticks=draw(st.integers(20, 70)),
    )
    budgets = corridor.budgets()
    if not budgets:  # a narrow corridor may miss the horizon's end; this one never does
        corridor = Corridor(
            floor_ticks=floor,
            ceiling_ticks=floor + 20,
            width_ticks=corridor.width_ticks,
            horizon_ticks=corridor.horizon_ticks,
        )
        budgets = corridor.budgets()
    return corridor, draw(st.sampled_from(budgets))


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    case=corridors_with_budget(),
    answers=st.lists(st.booleans(), min_size=1, max_size=70),
    blind=st.lists(st.booleans(), min_size=1, max_size=70),
    needs_probes=st.booleans(),
)
def test_no_policy_leaves_the_corridor_or_the_budget(
    make_sample: MakeSample,
    case: tuple[Corridor, int],
    answers: list[bool],
    blind: list[bool],
    needs_probes: bool,
) -> None:
    corridor, budget = case
    policy = Stubborn(answers)
    wrapper = wrap(corridor, policy, budget=budget, needs_probes=needs_probes)
    samples = [
        make_sample(tick, blind=blind[tick % len(blind)]) for tick in range(corridor.horizon_ticks)
    ]
    starts, decisions = run(wrapper, corridor, samples)
    assert len(starts) == budget
    assert corridor.contains(starts)
    assert policy.observed == list(range(corridor.horizon_ticks))  # windows included
    for seen in policy.asked:
        assert seen.earliest_tick <= seen.tick < seen.latest_tick
        assert not (seen.blind and needs_probes)
        assert decisions[seen.tick].score == 1.5  # the policy's own answer, untouched


@pytest.mark.slow
def test_adversaries_reach_none_but_feasible_schedules_on_700_corridors(
    make_sample: MakeSample, brute_force: list[tuple[Corridor, dict[int, npt.NDArray[np.int64]]]]
) -> None:
    """Always, never, and at random: the wrapper's schedule is one of those by brute force."""
    rng = np.random.default_rng(6)
    samples = [make_sample(tick) for tick in range(20)]
    cases = 0
    for corridor, by_budget in brute_force:
        for budget, schedules in by_budget.items():
            feasible = set(map(tuple, schedules.tolist()))
            for answers in ([True], [False], (rng.random(20) < 0.3).tolist()):
                wrapper = wrap(corridor, Stubborn(answers), budget=budget)
                starts, _ = run(wrapper, corridor, samples[: corridor.horizon_ticks])
                assert tuple(starts) in feasible, (corridor, budget)
                cases += 1
    assert cases > 1500


@settings(deadline=None, max_examples=100)
@given(case=corridors_with_budget(), seed=st.integers(0, 2**32 - 1))
def test_every_feasible_schedule_passes_through_unchanged(
    make_sample: MakeSample, case: tuple[Corridor, int], seed: int
) -> None:
    corridor, budget = case
    drawn = corridor.sample(budget, size=1, rng=np.random.default_rng(seed))[0]
    schedule = tuple(int(t) for t in drawn)
    wrapper = wrap(corridor, ScheduledPolicy(schedule), budget=budget, needs_probes=False)
    samples = [make_sample(tick, blind=True) for tick in range(corridor.horizon_ticks)]
    starts, _ = run(wrapper, corridor, samples)
    assert tuple(starts) == schedule


def test_each_reason_in_a_run_that_always_defers(make_sample: MakeSample) -> None:
    samples = [make_sample(tick) for tick in range(38)]
    starts, decisions = run(wrap(CORRIDOR, Stubborn([False]), budget=3), CORRIDOR, samples)
    assert starts == [10, 24, 34]  # twice at the ceiling, then at the last tick that ends by T
    reasons = [d.reason for d in decisions]
    assert reasons[:3] == [Reason.BELOW_FLOOR] * 3
    assert reasons[3:10] == [Reason.SCORE_ABOVE] * 7
    assert reasons[10] is Reason.AT_CEILING
    assert reasons[11:14] == [Reason.IN_WINDOW] * 3
    assert reasons[34] is Reason.BUDGET  # 6 ticks since the last, so the ceiling did not force it
    assert decisions[34].action is Action.MERGE


def test_the_budget_forbids_and_the_spent_budget_says_horizon(make_sample: MakeSample) -> None:
    """Two merges in 38 ticks only fit late: the earliest two would force a third."""
    samples = [make_sample(tick) for tick in range(38)]
    starts, decisions = run(wrap(CORRIDOR, Stubborn([True]), budget=2), CORRIDOR, samples)
    assert starts == [7, 21]  # not at 3: then the second could not reach beyond 20
    reasons = [d.reason for d in decisions]
    assert reasons[:3] == [Reason.BELOW_FLOOR] * 3
    assert reasons[3:7] == [Reason.BUDGET] * 4
    assert [d.action for d in decisions[3:7]] == [Action.DEFER] * 4
    assert reasons[25:] == [Reason.HORIZON] * 13


def test_blind_defers_until_forced_and_only_where_probes_are_needed(
    make_sample: MakeSample,
) -> None:
    samples = [make_sample(tick, blind=True) for tick in range(38)]
    starts, decisions = run(wrap(CORRIDOR, Stubborn([True]), budget=3), CORRIDOR, samples)
    assert starts == [10, 24, 34]
    assert [d.reason for d in decisions[3:10]] == [Reason.BLIND] * 7
    assert all(d.action is Action.DEFER and d.score is None for d in decisions[3:10])
    sighted = wrap(CORRIDOR, FixedH(5), budget=3, needs_probes=False)
    starts, decisions = run(sighted, CORRIDOR, samples)
    assert starts[:2] == [5, 14]
    assert Reason.BLIND not in {d.reason for d in decisions}


def test_the_range_is_told_whenever_a_merge_is_still_to_come(make_sample: MakeSample) -> None:
    wrapper = wrap(CORRIDOR, Stubborn([False]), budget=3)
    state = {"merges_done": 0, "last_end_tick": 0}
    assert wrapper.decide(make_sample(0), **state, in_window=False)[1:] == (3, 10)
    assert wrapper.decide(make_sample(5), **state, in_window=False)[1:] == (3, 10)
    assert wrapper.decide(make_sample(5), **state, in_window=True)[1:] == (None, None)
    spent = {"merges_done": 3, "last_end_tick": 30}
    decision, earliest, latest = wrapper.decide(make_sample(31), **spent, in_window=False)
    assert (decision.reason, earliest, latest) == (Reason.HORIZON, None, None)


def test_a_merge_that_would_not_end_by_the_horizon_is_refused(make_sample: MakeSample) -> None:
    """Reached only when an overrun window held the last merge up."""
    wrapper = wrap(CORRIDOR, Stubborn([True]), budget=3)
    state = {"merges_done": 2, "last_end_tick": 28}
    late, _, _ = wrapper.decide(make_sample(35), **state, in_window=False)
    assert (late.action, late.reason) == (Action.DEFER, Reason.HORIZON)
    last, _, _ = wrapper.decide(make_sample(34), **state, in_window=False)
    assert last.action is Action.MERGE


def test_after_an_overrun_the_plain_corridor_goes_on(make_sample: MakeSample) -> None:
    """The budget of 5 is out of reach from here; training still merges inside floor and ceiling."""
    wrapper = wrap(CORRIDOR, Stubborn([False]), budget=5)
    state = {"merges_done": 1, "last_end_tick": 20}
    assert CORRIDOR.next_range(merges_done=1, last_end_tick=20, budget=5) is None
    decision, earliest, latest = wrapper.decide(make_sample(22), **state, in_window=False)
    assert (decision.reason, earliest, latest) == (Reason.BELOW_FLOOR, 23, 30)
    forced, _, _ = wrapper.decide(make_sample(30), **state, in_window=False)
    assert (forced.action, forced.reason) == (Action.MERGE, Reason.AT_CEILING)
    past, _, _ = wrapper.decide(make_sample(33), **state, in_window=False)  # held up by a window
    assert (past.action, past.reason) == (Action.MERGE, Reason.AT_CEILING)


def test_an_infeasible_budget_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"budget_merges=9 .*feasible budgets: 2 to 5"):
        wrap(CORRIDOR, FixedH(5), budget=9)


@settings(deadline=None, max_examples=100)
@given(case=corridors_with_budget(), answers=st.lists(st.booleans(), min_size=1, max_size=70))
def test_without_a_budget_the_corridor_alone_binds(
    make_sample: MakeSample, case: tuple[Corridor, int], answers: list[bool]
) -> None:
    corridor, _ = case
    policy = Stubborn(answers)
    wrapper = wrap(corridor, policy, budget=None)
    samples = [make_sample(tick) for tick in range(corridor.horizon_ticks + 1)]
    starts, decisions = run(wrapper, corridor, samples)
    ends = [0, *(s + corridor.width_ticks for s in starts)]
    for start, end in zip(starts, ends, strict=False):
        assert corridor.floor_ticks <= start - end <= corridor.ceiling_ticks
    last = corridor.horizon_ticks - corridor.width_ticks
    assert all(s <= last for s in starts)
    assert ends[-1] + corridor.ceiling_ticks > last  # no merge that was due is left out
    reasons = {d.reason for d in decisions}
    assert Reason.BUDGET not in reasons
    forced = [d for d in decisions if d.reason is Reason.AT_CEILING]
    assert len(forced) == sum(
        s - e == corridor.ceiling_ticks for s, e in zip(starts, ends, strict=False)
    )
    assert {seen.budget for seen in policy.asked} <= {0}


def test_without_a_budget_the_horizon_forces_no_merge(make_sample: MakeSample) -> None:
    samples = [make_sample(tick) for tick in range(CORRIDOR.horizon_ticks + 1)]
    never, _ = run(wrap(CORRIDOR, Stubborn([False]), budget=None), CORRIDOR, samples)
    always, _ = run(wrap(CORRIDOR, Stubborn([True]), budget=None), CORRIDOR, samples)
    assert never == [10, 24]  # the next would be due at 38, when no merge can end in time
    assert always == [3, 10, 17, 24, 31]
