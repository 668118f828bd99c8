"""What a complete run says of the things that went wrong in it."""

from actors.events import CheckpointFailed, Event, IslandDropped, IslandJoined, MergeFailed
from orchestrator.training.marks import run_marks
from tests.orchestrator.training.made_runs import started


def dropped(event_id: int, island: int) -> IslandDropped:
    return IslandDropped(event_id=event_id, at_s=1.0, island=island, round=2, why="no answer")


def joined(event_id: int, island: int) -> IslandJoined:
    return IslandJoined(
        event_id=event_id, at_s=2.0, island=island, rounds_applied=3, kept_steps=False
    )


def test_a_run_without_trouble_has_nothing_to_say() -> None:
    assert run_marks([started(1)]) == []


def test_each_kind_of_trouble_is_counted_with_its_first_reason() -> None:
    events: list[Event] = [
        MergeFailed(event_id=1, cause_id=0, round=0, at_s=1.0, why="no quorum"),
        MergeFailed(event_id=2, cause_id=0, round=0, at_s=2.0, why="another"),
        CheckpointFailed(event_id=3, at_s=2.0, round=1, why="disk full"),
    ]
    assert run_marks(events) == [
        "2 merges did not take place (no quorum)",
        "1 checkpoint could not be written (disk full)",
    ]


def test_who_was_left_out_is_told_with_who_came_back() -> None:
    events: list[Event] = [dropped(1, 0), dropped(2, 2), joined(3, 0)]
    assert run_marks(events) == ["islands were left out 2 x (no answer); out at the end: 2"]
    assert run_marks([dropped(1, 0), joined(2, 0)]) == [
        "islands were left out 1 x (no answer); all were back at the end"
    ]
