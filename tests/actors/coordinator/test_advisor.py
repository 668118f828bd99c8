"""The plain advisor: all merge at the same steps, inside the corridor, as often as the budget."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from actors.clock import VirtualClock
from actors.config import TelemetryConfig
from actors.coordinator.advice import (
    AdviceRefused,
    AdvisorSilent,
    Merged,
    MergeDecision,
    Report,
    Standing,
)
from actors.coordinator.advisor import Advisor, AdvisorSetting, Readings
from actors.coordinator.coordinator import Coordinator
from actors.coordinator.sampling import SampleBuilder
from actors.events import ArmStarted, Decided, Event, MergeFinished, MergeStarted, Ticked
from actors.load.snapshot import LoadSnapshot
from actors.telemetry.snapshot import TelemetrySnapshot
from policies.corridor import Corridor
from policies.observation import Action, Decision, Policy, Reason, Sample, Seen
from policies.wrapper import CorridorWrapper
from tests.advising import train

TELEMETRY = TelemetryConfig(
    serving_full_requests=10, network_full_bytes_per_s=1e9, checkpoint_full_bytes_per_s=1e9
)
WIDTH = 3
NOTHING = Readings(load=None, telemetry=None)


class Stubborn:
    """Answers from a list by tick, whatever is asked, and keeps what it saw."""

    def __init__(self, answers: Sequence[bool]) -> None:
        self.answers = answers
        self.seen: list[Sample] = []

    def observe(self, sample: Sample) -> None:
        self.seen.append(sample)

    def decide(self, seen: Seen) -> Decision:
        merge = self.answers[seen.tick % len(self.answers)]
        return Decision(
            action=Action.MERGE if merge else Action.DEFER, reason=Reason.SCORE_ABOVE, score=0.5
        )


class World:
    """An advisor of a stubborn policy, floor 10 and ceiling 40 steps, a tick of 5 steps."""

    def __init__(
        self,
        answers: Sequence[bool] = (True,),
        *,
        tick_steps: int = 5,
        floor_steps: int = 10,
        ceiling_steps: int = 40,
        horizon_ticks: int = 100_000,
        budget: int | None = None,
        notice_steps: int = 0,
        silence_s: float = 1e9,
        start_step: int = 0,
    ) -> None:
        self.clock = VirtualClock()
        self.readings = NOTHING
        self.policy = Stubborn(answers)
        self.corridor = Corridor(
            floor_ticks=-(-floor_steps // tick_steps),
            ceiling_ticks=ceiling_steps // tick_steps,
            width_ticks=WIDTH,
            horizon_ticks=horizon_ticks,
        )
        self.budget = budget
        self.advisor = Advisor(
            self.coordinator(self.policy),
            setting=AdvisorSetting(
                name="x",
                policy="stubborn",
                learners=2,
                start_step=start_step,
                floor_steps=floor_steps,
                ceiling_steps=ceiling_steps,
                tick_steps=tick_steps,
                tick_s=1.0,
                width_ticks=WIDTH,
                window_s=2.0,
                notice_steps=notice_steps,
                silence_s=silence_s,
            ),
            builder=SampleBuilder(TELEMETRY, zero_s=0.0, offsets_s={}),
            read=lambda: self.readings,
            now_s=self.clock.now_s,
        )

    def coordinator(self, policy: Policy) -> Coordinator:
        wrapper = CorridorWrapper(
            self.corridor,
            budget=self.budget,
            policy=policy,
            tick_s=1.0,
            target_gap_ticks=self.corridor.floor_ticks,
            needs_probes=False,
        )
        return Coordinator(
            wrapper,
            tick_s=1.0,
            width_ticks=WIDTH,
            horizon_ticks=self.corridor.horizon_ticks,
        )

    def ask(
        self,
        learner: int,
        step: int,
        *,
        merges: int = 0,
        last: int | None = None,
        loss: float | None = None,
        trainer: str = "",
    ) -> MergeDecision:
        return self.advisor.ask(
            Report(
                learner=learner,
                step=step,
                tokens=100 * step,
                loss=loss,
                merges=merges,
                last_merge_step=last,
                trainer_id=trainer,
            )
        )


def decided(events: Sequence[Event]) -> list[tuple[int, Decision, int | None, int | None]]:
    return [
        (e.tick, e.decision, e.earliest_tick, e.latest_tick)
        for e in events
        if isinstance(e, Decided)
    ]


PACES = st.lists(st.sampled_from([0.4, 1.0, 1.7, 5.0]), min_size=1, max_size=4)
ANSWERS = st.lists(st.booleans(), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(
    answers=ANSWERS,
    paces=PACES,
    tick_steps=st.integers(1, 7),
    floor_steps=st.integers(1, 15),
    reach_steps=st.integers(0, 30),
    notice_steps=st.integers(0, 4),
    tell=st.booleans(),
)
def test_all_learners_merge_at_the_same_steps_and_the_corridor_holds_in_steps(
    answers: list[bool],
    paces: list[float],
    tick_steps: int,
    floor_steps: int,
    reach_steps: int,
    notice_steps: int,
    tell: bool,
) -> None:
    ceiling_steps = floor_steps + reach_steps
    assume(-(-floor_steps // tick_steps) <= ceiling_steps // tick_steps)
    assume(notice_steps < floor_steps)
    world = World(
        answers,
        tick_steps=tick_steps,
        floor_steps=floor_steps,
        ceiling_steps=ceiling_steps,
        notice_steps=notice_steps,
    )
    merges = train(world.advisor, world.clock, step_s=paces, steps=120, tell=tell)
    assert all(own == merges[0] for own in merges)
    gaps = [b - a for a, b in pairwise([0, *merges[0]])]
    assert all(floor_steps <= gap <= ceiling_steps for gap in gaps)
    assert 120 - sum(gaps) <= ceiling_steps  # and no merge that was due is missing
    assert merges[0] or ceiling_steps >= 120


@settings(max_examples=40, deadline=None)
@given(
    answers=ANSWERS,
    paces=PACES,
    tick_steps=st.integers(1, 6),
    ticks=st.integers(20, 60),
    pick=st.integers(0, 1000),
)
def test_the_budget_is_met_exactly_whatever_the_policy_wants(
    answers: list[bool], paces: list[float], tick_steps: int, ticks: int, pick: int
) -> None:
    shape = {"floor_ticks": 2, "ceiling_ticks": 8, "width_ticks": WIDTH}
    fitting = [
        budget
        for budget in range(1, 31)
        if budget in Corridor(**shape, horizon_ticks=ticks + budget * WIDTH).budgets()
    ]
    budget = fitting[pick % len(fitting)]
    world = World(
        answers,
        tick_steps=tick_steps,
        floor_steps=2 * tick_steps,
        ceiling_steps=8 * tick_steps,
        horizon_ticks=ticks + budget * WIDTH,
        budget=budget,
    )
    merges = train(world.advisor, world.clock, step_s=paces, steps=(ticks + 9) * tick_steps)
    assert {len(own) for own in merges} == {budget}
    assert all(own == merges[0] for own in merges)
    assert merges[0][-1] <= ticks * tick_steps


def test_the_log_alone_gives_the_decisions_again() -> None:
    world = World([True, False, False, True, False])
    merges = train(world.advisor, world.clock, step_s=[1.0, 1.3, 0.8], steps=300)
    log = world.advisor.drain_events()
    again = world.coordinator(Stubborn([True, False, False, True, False]))
    for event in log:
        if not isinstance(event, Decided | MergeStarted):
            again.handle(event)
    assert decided(again.drain_log()) == decided(log)
    started = [e for e in log if isinstance(e, MergeStarted)]
    assert len(started) == len(merges[0]) > 5
    assert len([e for e in log if isinstance(e, MergeFinished)]) == len(started)
    assert isinstance(log[0], ArmStarted)


def test_the_first_to_come_decides_and_the_others_hear_the_same() -> None:
    world = World()
    assert not world.ask(0, 1)
    assert not world.ask(1, 1)
    first = world.ask(0, 5)
    assert (first.merge, first.reason, first.ask_at_step) == (False, "below_floor", 10)
    now = world.ask(0, 10)
    assert (now.merge, now.reason, now.merge_at_step, now.round) == (True, "score_above", 10, 0)
    late = world.ask(1, 7)
    assert (late.merge, late.merge_at_step, late.ask_at_step) == (False, 10, 10)
    assert world.ask(1, 10).merge
    assert [tick for tick, _, _, _ in decided(world.advisor.drain_events())] == [0, 1, 2]


def test_no_decision_concerns_a_step_that_somebody_was_let_go_past() -> None:
    """The slow one was told to ask at 20, so nothing may be decided for an earlier step."""
    world = World([False])
    assert world.ask(1, 2).ask_at_step == 5
    for step in (5, 10, 15):
        world.ask(0, step)
    assert world.ask(1, 5).ask_at_step == 20
    world.policy.answers = (True,)
    assert world.ask(0, 20).merge_at_step == 20
    assert world.ask(1, 20).merge


def test_one_that_asks_too_late_is_never_left_behind_by_its_own_merge() -> None:
    """Asking every seven steps, against the contract: the merge is where it stands."""
    world = World()
    world.ask(0, 1)
    world.ask(1, 7)
    assert world.ask(1, 14).merge_at_step == 14
    assert world.ask(0, 14).merge


def test_a_notice_names_the_step_beforehand() -> None:
    world = World(notice_steps=3)
    assert world.ask(0, 1).ask_at_step == 2
    assert not world.ask(0, 6)
    told = world.ask(0, 7)  # three before the floor of 10
    assert (told.merge, told.merge_at_step) == (False, 10)


def test_progress_of_every_learner_is_in_the_sample() -> None:
    world = World([False])
    world.clock.advance(1.0)
    for step, loss in ((1, 4.0), (4, 3.0)):
        world.ask(1, step, loss=loss)
    world.ask(0, 5, loss=None)
    sample = world.policy.seen[-1]
    assert sample.tick == 1
    assert [p.island for p in sample.islands] == [0, 1]
    assert [p.steps_since_merge for p in sample.islands] == [5, 4]
    assert [p.tokens_since_merge for p in sample.islands] == [0, 300]  # from the first report on
    assert [p.loss_drop for p in sample.islands] == [None, 1.0]
    assert (sample.blind, sample.serving, sample.arrivals) == (True, None, None)


def test_progress_starts_anew_after_a_merge() -> None:
    world = World()
    world.ask(0, 1)
    world.ask(0, 10, loss=2.0)
    world.clock.advance(3.0)
    world.advisor.merged(Merged(learner=0, step=10, merges=1, seconds=3.0, tokens=1000))
    world.ask(0, 11, merges=1, last=10, loss=1.9)
    world.clock.advance(1.0)
    world.ask(0, 15, merges=1, last=10, loss=1.5)
    (island,) = world.policy.seen[-1].islands
    assert (island.steps_since_merge, island.tokens_since_merge) == (5, 500)
    assert island.loss_drop == pytest.approx(0.4)
    assert island.staleness_s == 1.0
    (finished,) = [e for e in world.advisor.drain_events() if isinstance(e, MergeFinished)]
    assert (finished.at_s, finished.overran, finished.parts) == (3.0, True, ())


def test_readings_of_the_server_reach_the_policy() -> None:
    world = World([False])
    world.clock.advance(2.0)
    world.readings = Readings(
        load=LoadSnapshot(
            at_monotonic_s=1.0, scheduled_so_far=7, sent=7, in_flight=2, finished=5, failed=0
        ),
        telemetry=TelemetrySnapshot(
            at_monotonic_s=2.0,
            serving=0.4,
            network=None,
            checkpoint=None,
            serving_at_monotonic_s=1.5,
            network_at_monotonic_s=None,
            checkpoint_at_monotonic_s=None,
            running=3,
            waiting=1,
            error=None,
        ),
    )
    world.ask(0, 5)
    sample = world.policy.seen[-1]
    assert (sample.arrivals, sample.in_flight, sample.blind) == (7, 2, False)
    assert sample.serving is not None
    assert (sample.serving.value, sample.serving.age_s) == (0.4, 0.5)
    assert world.advisor.standing().blind is False


def test_a_window_is_looked_into_once_a_tick() -> None:
    world = World()
    world.ask(0, 1)
    world.advisor.poll()  # no merge: nothing to look at
    assert world.ask(0, 10).merge
    for _ in range(8):
        world.clock.advance(0.6)
        world.advisor.poll()
    assert [s.tick for s in world.policy.seen] == [0, 2, 3, 4]  # the window is ticks 2, 3, 4
    world.ask(0, 15, merges=1, last=10)
    assert [s.tick for s in world.policy.seen][4:] == [6]
    reasons = [d.reason for _, d, _, _ in decided(world.advisor.drain_events())]
    assert reasons[2:4] == [Reason.IN_WINDOW] * 2


def test_ticks_never_go_back_when_a_merge_is_shorter_than_its_window() -> None:
    world = World()
    world.ask(0, 1)
    world.ask(1, 1)
    assert world.ask(0, 10).merge
    world.ask(0, 11, merges=1, last=10)  # learner 1 has still to say that it has merged
    world.clock.advance(1.5)
    world.advisor.poll()
    assert [s.tick for s in world.policy.seen] == [0, 2, 5]


def test_a_silent_learner_is_dropped_and_may_come_back() -> None:
    world = World(silence_s=10.0)
    world.ask(0, 1)
    world.ask(1, 1)
    world.clock.advance(10.5)
    world.ask(0, 5)
    assert world.advisor.standing().learners == (0, 1)  # a tick of grace: it need not ask within
    world.clock.advance(1.0)
    world.ask(0, 6)
    assert world.advisor.standing().learners == (0,)
    world.ask(1, 2)
    assert world.advisor.standing().learners == (0, 1)
    kinds = [(n["kind"], n["learner"]) for n in world.advisor.drain_notes()]
    assert kinds == [("joined", 0), ("joined", 1), ("dropped", 1), ("joined", 1)]


def test_a_dead_learner_does_not_keep_a_merge_open() -> None:
    world = World(silence_s=10.0)
    world.ask(0, 1)
    world.ask(1, 1)
    assert world.ask(0, 10).merge
    world.advisor.merged(Merged(learner=0, step=10, merges=1))
    assert not [e for e in world.advisor.drain_events() if isinstance(e, MergeFinished)]
    world.clock.advance(12.0)
    world.ask(0, 11, merges=1, last=10)
    assert [e for e in world.advisor.drain_events() if isinstance(e, MergeFinished)]


def test_a_joiner_takes_part_in_the_next_merge() -> None:
    world = World()
    train(world.advisor, world.clock, step_s=[1.0, 1.0], steps=12)
    joined = world.ask(7, 11)
    assert (joined.merge, joined.round, joined.ask_at_step) == (False, 1, 15)
    assert world.ask(7, 20).merge
    assert world.ask(0, 20, merges=1, last=10).merge


def test_a_joiner_at_a_step_that_is_over_is_told_where_to_start() -> None:
    world = World()
    train(world.advisor, world.clock, step_s=[1.0, 1.0], steps=12)
    with pytest.raises(AdviceRefused, match=r"learner 7 reports step 3, .* merged at step 10.* 11"):
        world.ask(7, 3)
    assert world.advisor.standing().learners == (0, 1)


def test_one_that_is_started_again_from_the_last_merge_joins_anew() -> None:
    world = World()
    train(world.advisor, world.clock, step_s=[1.0, 1.0], steps=17)
    again = world.ask(0, 11)
    assert (again.merge, again.round) == (False, 1)
    assert [n["kind"] for n in world.advisor.drain_notes()].count("joined") == 3


def test_two_trainers_under_one_number_are_told_apart() -> None:
    world = World([False])
    world.ask(0, 1, trainer="a")
    world.ask(1, 1, trainer="b")
    world.ask(0, 1, trainer="c")  # a new start, or a mistake: nobody can know yet
    with pytest.raises(AdviceRefused, match="learner 0 is another trainer by now"):
        world.ask(0, 2, trainer="a")
    world.ask(0, 2, trainer="c")
    world.ask(1, 2, trainer="b")
    world.ask(1, 3)  # of another client nothing is known, and nothing refused
    assert world.advisor.standing().learners == (0, 1)


def test_a_trainer_that_cannot_be_placed_takes_nobodys_number() -> None:
    world = World()
    for step in range(1, 13):
        for learner in (0, 1):
            merges = int(step > 10)
            world.ask(learner, step, merges=merges, last=10 * merges or None, trainer=str(learner))
    with pytest.raises(AdviceRefused, match="have merged at step 10"):
        world.ask(0, 3, trainer="late")
    world.ask(0, 13, merges=1, last=10, trainer="0")


def test_a_merge_made_alone_counts_for_all_and_the_corridor_goes_on_from_it() -> None:
    """Learner 0 could not reach the advisor and merged at its own H: nobody is asked twice."""
    world = World([False])
    for step in (1, 5, 10, 15):
        world.ask(0, step)
        world.ask(1, step)
    assert world.ask(1, 20).merge is False
    back = world.ask(0, 24, merges=1, last=23)
    assert (back.merge, back.round) == (False, 1)
    other = world.ask(1, 25)
    assert (other.merge, other.reason, other.merge_at_step) == (True, "made_alone", 23)
    step, decision = 25, world.ask(1, 26, merges=1, last=25)
    while not decision.merge:
        step = decision.ask_at_step
        decision = world.ask(1, step, merges=1, last=25)
    assert step - 23 == 40  # the ceiling, from the merge that was made first
    assert decision.reason == "at_ceiling"


def test_a_merge_made_alone_by_dropped_learners_keeps_the_floor() -> None:
    """A silence longer than ``silence_s``: their merge at 33 counts, the next is 10 steps later."""
    world = World(silence_s=10.0)
    for learner in (0, 1):
        world.ask(learner, 1)
        world.ask(learner, 10)
    world.clock.advance(20.0)
    world.advisor.poll()
    assert world.advisor.standing().learners == ()
    back = world.ask(0, 34, merges=2, last=33)
    assert (back.merge, back.round, back.ask_at_step) == (False, 2, 38)
    assert not world.ask(1, 34, merges=2, last=33).merge
    assert not world.ask(0, 38, merges=2, last=33).merge
    assert world.ask(0, 43, merges=2, last=33).merge_at_step == 43
    assert world.ask(1, 43, merges=2, last=33).merge
    assert world.advisor.standing().merges == 3


def test_one_that_was_dropped_makes_the_merge_that_the_others_wait_in_and_all_are_level() -> None:
    """Learner 0 waits in its all-reduce; 1 heard of it three steps late, and keeps its floor."""
    world = World(silence_s=10.0)
    for learner in (0, 1):
        world.ask(learner, 1)
    assert world.ask(0, 10).merge
    world.clock.advance(20.0)
    world.advisor.poll()
    late = world.ask(1, 13)
    assert (late.merge, late.merge_at_step) == (True, 10)
    assert not world.ask(0, 11, merges=1, last=10).merge
    assert not world.ask(1, 14, merges=1, last=13).merge
    told = world.ask(0, 20, merges=1, last=10)
    assert (told.merge, told.merge_at_step) == (False, 23)
    assert world.ask(1, 23, merges=1, last=13).merge
    assert world.ask(0, 23, merges=1, last=10).merge


class Cut:
    """The advisor, with learner 1 cut off from it at some of its steps."""

    def __init__(self, advisor: Advisor, *, steps: range) -> None:
        self._advisor = advisor
        self._steps = steps

    def ask(self, report: Report) -> MergeDecision:
        if report.learner == 1 and report.step in self._steps:
            raise AdvisorSilent("cut off")
        return self._advisor.ask(report)

    def merged(self, done: Merged) -> None:
        self._advisor.merged(done)

    def standing(self) -> Standing:
        return self._advisor.standing()


@pytest.mark.parametrize(
    ("cut", "steps", "merges"),
    [
        # One answer is lost: it merges three steps late, and the next merge waits for its floor.
        (range(18, 23), 53, [[10, 20, 33, 43, 53], [10, 23, 33, 43, 53]]),
        # Cut off for long: its own H of 30 twice, for which the other waits; then level again.
        (range(18, 60), 80, [[10, 20, 30, 80], [10, 40, 70, 80]]),
    ],
)
def test_one_that_is_cut_off_loses_no_merge_and_is_level_again_after_one_round(
    cut: range, steps: int, merges: list[list[int]]
) -> None:
    world = World()
    transport = Cut(world.advisor, steps=cut)
    assert train(transport, world.clock, step_s=[1.0, 1.0], steps=steps) == merges


def test_a_merge_that_outlasts_the_silence_is_told_with_its_seconds() -> None:
    world = World(silence_s=10.0)
    world.ask(0, 1)
    assert world.ask(0, 10).merge
    world.clock.advance(20.0)
    world.advisor.poll()
    world.advisor.merged(Merged(learner=0, step=10, merges=1, seconds=20.0))
    (finished,) = [e for e in world.advisor.drain_events() if isinstance(e, MergeFinished)]
    assert finished.overran


def test_a_count_of_merges_that_cannot_be_is_refused() -> None:
    world = World()
    world.ask(0, 1)
    with pytest.raises(AdviceRefused, match="learner 0 reports 1000000000000 merges"):
        world.ask(0, 2, merges=10**12)
    world.advisor.merged(Merged(learner=0, step=2, merges=10**12))
    assert world.advisor.standing().merges == 0


def test_after_the_horizon_nobody_merges_and_nobody_is_asked_often() -> None:
    world = World(horizon_ticks=2 + 2 * WIDTH)
    merges = train(world.advisor, world.clock, step_s=[1.0], steps=80)
    assert merges == [[10]]
    last = world.ask(0, 81, merges=1, last=10)
    assert (last.merge, last.reason, last.ask_at_step) == (False, "horizon", 86)


def test_ticks_are_counted_in_steps_whatever_the_pace() -> None:
    fast, slow = World([False, True]), World([False, True])
    first = train(fast.advisor, fast.clock, step_s=[0.01, 0.01], steps=200)
    second = train(slow.advisor, slow.clock, step_s=[9.0, 2.0], steps=200)
    assert first == second
    ticks = [
        [e.sample.tick for e in world.advisor.drain_events() if isinstance(e, Ticked)]
        for world in (fast, slow)
    ]
    assert ticks[0] == ticks[1]
