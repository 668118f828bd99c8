"""Fixed H, schedules drawn beforehand, and never merging."""

from collections.abc import Callable

import pytest

from policies.controls import ScheduledPolicy
from policies.fixed import FixedH
from policies.observation import Action, Reason, Seen

MakeSeen = Callable[..., Seen]


def test_fixed_h_counts_from_the_end_of_the_last_merge(make_seen: MakeSeen) -> None:
    policy = FixedH(6)
    early = policy.decide(make_seen(15, last_end_tick=10))
    assert (early.action, early.reason) == (Action.DEFER, Reason.NOT_SCHEDULED)
    assert dict(early.terms) == {"ticks_since_merge": 5.0, "h_ticks": 6.0}
    due = policy.decide(make_seen(16, last_end_tick=10))
    assert (due.action, due.reason) == (Action.MERGE, Reason.SCHEDULED)
    assert policy.decide(make_seen(17, last_end_tick=10)).action is Action.MERGE
    with pytest.raises(ValueError, match="h_ticks=-1"):
        FixedH(-1)


def test_a_schedule_is_followed_start_by_start(make_seen: MakeSeen) -> None:
    policy = ScheduledPolicy((4, 9))
    asked = [(3, 0), (4, 0), (5, 1), (8, 1), (9, 1), (20, 2)]
    merged = [policy.decide(make_seen(t, merges_done=d)).action is Action.MERGE for t, d in asked]
    assert merged == [False, True, False, False, True, False]
    due = policy.decide(make_seen(4))
    assert (due.reason, dict(due.terms)) == (Reason.SCHEDULED, {"next_start_tick": 4.0})
    spent = policy.decide(make_seen(20, merges_done=2))
    assert (spent.reason, dict(spent.terms)) == (Reason.NOT_SCHEDULED, {"next_start_tick": None})


def test_a_start_that_was_missed_comes_at_the_next_chance(make_seen: MakeSeen) -> None:
    assert ScheduledPolicy((4, 9)).decide(make_seen(6)).action is Action.MERGE


@pytest.mark.parametrize("starts", [(4, 4), (9, 4)])
def test_a_schedule_must_rise(starts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not rise"):
        ScheduledPolicy(starts)
