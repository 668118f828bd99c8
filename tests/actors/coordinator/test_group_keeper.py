"""Who forms the group, over what it merges, and how it is formed anew."""

from typing import Any

import pytest

from actors.coordinator.group_keeper import GroupKeeper, NoGroup
from actors.merge_messages import Formation
from tests.actors.coordinator.fake_islands import Fault, World, merge_config
from tests.actors.coordinator.virtual_time import run


def formed(world: World, members: tuple[int, ...]) -> Formation:
    async def scenario() -> Formation:
        await world.reset()
        return await world.keeper().ensure(members)

    return run(scenario())


@pytest.mark.parametrize(
    ("members", "hosts", "merge", "transport"),
    [
        ((0,), (), {}, "alone"),
        ((1,), (), {"transport": "network"}, "alone"),
        ((0, 1, 2), (), {}, "shared_memory"),
        ((0, 1, 2), (), {"transport": "shared_memory"}, "shared_memory"),
        ((0, 1, 2), (), {"transport": "network"}, "network"),
        ((0, 1, 2), (), {"codec": "int8"}, "network"),
        ((0, 1, 2), ("a", "a", "b"), {}, "network"),
        ((0, 1), ("a", "a", "b"), {}, "shared_memory"),
    ],
)
def test_members_merge_over_what_they_share(
    members: tuple[int, ...], hosts: tuple[str, ...], merge: dict[str, Any], transport: str
) -> None:
    world = World(3, hosts=hosts, merge=merge_config(**merge))
    made = formed(world, members)
    assert (made.transport, made.members) == (transport, members)
    assert len(made.segments) == (len(members) if transport == "shared_memory" else 0)
    assert (made.master_addr, made.master_port) == (
        f"{(hosts or ('host',))[0]}.example",
        7000 + members[0],
    )
    assert world.wrong == []


def test_the_leader_forms_first_where_others_open_its_banks() -> None:
    world = World(3)
    formed(world, (0, 1, 2))
    assert [i for i, method in world.called if method == "form"] == [0, 1, 2]


def test_shared_memory_that_was_asked_for_and_cannot_be_is_refused() -> None:
    world = World(2, hosts=("a", "b"), merge=merge_config(transport="shared_memory"))
    with pytest.raises(NoGroup, match="choose auto or network"):
        formed(world, (0, 1))


def test_models_of_different_size_form_no_group() -> None:
    with pytest.raises(NoGroup, match="island 0: 7, island 1: 8 numbers"):
        formed(World(2, numbers=(7, 8)), (0, 1))


def test_a_group_is_kept_until_it_is_another_or_spoiled() -> None:
    async def scenario() -> list[int]:
        world = World(3)
        await world.reset()
        keeper = world.keeper()
        epochs = [(await keeper.ensure((0, 1, 2))).epoch for _ in range(2)]
        epochs.append((await keeper.ensure((0, 2))).epoch)
        keeper.spoil()
        epochs.append((await keeper.ensure((0, 2))).epoch)
        return epochs

    assert run(scenario()) == [1, 1, 2, 3]


def test_a_new_coordinator_goes_on_counting_where_the_islands_stand() -> None:
    async def scenario() -> tuple[int, int, list[str]]:
        world = World(2)
        await world.reset()
        old = world.keeper()
        for _ in range(3):
            old.spoil()
            last = await old.ensure((0, 1))
        return last.epoch, (await world.keeper().ensure((0, 1))).epoch, world.wrong

    assert run(scenario()) == (3, 4, [])


@pytest.mark.parametrize("method", ["introduce", "can_share_with", "form"])
@pytest.mark.parametrize(
    ("do", "out", "gone"),
    [("dies", (1,), True), ("freezes", (1,), False), ("errors", (), False)],
)
def test_a_group_that_fails_to_form_names_who_and_forms_without_the_lost(
    method: str, do: Any, out: tuple[int, ...], gone: bool
) -> None:
    world = World(3, Fault(island=1, method=method, do=do))

    async def scenario() -> GroupKeeper:
        await world.reset()
        keeper = world.keeper()
        with pytest.raises(NoGroup, match="island 1"):
            await keeper.ensure((0, 1, 2))
        assert keeper.out == out
        assert keeper.members[1].gone is gone
        assert (await keeper.ensure(keeper.here)).members == keeper.here
        return keeper

    keeper = run(scenario())
    assert keeper.formation is not None
    assert world.wrong == []


def test_islands_that_do_not_stand_on_the_same_merge_form_no_group() -> None:
    async def scenario() -> None:
        world = World(2)
        await world.reset()
        world.handles[1].process.state.rounds_applied = 1
        with pytest.raises(NoGroup, match="island 0: 0, island 1: 1 applied"):
            await world.keeper().ensure((0, 1))

    run(scenario())


def test_only_an_island_of_the_present_group_can_tell_what_is_global() -> None:
    async def scenario() -> list[int | None]:
        world = World(3)
        await world.reset()
        keeper = world.keeper()
        told = [keeper.standing]
        await keeper.ensure((0, 1, 2))
        told.append(keeper.standing)
        keeper.drop({0: "late"})
        told.append(keeper.standing)
        keeper.back(0)  # it left its group when it took the merge over
        told.append(keeper.standing)
        keeper.drop({1: "late", 2: "late"})
        told.append(keeper.standing)
        await keeper.ensure((0,))
        return [*told, keeper.standing]

    assert run(scenario()) == [None, 0, 1, 1, None, 0]


def test_without_islands_there_is_no_group() -> None:
    async def scenario() -> None:
        with pytest.raises(NoGroup, match="no island is left"):
            await World(1).keeper().ensure(())

    run(scenario())


def test_what_is_out_remembers_why_until_it_is_back() -> None:
    keeper = World(2).keeper()
    keeper.drop({1: "killed"}, gone=[1])
    assert (keeper.here, keeper.out, keeper.members[1].why_out) == ((0,), (1,), "killed")
    keeper.drop({1: "no answer in time"})
    assert keeper.members[1].gone  # being late does not bring its memory back
    keeper.back(1)
    assert (keeper.here, keeper.members[1].gone, keeper.members[1].why_out) == ((0, 1), False, None)
