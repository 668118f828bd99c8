"""Calls with time limits: answered, failed, gone, late; and when the grace begins."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from actors.coordinator.calls import Answers, Caller
from tests.actors.coordinator.virtual_time import VirtualLoop, run


class Lost(Exception):
    pass


def caller() -> Caller:
    return Caller(is_gone=lambda error: isinstance(error, Lost))


async def after(seconds: float, answer: Any) -> Any:
    await asyncio.sleep(seconds)
    if isinstance(answer, Exception):
        raise answer
    return answer


def ask(calls: dict[int, Awaitable[Any]], **how: Any) -> Answers[Any]:
    async def scenario() -> Answers[Any]:
        return await caller().ask(calls, **how)

    return run(scenario())


def test_each_island_is_told_apart() -> None:
    answers = ask(
        {
            0: after(1.0, "a"),
            1: after(2.0, RuntimeError("no room")),
            2: after(0.5, Lost("killed")),
            3: after(99.0, "b"),
        },
        limit_s=10.0,
    )
    assert answers.good == {0: "a"}
    assert answers.failed == {1: "no room"}
    assert answers.gone == {2: "killed"}
    assert set(answers.late) == {3}
    assert set(answers.bad) == {1, 2, 3}
    assert set(answers.broken) == {1, 2}
    assert answers.at_s == {0: 1.0, 1: 2.0}


def test_nobody_asked_is_answered_at_once() -> None:
    assert ask({}, limit_s=10.0) == Answers()


@pytest.mark.parametrize(
    ("first", "errors_count", "late"),
    [
        ("an answer", False, {1}),
        (RuntimeError("failed"), False, set()),  # who else fails in its place need not hurry
        (RuntimeError("failed"), True, {1}),
        (Lost("killed"), True, set()),
    ],
)
def test_the_grace_begins_with_the_first_answer(
    first: Any, errors_count: bool, late: set[int]
) -> None:
    answers = ask(
        {0: after(1.0, first), 1: after(7.0, "slow")},
        limit_s=60.0,
        grace_s=lambda: 5.0,
        errors_count=errors_count,
    )
    assert set(answers.late) == late


def test_the_grace_is_no_longer_than_the_limit() -> None:
    answers = ask({0: after(1.0, "a"), 1: after(4.0, "b")}, limit_s=3.0, grace_s=lambda: 50.0)
    assert set(answers.late) == {1}


def test_who_is_late_is_busy_until_its_call_ends_whatever_that_is() -> None:
    async def scenario() -> list[bool]:
        made = caller()
        await made.ask({0: after(5.0, Lost("late")), 1: after(0.1, "a")}, limit_s=1.0)
        before = [made.is_busy(0), made.is_busy(1)]
        await asyncio.sleep(10.0)
        return [*before, made.is_busy(0)]

    assert run(scenario()) == [True, False, False]


def test_who_was_late_is_idle_when_its_call_has_ended_however_it_did() -> None:
    async def scenario() -> list[float]:
        made = caller()
        idle_at_s: list[float] = []
        late = {0: after(3.0, "late"), 1: after(5.0, Lost("late")), 2: after(0.5, "a")}
        await made.ask(late, limit_s=1.0)
        for island in (2, 0, 1):
            await made.until_idle(island)
            idle_at_s.append(asyncio.get_running_loop().time())
        return idle_at_s

    assert run(scenario()) == pytest.approx([1.05, 3.0, 5.0])


def test_answers_that_came_while_the_coordinator_stood_still_are_read() -> None:
    async def scenario() -> Answers[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        answer: asyncio.Future[str] = loop.create_future()

        async def unpacked() -> str:  # an answer takes a few turns of the loop from the wire on
            value = await answer
            for _ in range(5):
                await asyncio.sleep(0)
            return value

        def stopped_meanwhile() -> None:
            loop.stand_still(30.0)
            answer.set_result("in time")

        loop.call_later(0.5, stopped_meanwhile)
        return await caller().ask({0: unpacked()}, limit_s=1.0)

    assert run(scenario()).good == {0: "in time"}
