"""One merge at every point where something can break: what is said, and what islands hold then.

Whatever happens, no island ever holds a part of a merge, nothing is merged twice, survivors have
equal parameters after a merge, and a round that failed has changed nothing.
"""

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest

from actors.config import OuterConfig
from actors.coordinator.group_keeper import GroupKeeper
from actors.coordinator.rounds import MOST_ATTEMPTS, Outcome, Rounds
from actors.merge_messages import RoundPlan
from tests.actors.coordinator.fake_islands import (
    Fault,
    Vector,
    World,
    islands_config,
    merge_config,
)
from tests.actors.coordinator.virtual_time import run

ISLANDS = 3


def world_of(*faults: Fault, elastic: bool = False, **changes: Any) -> World:
    merge = merge_config(**changes.pop("merge", {}))
    quorum = {"quorum": 2} if elastic else {}
    islands = islands_config(ISLANDS, **quorum, **changes)
    return World(ISLANDS, *faults, islands=islands, merge=merge)


async def trained(world: World) -> tuple[GroupKeeper, Rounds]:
    """Reset, in one group, and four inner steps away from each other."""
    await world.reset()
    keeper = world.keeper()
    await keeper.ensure(keeper.here)
    await world.train(4)
    return keeper, Rounds(keeper, islands=world.islands, merge=world.merge)


async def merged(rounds: Rounds, round_: int = 0) -> Outcome:
    return await rounds.merge(round_, ready_args=(), commit_args=(9.0,))


def expected(before: Vector, members: list[Vector], weights: list[float], **outer: float) -> Vector:
    """First outer step: no momentum yet, so Nesterov is (1 + momentum) * delta."""
    lr, momentum = outer.get("lr", 0.7), outer.get("momentum", 0.9)
    delta = before - sum(w * m for w, m in zip(weights, members, strict=True))
    step: Vector = before - lr * (1 + momentum) * delta
    return step


def test_a_round_is_the_outer_step_on_the_mean_by_tokens() -> None:
    async def scenario() -> None:
        world = world_of()
        await world.reset()
        start = world.local(0)
        _, rounds = await trained(world)
        own = [world.local(i) for i in range(ISLANDS)]
        outcome = await merged(rounds)
        assert outcome.merged
        assert outcome.weights == {0: 10 / 33, 1: 11 / 33, 2: 12 / 33}
        assert world.locals_equal(0, 1, 2)
        wanted = expected(start, own, list(outcome.weights.values()))
        np.testing.assert_allclose(world.local(0), wanted, rtol=1e-12)
        mean = sum(w * v for w, v in zip(outcome.weights.values(), own, strict=True))
        assert outcome.norm == pytest.approx(float(np.linalg.norm(start - mean)))
        assert (outcome.scale, outcome.transport) == (1.0, "shared_memory")

    run(scenario())


def test_a_large_update_is_scaled_to_the_norm_that_was_asked_for() -> None:
    async def scenario(clip: float) -> tuple[Outcome, Vector, list[str]]:
        outer = OuterConfig(lr=1.0, momentum=0.0, clip_norm=clip)
        world = world_of(outer=outer)
        await world.reset()
        start = world.local(0)
        _, rounds = await trained(world)
        outcome = await merged(rounds)
        return outcome, world.local(2) - start, [m for i, m in world.called if i == 0]

    outcome, moved, called = run(scenario(0.01))
    assert outcome.norm is not None
    assert outcome.norm > 0.01
    assert outcome.scale == pytest.approx(0.01 / outcome.norm)
    assert float(np.linalg.norm(moved)) == pytest.approx(0.01)
    assert called.count("rescale") == 1
    outcome, moved, called = run(scenario(1e6))
    assert outcome.scale == 1.0
    assert float(np.linalg.norm(moved)) == pytest.approx(outcome.norm)
    assert "rescale" not in called


POINTS = [
    ("ready", "before"),
    ("ready", "after"),
    ("reduce", "before"),
    ("reduce", "after"),
    ("commit", "before"),
    ("commit", "after"),
]


@pytest.mark.parametrize("elastic", [False, True], ids=["fixed", "elastic"])
@pytest.mark.parametrize("do", ["dies", "freezes", "errors"])
@pytest.mark.parametrize(("method", "when"), POINTS)
def test_an_island_breaks_once(method: str, when: Any, do: Any, elastic: bool) -> None:
    fault = Fault(island=1, method=method, when=when, do=do)
    world = world_of(fault, elastic=elastic)

    async def scenario() -> tuple[Outcome, GroupKeeper, list[Vector]]:
        keeper, rounds = await trained(world)
        before = [world.local(i) for i in range(ISLANDS)]
        return await merged(rounds), keeper, before

    outcome, keeper, before = run(scenario())
    assert fault.happened == 1
    assert world.wrong == []
    assert all(times == 1 for times in Counter(world.commits).values())  # nothing twice
    decided = method == "commit"
    recovers = method == "reduce" and do == "errors"  # all of them once more, and it works
    assert outcome.merged is (decided or recovers or elastic)
    assert set(outcome.dropped) == (set() if recovers else {1})
    assert keeper.out == (() if recovers else (1,))
    if not outcome.merged:
        assert outcome.why is not None
        assert "island" in outcome.why
        assert world.commits == []
        for island in (0, 2):
            np.testing.assert_array_equal(world.local(island), before[island])
        return
    survivors = (0, 1, 2) if recovers else (0, 2)
    assert set(outcome.members) == ({0, 1, 2} if decided or recovers else {0, 2})
    assert world.locals_equal(*survivors)
    assert sum(outcome.weights.values()) == pytest.approx(1.0)
    assert set(outcome.committed) == set(survivors)
    assert keeper.members[1].gone is (not recovers and do != "freezes")


@pytest.mark.parametrize("elastic", [False, True], ids=["fixed", "elastic"])
def test_who_fails_again_and_again_is_left_out_where_the_others_are_enough(elastic: bool) -> None:
    fault = Fault(island=2, method="reduce", do="errors", always=True)
    world = world_of(fault, elastic=elastic)

    async def scenario() -> tuple[Outcome, GroupKeeper]:
        keeper, rounds = await trained(world)
        return await merged(rounds), keeper

    outcome, keeper = run(scenario())
    assert fault.happened == 2  # once may be a peer's fault
    assert outcome.merged is elastic
    assert keeper.out == (2,)
    assert keeper.members[2].gone  # it starts over when it comes back
    assert world.wrong == []


def test_all_that_fail_together_are_tried_so_often_and_no_more() -> None:
    faults = [Fault(island=i, method="reduce", do="errors", always=True) for i in range(ISLANDS)]
    world = world_of(*faults, elastic=True)

    async def scenario() -> tuple[Outcome, list[Vector], GroupKeeper]:
        keeper, rounds = await trained(world)
        before = [world.local(i) for i in range(ISLANDS)]
        return await merged(rounds), before, keeper

    outcome, before, keeper = run(scenario())
    assert not outcome.merged
    assert [f.happened for f in faults] == [MOST_ATTEMPTS] * ISLANDS
    assert keeper.here == (0, 1, 2)  # nobody is to blame
    for island in range(ISLANDS):
        np.testing.assert_array_equal(world.local(island), before[island])


def test_a_round_below_the_quorum_changes_nothing_and_the_next_one_takes_all_steps() -> None:
    faults = [Fault(island=i, method="reduce", do="freezes", freeze_s=300.0) for i in (1, 2)]
    world = world_of(*faults, elastic=True)

    async def scenario() -> None:
        keeper, rounds = await trained(world)
        before = world.local(0)
        outcome = await merged(rounds)
        assert not outcome.merged
        assert set(outcome.dropped) == {1, 2}
        np.testing.assert_array_equal(world.local(0), before)
        assert await world.handles[0].abort.remote(0) is None
        await asyncio.sleep(400.0)  # they thaw, and find that the round is over
        assert world.commits == []
        assert world.wrong == []
        for island in (1, 2):
            keeper.back(island)
        again = await merged(rounds, 1)
        assert again.merged
        assert again.ready[1].tokens == 4 * 11
        assert world.locals_equal(0, 1, 2)

    run(scenario())


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_that_thaws_after_its_commit_was_decided_finishes_alone(when: Any) -> None:
    """Frozen with the whole result beside its parameters: waking up, it stands where all do."""
    fault = Fault(island=1, method="commit", when=when, do="freezes", freeze_s=100.0)
    world = world_of(fault, elastic=True)

    async def scenario() -> None:
        keeper, rounds = await trained(world)
        outcome = await merged(rounds)
        assert (outcome.merged, keeper.out) == (True, (1,))
        for handle in (world.handles[0], world.handles[2]):
            await handle.advance.remote(3, 0.0)
        second = await merged(rounds, 1)  # without it, in a new group
        assert (second.merged, second.members) == (True, (0, 2))
        after = world.local(0)
        await asyncio.sleep(200.0)
        assert world.handles[1].process.state.rounds_applied == 1
        np.testing.assert_array_equal(world.local(0), after)  # a zombie harms nobody
        assert world.wrong == []

    run(scenario())


def test_one_that_thaws_in_the_middle_of_a_reduction_harms_nobody() -> None:
    fault = Fault(island=1, method="reduce", do="freezes", freeze_s=100.0)
    world = world_of(fault, elastic=True)

    async def scenario() -> None:
        _, rounds = await trained(world)
        outcome = await merged(rounds)
        assert outcome.members == (0, 2)
        after = world.local(0)
        await asyncio.sleep(200.0)  # it writes its slice, into memory that nobody looks at
        np.testing.assert_array_equal(world.local(0), after)
        assert (await merged(rounds, 1)).merged
        assert world.locals_equal(0, 2)
        assert world.wrong == []

    run(scenario())


@pytest.mark.parametrize("method", ["ready", "reduce", "commit"])
def test_who_was_too_late_is_told_to_train_on_once_it_answers(method: str) -> None:
    """An abort that came before its answer would find nothing to end: it would wait for ever."""
    fault = Fault(island=1, method=method, when="after", do="freezes", freeze_s=300.0)
    world = world_of(fault, elastic=True)

    async def scenario() -> None:
        keeper, rounds = await trained(world)
        outcome = await merged(rounds)
        assert outcome.merged
        assert set(outcome.dropped) == {1}
        letting_go = asyncio.ensure_future(rounds.let_go(outcome))
        await asyncio.sleep(200.0)
        assert (1, "abort") not in world.called
        assert not letting_go.done()
        await letting_go
        assert world.called[-1] == (1, "abort")
        assert keeper.out == (1,)  # until it has taken the last merge over
        plan = RoundPlan(round=0, epoch=1, weights=(1.0,), fragment=0)
        with pytest.raises(RuntimeError, match="but open is None"):
            await world.handles[1].reduce.remote(plan)

    run(scenario())
    assert world.wrong == []


def test_who_is_lost_is_waited_for_by_nobody() -> None:
    world = world_of(Fault(island=1, method="reduce", do="dies"), elastic=True)

    async def scenario() -> float:
        _, rounds = await trained(world)
        outcome = await merged(rounds)
        began_s = asyncio.get_running_loop().time()
        await rounds.let_go(outcome)
        return asyncio.get_running_loop().time() - began_s

    assert run(scenario()) < 1.0


def test_an_island_that_dies_in_each_attempt_ends_the_round_at_the_quorum() -> None:
    world = world_of(
        Fault(island=0, method="reduce", do="dies"),
        Fault(island=2, method="reduce", do="dies", nth=2),
        elastic=True,
    )

    async def scenario() -> tuple[Outcome, Vector, Vector]:
        _, rounds = await trained(world)
        before = world.local(1)
        return await merged(rounds), before, world.local(1)

    outcome, before, after = run(scenario())
    assert not outcome.merged
    assert set(outcome.dropped) == {0, 2}
    np.testing.assert_array_equal(after, before)
    assert world.commits == []


def test_a_mean_that_is_no_number_is_never_merged() -> None:
    world = world_of(elastic=True)

    async def scenario() -> Outcome:
        _, rounds = await trained(world)
        world.handles[1].process.state.local[3] = np.nan
        return await merged(rounds)

    outcome = run(scenario())
    assert not outcome.merged
    assert outcome.why is not None
    assert "has diverged" in outcome.why
    assert world.commits == []


def test_a_late_island_waits_no_longer_than_the_usual_spread() -> None:
    """The grace has learnt from rounds in which all came at once."""
    fault = Fault(island=2, method="ready", do="freezes", freeze_s=3.0, nth=4)
    world = world_of(fault, elastic=True)

    async def scenario() -> tuple[bool, float, Outcome]:
        _, rounds = await trained(world)
        whole = [(await merged(rounds, round_)).dropped == {} for round_ in range(3)]
        began_s = asyncio.get_running_loop().time()
        outcome = await merged(rounds, 3)
        return all(whole), asyncio.get_running_loop().time() - began_s, outcome

    whole, took_s, outcome = run(scenario())
    assert whole
    assert set(outcome.dropped) == {2}
    assert took_s < 2.0


# Fragments and overlap


def test_fragments_take_turns_and_every_number_is_merged_once() -> None:
    world = world_of(merge={"fragments": 3}, outer=OuterConfig(lr=1.0, momentum=0.0))

    async def scenario() -> None:
        _, rounds = await trained(world)
        own = [world.local(i) for i in range(ISLANDS)]
        for round_ in range(3):
            outcome = await merged(rounds, round_)
            assert outcome.merged
            weights = list(outcome.weights.values())
            part = slice(7 * round_ // 3, 7 * (round_ + 1) // 3)
            mean = sum(w * v[part] for w, v in zip(weights, own, strict=True))
            np.testing.assert_allclose(world.local(1)[part], mean, rtol=1e-12)
        assert world.locals_equal(0, 1, 2)

    run(scenario())


@pytest.mark.parametrize("do", [None, "dies", "freezes", "errors"])
def test_what_overlaps_with_training_is_measured_before_and_mixed_in_after(do: Any) -> None:
    faults = [] if do is None else [Fault(island=1, method="reduce", do=do)]
    world = world_of(
        *faults,
        elastic=True,
        merge={"overlap_steps": 2, "overlap_mixing": 0.25},
        outer=OuterConfig(lr=1.0, momentum=0.0),
    )

    async def scenario() -> None:
        keeper, rounds = await trained(world)
        measured = [world.local(i) for i in range(ISLANDS)]
        opened = await rounds.gather(0)
        assert not isinstance(opened, Outcome)
        reducing = asyncio.ensure_future(rounds.reduce(opened))
        for island in (0, 2):
            await world.handles[island].advance.remote(2, 0.0)
        moved = world.local(0)
        reduction = await reducing
        if do is not None:  # the snapshot is used up: no second attempt
            assert isinstance(reduction, Outcome)
            assert not reduction.merged
            np.testing.assert_array_equal(world.local(0), moved)
            return
        assert not isinstance(reduction, Outcome)
        outcome = await rounds.commit(opened, reduction, commit_args=(9.0,))
        weights = list(outcome.weights.values())
        mean = sum(w * v for w, v in zip(weights, measured, strict=True))
        np.testing.assert_allclose(world.local(0), 0.25 * moved + 0.75 * mean, rtol=1e-12)
        assert keeper.here == (0, 1, 2)

    run(scenario())
    assert world.wrong == []
