"""Which islands form the group that merges, and how they form it anew when one is gone or back.

in the group --no answer, process lost--> out --answers again--> adopts the last merge --> in
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from actors.config import IslandsConfig, MergeConfig
from actors.coordinator.calls import Answers, Caller
from actors.deadlines import ANSWER, JOIN
from actors.merge_messages import Formation, Introduction, SegmentName, Transport


class NoGroup(RuntimeError):
    """The islands could not form a group."""


@dataclass(slots=True)
class Member:
    """One island as the coordinator knows it."""

    handle: Any
    here: bool = True  # answers, and stands on the last merge
    why_out: str | None = None
    gone: bool = False  # what it knew is lost with its process, or cannot be trusted any more
    process_id: int | None = None  # of the process that was made ready for the run


class GroupKeeper:
    """Members by number and the present formation; makes every call to them."""

    def __init__(
        self,
        handles: Mapping[int, Any],
        *,
        islands: IslandsConfig,
        merge: MergeConfig,
        caller: Caller,
    ) -> None:
        self.members = {i: Member(handle=handle) for i, handle in handles.items()}
        self._islands = islands
        self._merge = merge
        self.caller = caller
        self._formation: Formation | None = None
        self._epoch = 0
        self._spoiled = False  # the present group may not be used again
        self._unformed: set[int] = set()  # took the last merge over, but left their old group

    @property
    def here(self) -> tuple[int, ...]:
        """Islands that take part, in order."""
        return tuple(i for i, member in sorted(self.members.items()) if member.here)

    @property
    def out(self) -> tuple[int, ...]:
        return tuple(i for i, member in sorted(self.members.items()) if not member.here)

    @property
    def formation(self) -> Formation | None:
        return self._formation

    @property
    def standing(self) -> int | None:
        """An island of the present group, which can tell what is global; None: there is none."""
        if self._formation is None:
            return None
        able = set(self._formation.members) - self._unformed
        return next((i for i in self.here if i in able), None)

    def drop(self, why: Mapping[int, str], *, gone: Iterable[int] = ()) -> None:
        """These are out until they come back."""
        lost = set(gone)
        for island, reason in why.items():
            member = self.members[island]
            member.here, member.why_out = False, reason
            member.gone = member.gone or island in lost

    def add(self, island: int, handle: Any) -> None:
        """A new island, or a new process of an old one: out until it has adopted the last merge."""
        self.members[island] = Member(handle=handle, here=False, why_out="new", gone=True)

    def back(self, island: int) -> None:
        """It stands on the last merge again."""
        member = self.members[island]
        member.here, member.why_out, member.gone = True, None, False
        self._unformed.add(island)
        self._spoiled = True  # it is in no group yet, even where the members are those of before

    def spoil(self) -> None:
        """A reduction failed: connections or memory of this group may hold half of it."""
        self._spoiled = True

    async def note_processes(self, islands: Iterable[int]) -> None:
        """Remember who was made ready: a process that Ray starts anew knows nothing of the run."""
        told = await self.ask("process_id", islands, limit_s=ANSWER.limit_s)
        for island, process_id in told.good.items():
            self.members[island].process_id = process_id

    async def ask(
        self, method: str, islands: Iterable[int], *args: Any, limit_s: float, **how: Any
    ) -> Answers[Any]:
        """Call ``method`` of each with the same arguments."""
        return await self.ask_each(method, {i: args for i in islands}, limit_s=limit_s, **how)

    async def ask_each(
        self, method: str, args: Mapping[int, tuple[Any, ...]], *, limit_s: float, **how: Any
    ) -> Answers[Any]:
        """Call ``method`` of each with its own arguments."""
        calls = {i: getattr(self.members[i].handle, method).remote(*one) for i, one in args.items()}
        return await self.caller.ask(calls, limit_s=limit_s, **how)

    async def ensure(self, members: tuple[int, ...]) -> Formation:
        """The group of exactly these; formed anew where it is another one or spoiled.

        NoGroup names who could not be reached; nothing is merged then.
        """
        present = self._formation
        if present is not None and present.members == members and not self._spoiled:
            return present
        if not members:
            raise NoGroup("no island is left")
        told = await self.ask("introduce", members, limit_s=ANSWER.limit_s)
        self._all_or_none("introduce", told)
        introductions = [told.good[i] for i in members]
        _check_alike(introductions)
        transport = await self._transport(introductions)
        self._epoch = max(self._epoch, *(one.epoch for one in introductions)) + 1
        formation = Formation(
            epoch=self._epoch,
            members=members,
            transport=transport,
            segments=_segments(introductions) if transport == "shared_memory" else (),
            master_addr=introductions[0].address,
            master_port=introductions[0].port,
            join_timeout_s=JOIN.limit_s,
        )
        await self._form(formation)
        self._formation, self._spoiled = formation, False
        self._unformed -= set(members)
        return formation

    async def _form(self, formation: Formation) -> None:
        limit_s = JOIN.limit_s + ANSWER.limit_s
        leader, *others = formation.members
        if formation.transport != "shared_memory":
            formed = await self.ask("form", formation.members, formation, limit_s=limit_s)
            self._all_or_none("form a group", formed)
            return
        led = await self.ask("form", [leader], formation, limit_s=limit_s)
        self._all_or_none("form a group", led)
        banks: SegmentName = led.good[leader]
        following = Formation(
            epoch=formation.epoch,
            members=formation.members,
            transport=formation.transport,
            segments=formation.segments,
            banks=banks,
        )
        followed = await self.ask("form", others, following, limit_s=limit_s)
        self._all_or_none("form a group", followed)

    def _all_or_none(self, doing: str, answers: Answers[Any]) -> None:
        if not answers.bad:
            return
        self._spoiled = True
        self.drop({**answers.gone, **answers.late}, gone=answers.gone)
        told = "; ".join(f"island {i}: {why}" for i, why in sorted(answers.bad.items()))
        raise NoGroup(f"{doing}: {told}")

    async def _transport(self, introductions: list[Introduction]) -> Transport:
        if len(introductions) == 1:
            return "alone"
        asked = self._merge.transport
        if asked == "network" or (asked == "auto" and self._merge.codec != "fp32"):
            return "network"
        possible = await self._memory_is_shared(introductions)
        if asked == "shared_memory" and not possible:
            raise NoGroup(
                "merge.transport: shared_memory, but the islands are not on one host, on CPUs and "
                "of one user and container; choose auto or network"
            )
        return "shared_memory" if possible else "network"

    async def _memory_is_shared(self, introductions: list[Introduction]) -> bool:
        segments = _segments(introductions)
        if len(segments) != len(introductions) or len({i.host for i in introductions}) != 1:
            return False
        members = [one.island for one in introductions]
        seen = await self.ask("can_share_with", members, segments, limit_s=ANSWER.limit_s)
        self._all_or_none("open each other's memory", seen)
        return all(seen.good.values())


def _segments(introductions: list[Introduction]) -> tuple[SegmentName, ...]:
    return tuple(one.segment for one in introductions if one.segment is not None)


def _check_alike(introductions: list[Introduction]) -> None:
    sizes = {one.numbers for one in introductions}
    if len(sizes) != 1:
        told = ", ".join(f"island {one.island}: {one.numbers}" for one in introductions)
        raise NoGroup(f"the islands' models differ in size ({told} numbers)")
    applied = {one.rounds_applied for one in introductions}
    if len(applied) != 1:
        told = ", ".join(f"island {one.island}: {one.rounds_applied}" for one in introductions)
        raise NoGroup(f"the islands do not stand on the same merge ({told} applied)")
