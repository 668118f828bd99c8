"""Calls to islands with time limits: who answered, who failed, who is gone, who is merely late.

No Ray here: a handle's method is whatever gives an awaitable, so that tests use plain coroutines.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from actors.brief import brief

T = TypeVar("T")
_UNREAD_S = 0.05  # for answers that came while this process itself stood still


@dataclass(slots=True)
class Answers(Generic[T]):
    """What became of one call to each of several islands."""

    good: dict[int, T] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # answered with an error: it lives
    gone: dict[int, str] = field(default_factory=dict)  # its process is lost
    late: dict[int, str] = field(default_factory=dict)  # no answer in time; it may come yet
    at_s: dict[int, float] = field(default_factory=dict)  # loop time of each answer
    errors: dict[int, BaseException] = field(default_factory=dict)

    @property
    def bad(self) -> dict[int, str]:
        """All that did not answer well, with why."""
        return {**self.failed, **self.gone, **self.late}

    @property
    def broken(self) -> dict[int, str]:
        """Those whose state is lost, or stopped in the middle of something: not merely late."""
        return {**self.failed, **self.gone}


class Caller:
    """Remembers calls that came too late to be of use, until they end.

    ``is_gone(error)`` tells a lost process from one that answered with an error.
    """

    def __init__(self, *, is_gone: Callable[[BaseException], bool]) -> None:
        self._is_gone = is_gone
        self._outstanding: dict[int, list[asyncio.Future[Any]]] = {}

    async def ask(
        self,
        calls: Mapping[int, Awaitable[T]],
        *,
        limit_s: float,
        grace_s: Callable[[], float] | None = None,
        errors_count: bool = False,
    ) -> Answers[T]:
        """Await all, ``limit_s`` at most; once one has answered, ``grace_s()`` more at most.

        An error is an answer only with ``errors_count``: where all do the same thing together.
        """
        tasks: dict[asyncio.Future[T], int] = {
            asyncio.ensure_future(_awaited(call)): i for i, call in calls.items()
        }
        answers: Answers[T] = Answers()
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + limit_s
        waiting: set[asyncio.Future[T]] = set(tasks)
        while waiting and (left_s := ends_s - loop.time()) > 0:
            done, waiting = await asyncio.wait(
                waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            self._sort(done, tasks, answers)
            answered_s = [
                at_s for i, at_s in answers.at_s.items() if i in answers.good or errors_count
            ]
            if grace_s is not None and answered_s:
                ends_s = min(ends_s, min(answered_s) + grace_s())
        if waiting:
            done, waiting = await asyncio.wait(waiting, timeout=_UNREAD_S)
            self._sort(done, tasks, answers)
        for task in waiting:
            island = tasks[task]
            answers.late[island] = "no answer in time"
            task.add_done_callback(_forget_error)
            self._outstanding.setdefault(island, []).append(task)
        return answers

    def _sort(
        self,
        done: Iterable[asyncio.Future[T]],
        tasks: Mapping[asyncio.Future[T], int],
        answers: Answers[T],
    ) -> None:
        now_s = asyncio.get_running_loop().time()
        for task in done:
            island, error = tasks[task], task.exception()
            if error is None:
                answers.good[island] = task.result()
                answers.at_s[island] = now_s
                continue
            answers.errors[island] = error
            if self._is_gone(error):
                answers.gone[island] = brief(error)
            else:
                answers.failed[island] = brief(error)
                answers.at_s[island] = now_s

    def is_busy(self, island: int) -> bool:
        """A call of earlier has not ended: the island would not answer another one."""
        calls = [task for task in self._outstanding.pop(island, []) if not task.done()]
        if calls:
            self._outstanding[island] = calls
        return bool(calls)

    async def until_idle(self, island: int) -> None:
        """Return when no call of earlier is under way any more, however it ended."""
        while self.is_busy(island):
            await asyncio.wait(self._outstanding[island])


async def _awaited(call: Awaitable[T]) -> T:
    return await call


def _forget_error(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # retrieved: or asyncio would print it when the task is collected
