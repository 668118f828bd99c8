"""The plain coordinator: what it commands, what it logs, and what it refuses."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from actors.coordinator.coordinator import Coordinator
from actors.events import (
    ArmStarted,
    Checkpointed,
    CheckpointFailed,
    Decided,
    EndArm,
    Event,
    Faulted,
    IslandDropped,
    IslandJoined,
    MergeFailed,
    MergeFinished,
    MergePart,
    MergeStarted,
    SidecarRefreshed,
    StartMerge,
    Ticked,
    Validated,
    from_record,
    to_record,
)
from actors.merge_messages import CheckpointFile
from policies.controls import ScheduledPolicy
from policies.corridor import Corridor
from policies.observation import IslandProgress, Reading, Reason, Sample
from policies.wrapper import CorridorWrapper

CORRIDOR = Corridor(floor_ticks=4, ceiling_ticks=12, width_ticks=4, horizon_ticks=34)


def sample(tick: int) -> Sample:
    return Sample(
        tick=tick,
        now_s=tick + 0.01,
        arrivals=3,
        in_flight=2,
        serving=Reading(value=0.25, age_s=0.1),
        network=None,
        checkpoint=None,
        islands=(
            IslandProgress(
                island=0,
                steps_since_merge=5,
                tokens_since_merge=100,
                loss_drop=None,
                staleness_s=1.0,
            ),
        ),
        blind=False,
    )


def coordinator(starts: tuple[int, ...] | None, *, suppressed: bool = False) -> Coordinator:
    wrapper = None
    if starts is not None:
        wrapper = CorridorWrapper(
            CORRIDOR,
            budget=len(starts),
            policy=ScheduledPolicy(starts),
            tick_s=1.0,
            target_gap_ticks=8,
            needs_probes=False,
        )
    made = Coordinator(wrapper, tick_s=1.0, width_ticks=4, horizon_ticks=34, suppressed=suppressed)
    made.handle(ArmStarted(event_id=made.next_id(), at_s=0.0, arm="x", seed=1, islands=(0, 1)))
    return made


def drive(made: Coordinator, *, finish: bool = True) -> list[StartMerge]:
    started = []
    for tick in range(35):
        for command in made.handle(Ticked(event_id=made.next_id(), sample=sample(tick))):
            if isinstance(command, StartMerge):
                started.append(command)
        if started and finish and tick == started[-1].tick + 3 and not started[-1].suppressed:
            made.handle(
                MergeFinished(
                    event_id=made.next_id(),
                    cause_id=started[-1].cause_id,
                    round=started[-1].round,
                    at_s=float(tick),
                    overran=False,
                    parts=(),
                )
            )
    return started


def test_schedule_is_carried_out_to_the_tick() -> None:
    starts = (6, 15, 25)
    assert CORRIDOR.contains(starts)
    commands = drive(coordinator(starts))
    assert tuple(c.tick for c in commands) == starts
    assert [(c.start_s, c.end_s) for c in commands] == [(6.0, 10.0), (15.0, 19.0), (25.0, 29.0)]
    assert all(c.islands == (0, 1) for c in commands)


def test_no_sync_never_merges_and_says_why() -> None:
    made = coordinator(None)
    assert drive(made) == []
    reasons = {e.decision.reason for e in made.drain_log() if isinstance(e, Decided)}
    assert reasons == {Reason.NO_SYNC}


def test_placebo_marks_the_windows_without_waiting_for_a_merge() -> None:
    made = coordinator((6, 15, 25), suppressed=True)
    assert [c.suppressed for c in drive(made, finish=False)] == [True] * 3
    marked = [e for e in made.drain_log() if isinstance(e, MergeStarted)]
    assert [e.tick for e in marked] == [6, 15, 25]


def test_an_unfinished_merge_blocks_the_next_one() -> None:
    made = coordinator((6, 15, 25))
    assert [c.tick for c in drive(made, finish=False)] == [6]
    reasons = [e.decision.reason for e in made.drain_log() if isinstance(e, Decided)]
    assert reasons[15] is Reason.IN_WINDOW


def test_every_event_survives_strict_json_bit_for_bit() -> None:
    made = coordinator((6, 15, 25))
    drive(made)
    log = made.drain_log()
    assert {type(e).__name__ for e in log} >= {"Ticked", "Decided", "MergeStarted", "MergeFinished"}
    for event in log:
        text = json.dumps(to_record(event), allow_nan=False)
        assert from_record(json.loads(text)) == event


def test_causes_lead_from_each_merge_to_its_tick() -> None:
    made = coordinator((6, 15, 25))
    drive(made)
    by_id = {e.event_id: e for e in made.drain_log()}
    merges = [e for e in by_id.values() if isinstance(e, MergeStarted)]
    for merge in merges:
        decided = by_id[merge.cause_id]
        assert isinstance(decided, Decided)
        cause = by_id[decided.cause_id]
        assert isinstance(cause, Ticked)
        assert cause.sample.tick == merge.tick


def test_horizon_ends_the_arm_as_complete() -> None:
    made = coordinator(None)
    commands = made.handle(Ticked(event_id=made.next_id(), sample=sample(34)))
    assert commands == [EndArm(cause_id=2, status="complete", why=None)]
    assert made.handle(Ticked(event_id=made.next_id(), sample=sample(35))) == []


@pytest.mark.parametrize(
    ("kind", "status"), [("server_lost", "invalid"), ("interrupted", "partial")]
)
def test_fault_ends_the_arm_once(kind: str, status: str) -> None:
    made = coordinator(None)
    fault = Faulted(event_id=made.next_id(), at_s=1.0, kind=kind, what="server died")
    (command,) = made.handle(fault)
    assert isinstance(command, EndArm)
    assert (command.status, command.why) == (status, "server died")
    again = Faulted(event_id=made.next_id(), at_s=2.0, kind=kind, what="again")
    assert made.handle(again) == []


def test_a_merge_that_was_never_started_cannot_finish() -> None:
    made = coordinator(None)
    with pytest.raises(ValueError, match="merge of round 0 finished, but open is none"):
        made.handle(
            MergeFinished(event_id=9, cause_id=1, round=0, at_s=1.0, overran=False, parts=())
        )


def test_unknown_event_type_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'merge_stopped' is none of"):
        from_record({"type": "merge_stopped"})


def test_a_record_is_what_asdict_gives() -> None:
    made = coordinator((6, 15, 25))
    drive(made)
    numbers: dict[str, Any] = dict.fromkeys(MergePart.__slots__, 1.0)
    part = MergePart(**{**numbers, "parameter_hash": "a"})
    finished = MergeFinished(
        event_id=99, cause_id=1, round=2, at_s=1.0, overran=False, parts=(part, part)
    )
    for event in (*made.drain_log(), finished):
        record = to_record(event)
        record.pop("type")
        assert record == asdict(event)
        assert json.dumps(record) == json.dumps(asdict(event))


def failed(made: Coordinator, round_: int) -> MergeFailed:
    return MergeFailed(
        event_id=made.next_id(), cause_id=1, round=round_, at_s=1.0, why="too few islands"
    )


def test_a_merge_that_failed_makes_room_for_the_next_one() -> None:
    made = coordinator((6, 15, 25))
    started = []
    for tick in range(34):
        for command in made.handle(Ticked(event_id=made.next_id(), sample=sample(tick))):
            assert isinstance(command, StartMerge)
            started.append(command.tick)
            assert made.handle(failed(made, command.round)) == []
    assert started == [6, 15, 25]
    assert made.merges_started == 3  # the budget counts windows, not what came of them
    with pytest.raises(ValueError, match="merge of round 3 failed, but open is none"):
        made.handle(failed(made, 3))


def told(made: Coordinator) -> list[Event]:
    """What is logged and decides nothing."""
    file = CheckpointFile(name="island-0.safetensors", size_bytes=9, sha256="ab" * 32)
    return [
        IslandDropped(event_id=made.next_id(), at_s=1.0, island=1, round=2, why="killed"),
        IslandJoined(
            event_id=made.next_id(), at_s=2.0, island=1, rounds_applied=2, kept_steps=True
        ),
        Checkpointed(
            event_id=made.next_id(),
            at_s=3.0,
            tick=3,
            round=2,
            folder="checkpoint-r00002",
            islands=(0, 1),
            files=(file, file),
            took_s=0.25,
        ),
        CheckpointFailed(event_id=made.next_id(), at_s=4.0, round=3, why="disk full"),
        Validated(event_id=made.next_id(), at_s=5.0, round=3, loss=2.5, tokens=640, closing=True),
        SidecarRefreshed(
            event_id=made.next_id(),
            cause_id=1,
            round=1,
            at_s=6.0,
            sidecar=0,
            kind="in_place",
            started_at_s=5.5,
            outage_s=0.2,
            weights_bytes=1000,
            error_nats=1e-6,
            change_nats=None,
            tolerance_nats=1e-3,
        ),
    ]


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_told_is_logged_and_commands_nothing_also_after_the_end(ended: bool) -> None:
    made = coordinator(None)
    if ended:
        made.handle(Ticked(event_id=made.next_id(), sample=sample(34)))
    made.drain_log()
    events = told(made)
    assert [made.handle(event) for event in events] == [[]] * len(events)
    assert made.drain_log() == events
    for event in (*events, failed(made, 0)):
        text = json.dumps(to_record(event), allow_nan=False)
        assert from_record(json.loads(text)) == event


def test_a_log_is_folded_in_under_its_own_ids() -> None:
    made = coordinator((6, 15, 25))
    drive(made)
    log = made.drain_log()
    again = coordinator((6, 15, 25))
    again.drain_log()
    for event in log:
        if isinstance(event, Ticked | MergeFinished):
            again.count_from(event.event_id)
            again.handle(event)
    assert again.drain_log() == log[1:]  # all but the arm's start
