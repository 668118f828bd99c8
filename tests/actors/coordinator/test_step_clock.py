"""A run on the step clock: exact steps, exact resume, and islands that go and come."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from actors.coordinator.coordinator import Coordinator
from actors.coordinator.step_clock import LogDiffers, ResumeFrom, StepClockRun, StepPlan
from actors.events import (
    Checkpointed,
    CheckpointFailed,
    Decided,
    Event,
    Faulted,
    HistoryTold,
    IslandDropped,
    IslandJoined,
    MergeFailed,
    MergeFinished,
    MergeStarted,
    Ticked,
    Validated,
    from_record,
    to_record,
)
from policies.controls import ScheduledPolicy
from policies.corridor import Corridor
from policies.wrapper import CorridorWrapper
from tests.actors.coordinator.fake_islands import (
    Fault,
    World,
    islands_config,
    merge_config,
)
from tests.actors.coordinator.virtual_time import run

TICK_S, WIDTH, HORIZON, STARTS = 1.5, 2, 24, (5, 12, 18)
CORRIDOR = Corridor(floor_ticks=3, ceiling_ticks=8, width_ticks=WIDTH, horizon_ticks=HORIZON)
STEPS_PER_TICK = 3


def plan_of(**changes: Any) -> StepPlan:
    fields: dict[str, Any] = {
        "arm": "planned",
        "seed": 3,
        "tick_s": TICK_S,
        "width_ticks": WIDTH,
        "horizon_ticks": HORIZON,
        "arrivals": tuple(range(HORIZON + 1)),
        "in_flight": (2,) * (HORIZON + 1),
        "suppressed": False,
        "folder": "run",
        "validate_every_merges": 1,
        "train_ticks": HORIZON - len(STARTS) * WIDTH,
    }
    return StepPlan(**(fields | changes))


def wrapper_of(starts: tuple[int, ...] = STARTS) -> CorridorWrapper:
    return CorridorWrapper(
        CORRIDOR,
        budget=len(starts),
        policy=ScheduledPolicy(starts),
        tick_s=TICK_S,
        target_gap_ticks=5,
        needs_probes=False,
    )


@dataclass
class Ran:
    """What a run left."""

    world: World
    status: str
    why: str | None
    events: list[Event]
    rows: dict[int, list[dict[str, Any]]]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


async def running(
    world: World,
    *,
    plan: StepPlan | None = None,
    wrapper: CorridorWrapper | None = None,
    decides: bool = True,
    resume: ResumeFrom | None = None,
    beside: Callable[[StepClockRun], Any] | None = None,
) -> Ran:
    plan = plan or plan_of()
    coordinator = Coordinator(
        (wrapper or wrapper_of()) if decides else None,
        tick_s=plan.tick_s,
        width_ticks=plan.width_ticks,
        horizon_ticks=plan.horizon_ticks,
        suppressed=plan.suppressed,
    )
    made = StepClockRun(
        coordinator, world.keeper(), plan=plan, islands=world.islands, merge=world.merge
    )
    if beside is not None:
        beside(made)
    status, why = await made.run(resume)
    events, rows = made.drain()
    return Ran(world=world, status=status, why=why, events=events, rows=rows)


def whole_run(world: World, **how: Any) -> Ran:
    ran = run(running(world, **how))
    assert world.wrong == []
    return ran


@cache
def usual() -> Ran:
    """The plain run that others are compared with; nobody changes it."""
    return whole_run(world_of())


def world_of(*faults: Fault, count: int = 3, **changes: Any) -> World:
    merge = merge_config(**changes.pop("merge", {}))
    return World(count, *faults, islands=islands_config(count, **changes), merge=merge)


def bare(events: list[Event]) -> list[Event]:
    """Without what is measured by a wall clock."""
    return [replace(e, took_s=0.0) if isinstance(e, Checkpointed) else e for e in events]


# Time is counted in steps


def test_a_whole_run_has_its_steps_merges_and_checkpoints_where_they_belong() -> None:
    ran = usual()
    assert (ran.status, ran.why) == ("complete", None)
    assert [e.tick for e in ran.of(MergeStarted)] == list(STARTS)
    assert [e.round for e in ran.of(MergeFinished)] == [0, 1, 2]
    assert len(ran.of(Decided)) == HORIZON
    assert [(e.round, e.tick, e.folder) for e in ran.of(Checkpointed)] == [
        (1, 5, "checkpoint-r00001"),
        (2, 12, "checkpoint-r00002"),
        (3, 18, "checkpoint-r00003"),
    ]
    ids = [e.event_id for e in ran.events]
    assert ids == list(range(1, len(ids) + 1))
    steps = (HORIZON - len(STARTS) * WIDTH) * STEPS_PER_TICK
    assert [ran.world.handles[i].process.state.cursor for i in range(3)] == [steps] * 3


def test_steps_pause_in_windows_and_go_on_at_their_end() -> None:
    ran = whole_run(world_of(count=1))
    at_s = [at_s for _, _, at_s in ran.world.trained]
    windows = {tick for start in STARTS for tick in range(start, start + WIDTH)}
    wanted = [
        tick * TICK_S + step * 0.5
        for tick in range(HORIZON)
        if tick not in windows
        for step in range(STEPS_PER_TICK)
    ]
    assert at_s == pytest.approx(wanted)


def test_a_pace_that_is_no_divisor_of_the_tick_loses_no_step() -> None:
    ran = whole_run(world_of(count=1, step_interval_s=0.4), plan=plan_of(train_ticks=None))
    ticks = HORIZON - len(STARTS) * WIDTH
    assert len(ran.world.trained) == int(ticks * TICK_S / 0.4)
    by_tick = Counter(int((at_s + 1e-9) / TICK_S) for _, _, at_s in ran.world.trained)
    assert len(by_tick) == ticks
    assert set(by_tick.values()) == {3, 4}


@pytest.mark.parametrize("arm", ["policy", "no_sync", "placebo", "data_parallel"])
def test_every_arm_trains_on_the_same_tokens(arm: str) -> None:
    world = world_of()
    if arm == "data_parallel":
        world.handles = {0: world.handles[0]}
    ran = whole_run(
        world,
        plan=plan_of(suppressed=arm == "placebo", data_parallel=arm == "data_parallel"),
        decides=arm in ("policy", "placebo"),
    )
    assert ran.status == "complete"
    tokens = sum(handle.process.state.tokens for handle in world.handles.values())
    assert tokens == (HORIZON - len(STARTS) * WIDTH) * STEPS_PER_TICK * (10 + 11 + 12)
    (closing,) = [e for e in ran.of(Validated) if e.closing]
    assert closing.tokens == tokens
    assert len(ran.of(MergeFinished)) == (3 if arm == "policy" else 0)
    assert len(ran.of(MergeStarted)) == (3 if arm in ("policy", "placebo") else 0)


def test_policies_see_the_traffic_of_the_plan_and_the_islands_progress() -> None:
    told = HistoryTold(event_id=0, first_tick=-2, arrivals=(7, 8), in_flight=(1, 1), service_s=0.2)
    ran = whole_run(world_of(count=2), plan=plan_of(history=told))
    (history,) = ran.of(HistoryTold)
    assert history.arrivals == (7, 8)
    samples = [e.sample for e in ran.of(Ticked)]
    assert [s.arrivals for s in samples] == list(range(HORIZON + 1))
    assert [s.now_s for s in samples] == [tick * TICK_S for tick in range(HORIZON + 1)]
    sixth = samples[5].islands[1]
    assert (sixth.steps_since_merge, sixth.tokens_since_merge) == (15, 15 * 11)
    assert sixth.staleness_s == pytest.approx(5 * TICK_S)
    assert samples[8].islands[0].staleness_s == pytest.approx(1 * TICK_S)  # from the window's end


def test_validation_follows_merges_and_closes_the_run_after_the_last_step() -> None:
    ran = whole_run(world_of(), plan=plan_of(validate_every_merges=2))
    assert [(e.round, e.closing) for e in ran.of(Validated)] == [(2, False), (3, True)]
    assert ran.world.locals_equal(0, 1, 2)  # the closing merge leaves no step out
    anchor = ran.world.local(0)
    assert ran.of(Validated)[-1].loss == pytest.approx(float(np.mean(anchor**2)))


def test_a_run_without_held_out_text_validates_nothing_and_is_whole() -> None:
    data = world_of().islands.data.model_copy(update={"validation_fraction": 0.0})
    ran = whole_run(world_of(data=data))
    assert (ran.status, ran.of(Validated)) == ("complete", [])


def test_the_end_merges_every_fragment() -> None:
    ran = whole_run(world_of(merge={"fragments": 3}))
    assert ran.status == "complete"
    assert [r for i, r in ran.world.commits if i == 0] == [0, 1, 2, 3, 4, 5]
    assert ran.world.locals_equal(0, 1, 2)
    assert ran.of(Faulted) == []  # that islands differ between is how fragments work


# Overlap


def test_a_merge_that_overlaps_splits_a_tick_and_pauses_nothing() -> None:
    ran = whole_run(
        world_of(count=2, merge={"overlap_steps": 4, "overlap_mixing": 0.5}),
        plan=plan_of(train_ticks=None),
    )
    assert ran.status == "complete"
    at_s = [at_s for island, _, at_s in ran.world.trained if island == 0]
    assert at_s == pytest.approx([n * 0.5 for n in range(HORIZON * STEPS_PER_TICK)])
    merged = [e.at_s for e in ran.of(MergeFinished)]
    assert merged == [(start + 1) * TICK_S for start in STARTS]  # three steps, then one more
    order = [m for i, m in ran.world.called if i == 0 and m in ("ready", "advance", "commit")]
    first = order.index("ready")
    assert order[first : first + 5] == ["ready", "advance", "advance", "commit", "advance"]


def test_what_still_overlaps_at_the_horizon_is_taken_over() -> None:
    ran = whole_run(world_of(count=2, merge={"overlap_steps": 60}), plan=plan_of(train_ticks=None))
    assert ran.status == "complete"
    assert [e.tick for e in ran.of(MergeStarted)] == [5]  # nothing begins while one is open
    assert [e.round for e in ran.of(MergeFinished)] == [0]


# Going on


def written(ran: Ran, checkpoint: Checkpointed) -> ResumeFrom:
    """As it is read from disk: the log up to the checkpoint, after a trip through JSON."""
    at = ran.events.index(checkpoint)
    events = [
        from_record(json.loads(json.dumps(to_record(event)))) for event in ran.events[: at + 1]
    ]
    assert isinstance(events[-1], Checkpointed)
    return ResumeFrom(checkpoint=events[-1], events=tuple(events))


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fragments": {"merge": {"fragments": 2}},
    "overlap": {"merge": {"overlap_steps": 4}},
}

TOLD: dict[str, Any] = {
    "history": HistoryTold(event_id=0, first_tick=-1, arrivals=(7,), in_flight=(1,), service_s=0.2),
    "train_ticks": None,
}


@cache
def never_cut(variant: str) -> Ran:
    return whole_run(world_of(**VARIANTS[variant]), plan=plan_of(**TOLD))


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_from_every_checkpoint_a_run_ends_as_the_one_that_was_never_cut(
    variant: str, number: int
) -> None:
    first = never_cut(variant)
    resume = written(first, first.of(Checkpointed)[number])
    again = world_of(**VARIANTS[variant])  # new processes, the same folder
    again.saved = dict(first.world.saved)
    second = whole_run(again, plan=plan_of(**TOLD), resume=resume)
    assert (second.status, second.why) == (first.status, first.why)
    at = first.events.index(first.of(Checkpointed)[number])
    assert bare(second.events) == bare(first.events[at + 1 :])
    for island in range(3):
        ours = again.handles[island].process.state
        theirs = first.world.handles[island].process.state
        assert ours.local.tobytes() == theirs.local.tobytes()
        assert (ours.cursor, ours.tokens, ours.rows) == (theirs.cursor, theirs.tokens, theirs.rows)
    after = {e.event_id for e in first.events[at + 1 :]}
    assert second.rows == {i: rows for i, rows in first.rows.items() if i in after}


def test_rows_stand_before_the_checkpoint_that_they_belong_to() -> None:
    ran = usual()
    assert set(ran.rows) == {e.event_id for e in ran.of(Checkpointed)}
    firsts = [rows[0]["step"] for rows in ran.rows.values()]
    assert firsts == [1, 16, 31]  # after 5, then 5 more ticks; windows have none
    left = ran.world.handles[0].process.state.rows
    assert [row["step"] for row in left] == list(range(43, 55))


def test_another_policy_cannot_go_on_with_the_run() -> None:
    first = usual()
    resume = written(first, first.of(Checkpointed)[1])
    again = world_of()
    again.saved = dict(first.world.saved)
    for other in ((4, 12, 18), (5, 11, 18)):
        with pytest.raises(LogDiffers, match="the policy or its settings are not those"):
            run(running(again, resume=resume, wrapper=wrapper_of(other)))


def test_a_log_that_was_shortened_is_told() -> None:
    first = usual()
    resume = written(first, first.of(Checkpointed)[1])
    events = tuple(e for e in resume.events if not isinstance(e, MergeStarted))
    with pytest.raises(LogDiffers, match="but logged is"):
        run(running(world_of(), resume=replace(resume, events=events)))


def interrupts(fault: Fault) -> Callable[[StepClockRun], None]:
    """Somebody asks for the end at the moment when ``fault`` happens."""

    def beside(made: StepClockRun) -> None:
        fault.also = lambda: made.fault("interrupted", "interrupted by SIGINT")

    return beside


def test_an_interrupt_in_a_merge_leaves_no_checkpoint_of_a_tick_that_was_cut() -> None:
    fault = Fault(island=0, method="commit", do="freezes", freeze_s=2.0, nth=2)
    world = world_of(fault)
    ran = whole_run(world, beside=interrupts(fault))
    assert (ran.status, ran.why) == ("partial", "interrupted by SIGINT")
    assert [e.round for e in ran.of(MergeFinished)] == [0, 1]
    assert [e.round for e in ran.of(Checkpointed)] == [1]
    resume = written(ran, ran.of(Checkpointed)[0])
    again = world_of()
    again.saved = dict(world.saved)
    second = whole_run(again, resume=resume)
    assert second.status == "complete"
    whole = usual()
    at = whole.events.index(whole.of(Checkpointed)[0])
    assert bare(second.events) == bare(whole.events[at + 1 :])


def test_an_interrupt_while_a_checkpoint_is_written_makes_it_one_that_failed() -> None:
    fault = Fault(island=0, method="save", do="freezes", freeze_s=2.0)
    ran = whole_run(world_of(fault), beside=interrupts(fault))
    assert (ran.status, ran.of(Checkpointed)) == ("partial", [])
    (failed,) = ran.of(CheckpointFailed)
    assert "interrupted by SIGINT" in failed.why
    assert len(ran.rows[failed.event_id]) == 3 * 5 * STEPS_PER_TICK  # no row is lost


# Islands go and come


@pytest.mark.parametrize("do", ["dies", "freezes", "errors"])
@pytest.mark.parametrize("method", ["progress", "advance", "ready", "reduce", "commit", "save"])
def test_a_fixed_group_ends_at_the_first_loss_and_never_hangs(method: str, do: Any) -> None:
    ran = run(running(world_of(Fault(island=1, method=method, do=do)), plan=plan_of()))
    assert ran.world.wrong == []
    recovers = (method, do) in (("reduce", "errors"), ("save", "errors"))
    if recovers:  # another attempt, and a checkpoint less: nobody is lost
        assert ran.status == "complete"
        assert len(ran.of(CheckpointFailed)) == (method == "save")
        return
    assert ran.status == "invalid"
    assert ran.why is not None
    assert "island 1" in ran.why


@pytest.mark.parametrize("do", ["dies", "freezes", "errors"])
def test_a_fixed_group_that_cannot_start_says_which_island(do: Any) -> None:
    with pytest.raises(RuntimeError, match="islands could not start: island 1: "):
        run(running(world_of(Fault(island=1, method="reset", do=do))))


def test_a_checkpoint_that_cannot_be_loaded_says_for_which_island() -> None:
    first = usual()
    resume = written(first, first.of(Checkpointed)[0])
    again = world_of(Fault(island=2, method="load", do="errors"))
    again.saved = dict(first.world.saved)
    with pytest.raises(RuntimeError, match="islands could not load the checkpoint: island 2"):
        run(running(again, resume=resume))


@pytest.mark.parametrize("late", ["rebase", "adopt"])
@pytest.mark.parametrize("do", ["dies", "freezes", "errors"])
@pytest.mark.parametrize(("method", "nth"), [("advance", 6), ("ready", 2), ("reduce", 2)])
def test_an_elastic_run_goes_on_and_takes_the_lost_back(
    method: str, nth: int, do: Any, late: str
) -> None:
    fault = Fault(island=1, method=method, do=do, nth=nth, freeze_s=8.0)
    world = world_of(fault, quorum=2, late=late)
    ran = whole_run(world)
    assert ran.status == "complete", ran.why
    assert fault.happened == 1
    assert world.locals_equal(0, 1, 2)
    if (method, do) == ("reduce", "errors"):  # once more, with all
        assert ran.of(IslandDropped) == []
        return
    (dropped,) = ran.of(IslandDropped)
    (joined,) = ran.of(IslandJoined)
    assert (dropped.island, joined.island) == (1, 1)
    assert joined.event_id > dropped.event_id
    assert joined.kept_steps is (do == "freezes" and late == "rebase")
    assert len(ran.of(MergeFinished)) == 3
    assert ran.of(MergeFailed) == []
    steps = (HORIZON - len(STARTS) * WIDTH) * STEPS_PER_TICK
    assert world.handles[1].process.state.cursor == steps  # it reads on where the others stand


def test_steps_that_missed_a_merge_are_carried_over_and_count_as_stale() -> None:
    # Frozen from tick 4 on until after the merge at tick 5.
    fault = Fault(island=1, method="advance", do="freezes", nth=5, freeze_s=5.4)
    ran = whole_run(world_of(fault, quorum=2))
    (joined,) = ran.of(IslandJoined)
    assert joined.kept_steps
    second = ran.of(MergeFinished)[1]
    assert [part.missed_rounds for part in second.parts] == [0, 1, 0]
    assert second.parts[1].tokens > second.parts[0].tokens  # its own of both rounds


def test_a_process_that_was_started_anew_unnoticed_is_made_ready_first() -> None:
    """It died while it was late: the answer that would have told of it was not awaited."""
    world = world_of(Fault(island=1, method="advance", do="freezes", nth=4, freeze_s=1e9), quorum=2)

    def beside(made: StepClockRun) -> None:
        asyncio.get_running_loop().call_later(14.0, world.handles[1].kill)

    ran = whole_run(world, beside=beside)
    assert ran.status == "complete"
    (joined,) = ran.of(IslandJoined)
    assert not joined.kept_steps
    assert world.locals_equal(0, 1, 2)


def test_an_island_that_diverged_does_not_carry_its_steps_into_the_next_merge() -> None:
    world = world_of(Fault(island=1, method="advance", do="errors", when="after", nth=3), quorum=2)
    ran = whole_run(world)
    (joined,) = ran.of(IslandJoined)
    assert not joined.kept_steps
    assert world.handles[1].counts["reset"] == 2


def test_the_last_island_that_is_lost_ends_the_run() -> None:
    faults = [Fault(island=i, method="advance", do="dies", nth=3) for i in range(3)]
    ran = whole_run(world_of(*faults, quorum=1))
    assert ran.status == "invalid"
    assert ran.why is not None
    assert ran.why.startswith("no island is left")


def test_all_that_are_lost_in_a_merge_end_the_run() -> None:
    faults = [Fault(island=i, method="commit", do="dies", nth=1) for i in range(3)]
    ran = whole_run(world_of(*faults, quorum=1))
    assert ran.status == "invalid"
    assert len(ran.of(IslandDropped)) == 3
    assert len(ran.of(MergeFinished)) == 1  # it was decided


def test_an_island_joins_and_takes_part_from_the_next_merge_on() -> None:
    world = world_of(count=2, quorum=2, shards=3)
    ran = whole_run(world, beside=lambda made: made.join(2, world.newcomer()))
    assert ran.status == "complete"
    (joined,) = ran.of(IslandJoined)
    assert (joined.island, joined.kept_steps) == (2, False)
    assert {part.island for part in ran.of(MergeFinished)[0].parts} == {0, 1, 2}
    assert world.locals_equal(0, 1, 2)


def test_an_elastic_run_goes_on_without_an_island_that_does_not_start() -> None:
    """It is asked again while it is being started anew; one that fails otherwise is left out."""
    killed = Fault(island=1, method="reset", do="dies")
    ran = whole_run(world_of(killed, quorum=2))
    assert (ran.status, ran.of(IslandDropped)) == ("complete", [])
    broken = Fault(island=1, method="reset", do="errors", always=True)
    ran = whole_run(world_of(broken, quorum=2))
    assert ran.status == "complete"
    assert [e.island for e in ran.of(IslandDropped)] == [1]
    assert ran.of(IslandJoined) == []
    assert all(len(e.parts) == 2 for e in ran.of(MergeFinished))


def test_a_disk_that_is_full_costs_a_checkpoint_and_nothing_else() -> None:
    world = world_of(Fault(island=0, method="save", do="errors", nth=2))
    ran = whole_run(world)
    assert ran.status == "complete"
    assert [e.round for e in ran.of(Checkpointed)] == [1, 3]
    (failed,) = ran.of(CheckpointFailed)
    assert (failed.round, failed.why) == (2, "island 0: planned error in save")
    assert ran.of(IslandDropped) == []
