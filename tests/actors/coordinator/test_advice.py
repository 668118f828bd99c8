"""A learner's side: asked rarely, never hung, one count of merges, its own H in a silence."""

import math
from dataclasses import replace

import pytest

from actors.coordinator.advice import (
    ADVISOR_SILENT,
    AdviceRefused,
    AdvisorSilent,
    Learner,
    Merged,
    MergeDecision,
    Progress,
    Report,
    Standing,
)

GO_ON = MergeDecision(merge=False, reason="score_below", merge_at_step=None, ask_at_step=0, round=0)


class Scripted:
    """Answers with what stands in ``answer``; an exception is raised."""

    def __init__(self, answer: MergeDecision | Exception) -> None:
        self.answer = answer
        self.asked: list[Report] = []
        self.told: list[Merged] = []

    def ask(self, report: Report) -> MergeDecision:
        self.asked.append(report)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def merged(self, done: Merged) -> None:
        self.told.append(done)
        if isinstance(self.answer, Exception):
            raise self.answer

    def standing(self) -> Standing:
        raise AdvisorSilent("nobody is there")


def go_on_until(step: int) -> MergeDecision:
    return replace(GO_ON, ask_at_step=step)


def merge_at(step: int, *, now: bool) -> MergeDecision:
    return replace(GO_ON, merge=now, merge_at_step=step, ask_at_step=step, reason="pressure_low")


def learner(transport: Scripted, **more: int) -> Learner:
    return Learner(transport, learner=3, **{"own_h_steps": 10, **more})


def ask(asking: Learner, step: int, loss: float | None = 2.0) -> MergeDecision:
    return asking.ready_to_merge(step, Progress(tokens=8 * step, loss=loss))


def test_between_two_ticks_nobody_is_asked() -> None:
    transport = Scripted(go_on_until(50))
    asking = learner(transport)
    assert not any(ask(asking, step) for step in range(1, 50))
    assert [r.step for r in transport.asked] == [1]
    ask(asking, 50)
    first, last = transport.asked
    assert first.trainer_id == last.trainer_id != ""
    assert last == Report(learner=3, step=50, tokens=400, loss=2.0, trainer_id=first.trainer_id)


def test_a_decision_is_true_when_it_says_merge() -> None:
    assert not GO_ON
    assert merge_at(5, now=True)


def test_a_merge_is_counted_once_whether_it_is_told_or_not() -> None:
    transport = Scripted(merge_at(5, now=True))
    asking = learner(transport)
    assert ask(asking, 5)
    assert ask(asking, 5)  # asked twice before it merges
    assert len(transport.asked) == 1
    transport.answer = go_on_until(9)
    asking.merged(5, seconds=1.5)
    asking.merged(5, seconds=1.5)
    assert not ask(asking, 5)
    assert transport.told == [Merged(learner=3, step=5, merges=1, seconds=1.5, tokens=40, loss=2.0)]
    transport.answer = merge_at(9, now=True)
    assert ask(asking, 9)
    transport.answer = go_on_until(20)
    assert not ask(asking, 10)  # it has gone on, so it has merged
    assert [m.merges for m in transport.told] == [1, 2]
    assert transport.told[-1].seconds is None
    assert transport.asked[-1].merges == 2
    assert transport.asked[-1].last_merge_step == 9
    asking.merged(9)  # too late to count
    assert len(transport.told) == 2


def test_in_a_silence_it_merges_at_its_own_h_and_says_so() -> None:
    transport = Scripted(AdvisorSilent("refused"))
    asking = learner(transport)
    decisions = {step: ask(asking, step) for step in range(1, 11)}
    assert [step for step, decision in decisions.items() if decision] == [10]
    assert [r.step for r in transport.asked] == [1, 2, 4, 8]  # each may cost its time limit
    for decision in decisions.values():
        assert (decision.reason, decision.advised) == (ADVISOR_SILENT, False)
        assert decision.merge_at_step == 10
        assert "refused; this learner merges at its own H of 10 steps: at step 10" in str(
            decision.detail
        )
    asking.merged(10)
    assert transport.told == []  # it would but wait
    ask(asking, 11)
    assert transport.asked[-1].merges == 1
    assert [step for step in range(12, 31) if ask(asking, step)] == [20, 30]


def test_an_advisor_that_comes_back_is_followed_again() -> None:
    transport = Scripted(AdvisorSilent("refused"))
    asking = learner(transport)
    ask(asking, 1)
    transport.answer = go_on_until(30)
    assert ask(asking, 2) == go_on_until(30)
    assert not any(ask(asking, step) for step in range(3, 30))


def test_a_silence_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    transport = Scripted(AdvisorSilent("refused"))
    asking = learner(transport)
    for step in range(1, 26):
        if ask(asking, step):
            asking.merged(step)
    transport.answer = go_on_until(90)
    for step in range(26, 31):
        ask(asking, step)
    began, ended = (r.getMessage() for r in caplog.records)
    assert began.startswith("learner 3, step 1: refused; this learner merges at its own H of 10")
    assert ended.startswith("learner 3: the advisor answers again at step 2")


def test_a_merge_that_was_announced_stands_when_the_advisor_dies() -> None:
    transport = Scripted(merge_at(8, now=False))
    asking = learner(transport)
    assert not ask(asking, 3)
    transport.answer = AdvisorSilent("killed")
    assert not any(ask(asking, step) for step in range(4, 8))
    last = ask(asking, 8)
    assert (last.merge, last.advised, last.reason) == (True, True, "pressure_low")
    assert len(transport.asked) == 1
    asking.merged(8)
    assert ask(asking, 9).merge_at_step == 18


def test_a_learner_that_needs_notice_knows_of_its_own_merge_in_time() -> None:
    transport = Scripted(AdvisorSilent("refused"))
    asking = learner(transport, notice_steps=3)
    assert ask(asking, 1).merge_at_step == 10
    for step in range(2, 8):
        ask(asking, step)
    asked = len(transport.asked)
    transport.answer = go_on_until(40)
    assert [step for step in range(8, 11) if ask(asking, step)] == [10]  # it was on its way
    assert len(transport.asked) == asked
    late = learner(Scripted(go_on_until(30)), notice_steps=3)
    ask(late, 1)
    late._transport = transport  # noqa: SLF001 - past its own H when the silence begins
    transport.answer = AdvisorSilent("refused")
    assert ask(late, 30).merge_at_step == 33


def test_a_loss_that_is_no_number_is_unknown() -> None:
    transport = Scripted(go_on_until(2))
    ask(learner(transport), 1, loss=math.nan)
    assert transport.asked[0].loss is None


def test_a_refusal_reaches_the_trainer() -> None:
    transport = Scripted(AdviceRefused("start at step 11"))
    with pytest.raises(AdviceRefused, match="start at step 11"):
        ask(learner(transport), 1)


def test_one_that_was_refused_counts_its_own_h_from_where_it_starts_again() -> None:
    transport = Scripted(AdviceRefused("start at step 101"))
    asking = learner(transport)
    with pytest.raises(AdviceRefused):
        ask(asking, 3)
    transport.answer = AdvisorSilent("killed")
    assert ask(asking, 101).merge_at_step == 110


def test_a_trainer_that_goes_back_is_not_told_to_merge_there() -> None:
    transport = Scripted(merge_at(20, now=True))
    asking = learner(transport)
    assert ask(asking, 20)
    transport.answer = go_on_until(15)
    assert not ask(asking, 11)  # it loaded an older state, and that merge was not made
    assert (transport.asked[-1].step, transport.asked[-1].merges) == (11, 0)
    assert transport.told == []


def test_a_clock_that_was_set_back_during_a_merge_is_no_fault_of_the_trainer() -> None:
    transport = Scripted(merge_at(5, now=True))
    asking = learner(transport)
    assert ask(asking, 5)
    asking.merged(5, seconds=-0.2)
    transport.answer = merge_at(6, now=True)
    assert ask(asking, 6)
    asking.merged(6, seconds=math.inf)
    assert [m.seconds for m in transport.told] == [None, None]


def test_standing_of_a_silent_advisor_is_none() -> None:
    assert learner(Scripted(GO_ON)).standing() is None


@pytest.mark.parametrize(
    ("name", "value"), [("own_h_steps", 0), ("own_h_steps", 2.5), ("notice_steps", -1)]
)
def test_a_setting_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name}={value!r} is no whole number of at least"):
        learner(Scripted(GO_ON), **{name: value})  # type: ignore[arg-type]
