"""One merge over the islands that are there: ready, reduce, commit, each answered by all or undone.

    ready ----quorum, grace----> reduce ----all----> commit ----> merged
      |                            |  one is gone or late: abort, drop it, once more without it
      +---- too few: abort --------+---- too few: abort ----> failed, nothing has changed

The commit is decided here, once, when every member has the whole result beside its parameters: from
then on each can finish alone, and one that dies first takes the merge over when it comes back.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from actors.config import IslandsConfig, MergeConfig
from actors.coordinator.group_keeper import GroupKeeper, NoGroup
from actors.coordinator.quorum import Grace, enough, merge_weights
from actors.deadlines import ANSWER
from actors.merge_messages import Ready, Reduced, RoundPlan

MOST_ATTEMPTS = 3  # a third failure in one round is no accident of one island


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a round."""

    round: int
    merged: bool
    why: str | None  # it was not merged
    members: tuple[int, ...] = ()
    dropped: dict[int, str] = field(default_factory=dict)
    ready: dict[int, Ready] = field(default_factory=dict)
    reduced: dict[int, Reduced] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    committed: dict[int, Any] = field(default_factory=dict)  # what each island's commit answered
    norm: float | None = None  # of the mean pseudo-gradient, before it was clipped
    scale: float = 1.0
    epoch: int | None = None
    transport: str | None = None


@dataclass(slots=True)
class OpenRound:
    """Between ready and commit."""

    round: int
    fragment: int
    ready: dict[int, Ready]
    dropped: dict[int, str]
    failed: set[int] = field(default_factory=set)  # with an error, at the last attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Every member has the result; nothing is taken over yet."""

    plan: RoundPlan
    members: tuple[int, ...]
    parts: dict[int, Reduced]
    norm: float
    transport: str


class Rounds:
    """Runs the merges of one group keeper, one after another."""

    def __init__(self, keeper: GroupKeeper, *, islands: IslandsConfig, merge: MergeConfig) -> None:
        self._keeper = keeper
        self._islands = islands
        self._merge = merge
        self._grace = None if islands.elastic is None else Grace(islands.elastic)

    @property
    def _patience(self) -> Callable[[], float] | None:
        """The present grace for late islands; None where none may be left out."""
        grace = self._grace
        return None if grace is None else lambda: grace.limit_s

    @property
    def _longest(self) -> Callable[[], float] | None:
        """For work that all do at once: how fast each is, says nothing of how late it is."""
        elastic = self._islands.elastic
        return None if elastic is None else lambda: elastic.grace_s

    async def merge(
        self, round_: int, *, ready_args: tuple[Any, ...], commit_args: tuple[Any, ...]
    ) -> Outcome:
        """The whole round; ``*_args`` follow the round's own arguments in the islands' calls."""
        opened = await self.gather(round_, *ready_args)
        if isinstance(opened, Outcome):
            return opened
        return await self.finish(opened, commit_args=commit_args)

    async def gather(self, round_: int, *ready_args: Any) -> OpenRound | Outcome:
        """All that are there at a step boundary, less those that are lost or too late."""
        keeper = self._keeper
        if self._merge.overlap_steps:  # a snapshot is the group's: it cannot be formed afterwards
            asked = keeper.here
            try:
                await keeper.ensure(asked)
            except NoGroup as error:
                lost = {i: keeper.members[i].why_out or "lost" for i in asked if i in keeper.out}
                return Outcome(round=round_, merged=False, why=str(error), dropped=lost)
        fragment = round_ % self._merge.fragments
        answers = await keeper.ask(
            "ready",
            keeper.here,
            round_,
            fragment,
            *ready_args,
            limit_s=self._merge.timeout_s,
            grace_s=self._patience,
        )
        if self._grace is not None:
            self._grace.arrived(answers.at_s)
        dropped = dict(answers.bad)
        keeper.drop(dropped, gone=answers.broken)
        opened = OpenRound(
            round=round_, fragment=fragment, ready=dict(answers.good), dropped=dropped
        )
        if not self._enough(opened):
            told = "; ".join(f"island {i}: {why}" for i, why in sorted(dropped.items()))
            return await self._give_up(opened, f"too few islands are ready ({told or 'no others'})")
        return opened

    async def finish(self, opened: OpenRound, *, commit_args: tuple[Any, ...]) -> Outcome:
        """Reduce and commit."""
        reduction = await self.reduce(opened)
        if isinstance(reduction, Outcome):
            return reduction
        return await self.commit(opened, reduction, commit_args=commit_args)

    async def reduce(self, opened: OpenRound) -> Reduction | Outcome:
        """The whole result beside everybody's parameters; once more without who is lost."""
        why = ""
        for _ in range(MOST_ATTEMPTS):
            if not self._enough(opened):
                break
            reduction = await self._reduce_once(opened)
            if isinstance(reduction, Reduction):
                if math.isfinite(reduction.norm):
                    return reduction
                why = f"the mean pseudo-gradient's norm is {reduction.norm}: training has diverged"
                break
            why = reduction
            if self._merge.overlap_steps:
                break  # the snapshot is used up, and training has gone on
        return await self._give_up(opened, why or "too few islands are left")

    def _enough(self, opened: OpenRound) -> bool:
        return enough(len(opened.ready), count=self._islands.count, config=self._islands.elastic)

    async def _reduce_once(self, opened: OpenRound) -> Reduction | str:
        """The reduction, or why it failed, with the lost dropped."""
        members = tuple(sorted(opened.ready))
        try:
            formation = await self._keeper.ensure(members)
        except NoGroup as error:
            self._without_lost(opened)
            return str(error)
        plan = RoundPlan(
            round=opened.round,
            epoch=formation.epoch,
            weights=merge_weights(
                [opened.ready[i].tokens for i in members],
                [opened.ready[i].missed_rounds for i in members],
                self._islands.outer,
            ),
            fragment=opened.fragment,
        )
        parts = await self._phase("reduce", opened, plan)
        if isinstance(parts, str):
            return parts
        squares = math.fsum(parts[i].sum_squares for i in members)
        norm = math.sqrt(squares) if math.isfinite(squares) else squares
        clip = self._islands.outer.clip_norm
        if clip is not None and math.isfinite(norm) and norm > clip:
            plan = replace(plan, scale=clip / norm)
            again = await self._phase("rescale", opened, plan)
            if isinstance(again, str):
                return again
        return Reduction(
            plan=plan, members=members, parts=parts, norm=norm, transport=formation.transport
        )

    async def _phase(self, method: str, opened: OpenRound, plan: RoundPlan) -> dict[int, Any] | str:
        """Everybody's answer, or why there is none: those who are to blame are dropped then.

        Peers fail with a lost island where they need it, so an error alone is no reason to drop
        one; but who fails again, while others do not, is left out.
        """
        members = tuple(sorted(opened.ready))
        limit_s = self._merge.timeout_s + ANSWER.limit_s
        answers = await self._keeper.ask(
            method, members, plan, limit_s=limit_s, grace_s=self._longest, errors_count=True
        )
        if not answers.bad:
            return answers.good
        self._keeper.spoil()
        lost = {**answers.gone, **answers.late}
        if not lost and answers.good and opened.failed == set(answers.failed):
            lost = dict(answers.failed)
        opened.failed = set(answers.failed) - set(lost)
        self._keeper.drop(lost, gone=answers.broken)
        self._without_lost(opened)
        told = "; ".join(f"island {i}: {why}" for i, why in sorted((lost or answers.bad).items()))
        return f"{method} of round {opened.round}: {told}"

    def _without_lost(self, opened: OpenRound) -> None:
        for island in sorted(set(opened.ready) - set(self._keeper.here)):
            opened.dropped[island] = self._keeper.members[island].why_out or "lost"
            del opened.ready[island]

    async def commit(
        self, opened: OpenRound, reduction: Reduction, *, commit_args: tuple[Any, ...]
    ) -> Outcome:
        """Decided: every member takes the result over; who dies first does so when it is back."""
        plan, members = reduction.plan, reduction.members
        limit_s = self._merge.window_s + self._merge.timeout_s + ANSWER.limit_s
        answers = await self._keeper.ask(
            "commit", members, plan, *commit_args, limit_s=limit_s, grace_s=self._longest
        )
        # An island that failed in the middle of it stands on neither merge.
        self._keeper.drop(answers.bad, gone=answers.broken)
        opened.dropped.update(answers.bad)
        return Outcome(
            round=opened.round,
            merged=True,
            why=None,
            members=members,
            dropped=opened.dropped,
            ready=opened.ready,
            reduced=reduction.parts,
            weights=dict(zip(members, plan.weights, strict=True)),
            committed=answers.good,
            norm=reduction.norm,
            scale=plan.scale,
            epoch=plan.epoch,
            transport=reduction.transport,
        )

    async def let_go(self, outcome: Outcome) -> None:
        """Islands that were too late for the round train on once they answer; they stay out.

        The round's own abort does not reach them: it would come before the answer that it undoes.
        This takes as long as the slowest of them, which may be for ever: give it its own task.
        """
        await asyncio.gather(*[self._let_go(i, outcome.round) for i in outcome.dropped])

    async def _let_go(self, island: int, round_: int) -> None:
        await self._keeper.caller.until_idle(island)
        # Nobody answers where its process is lost; where it took the merge over, nothing is open.
        await self._keeper.ask("abort", [island], round_, limit_s=ANSWER.limit_s)

    async def _give_up(self, opened: OpenRound, why: str) -> Outcome:
        """Nothing was merged: who waits goes on training."""
        await self._keeper.ask("abort", sorted(opened.ready), opened.round, limit_s=ANSWER.limit_s)
        return Outcome(round=opened.round, merged=False, why=why, dropped=opened.dropped)
