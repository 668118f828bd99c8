"""A run whose time is counted in inner steps: the plain Coordinator over islands that really train.

Nothing is served. A tick holds so many inner steps; the traffic that the policies see is the
study's request file on that clock. No wall clock decides anything, so the same study gives the
same run to the bit, also when it was killed and went on from a checkpoint.

    tick: sample -> decide -> (ready -> reduce -> commit) -> the tick's steps -> checkpoint if due
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actors.config import IslandsConfig, MergeConfig
from actors.coordinator.calls import Answers
from actors.coordinator.coordinator import Coordinator
from actors.coordinator.group_keeper import GroupKeeper, NoGroup
from actors.coordinator.quorum import Grace
from actors.coordinator.rounds import MOST_ATTEMPTS, OpenRound, Outcome, Reduction, Rounds
from actors.deadlines import (
    ANSWER,
    CHECKPOINT,
    CHECKPOINT_GRACE,
    RESTART,
    STATE,
    STEPS,
    VALIDATION,
)
from actors.events import (
    ArmStarted,
    Checkpointed,
    CheckpointFailed,
    Command,
    Decided,
    EndArm,
    Event,
    Faulted,
    HistoryTold,
    IslandDropped,
    IslandJoined,
    MergeFailed,
    MergeFinished,
    MergePart,
    MergeStarted,
    StartMerge,
    Ticked,
    Validated,
)
from policies.observation import IslandProgress, Sample

RETRY_S = 1.0  # between two looks at an island that Ray is starting anew


class LogDiffers(RuntimeError):
    """The logged measurements do not give the logged decisions again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What a run on the step clock is made of, beside its islands."""

    arm: str
    seed: int
    tick_s: float
    width_ticks: int
    horizon_ticks: int
    arrivals: tuple[int, ...]  # requests that arrived in the tick that ends at tick i
    in_flight: tuple[int | None, ...]  # those of the last ``history.service_s``: an assumption
    suppressed: bool
    folder: str  # of the run
    validate_every_merges: int  # 0: at the end only
    history: HistoryTold | None = None
    data_parallel: bool = False  # one island takes a batch of every shard at each step
    train_ticks: int | None = None  # ticks with steps at most; None: all outside windows


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFrom:
    """A checkpoint and all that was logged up to it."""

    checkpoint: Checkpointed
    events: tuple[Event, ...]


@dataclass(slots=True)
class _Overlapped:
    """A merge that is under way while training goes on."""

    command: StartMerge
    opened: OpenRound
    reducing: "asyncio.Future[Reduction | Outcome]"
    steps_left: int


class StepClockRun:
    """One arm of one seed, from its start or from a checkpoint to its end."""

    def __init__(
        self,
        coordinator: Coordinator,
        keeper: GroupKeeper,
        *,
        plan: StepPlan,
        islands: IslandsConfig,
        merge: MergeConfig,
    ) -> None:
        self._coordinator = coordinator
        self._keeper = keeper
        self._rounds = Rounds(keeper, islands=islands, merge=merge)
        self._plan = plan
        self._islands = islands
        self._merge = merge
        self._grace = None if islands.elastic is None else Grace(islands.elastic)
        self._end: EndArm | None = None
        self._at_s = 0.0
        self._train_ticks = 0  # ticks with inner steps so far
        self._steps = 0  # inner steps that they held
        self._tokens = 0  # merged so far
        self._rounds_done = 0
        self._last_checkpoint: Checkpointed | None = None
        self._optimizer: dict[int, str] = {}  # of islands that were started anew
        self._window_end_tick = 0
        self._overlapped: _Overlapped | None = None
        self._waking: dict[int, asyncio.Task[None]] = {}
        self._awake: set[int] = set()
        self._said_out: set[int] = set()  # islands whose loss stands in the log
        self._missing: dict[int, str] = {}  # islands that did not answer at the start
        self._rows: dict[int, list[dict[str, Any]]] = {}  # by the event that they belong before

    # From the start to the end

    async def run(self, resume: ResumeFrom | None) -> tuple[str, str | None]:
        """Status and why. Events and rows are drained meanwhile."""
        try:
            first_tick = await (self._start() if resume is None else self._go_on(resume))
            for tick in range(first_tick, self._plan.horizon_ticks + 1):
                if self._end is None:
                    await self._tick(tick)
        finally:
            await self._drop_what_is_under_way()
        assert self._end is not None  # the horizon's tick ends an arm
        if self._end.status == "complete":
            return await self._close()
        return self._end.status, self._end.why

    def fault(self, kind: str, what: str) -> None:
        """Something that ends the run."""
        event_id = self._coordinator.next_id()
        self._handle(Faulted(event_id=event_id, at_s=self._at_s, kind=kind, what=what))

    def drain(self) -> tuple[list[Event], dict[int, list[dict[str, Any]]]]:
        """Events since the last call, and rows of inner steps by the event that they precede."""
        rows, self._rows = self._rows, {}
        return self._coordinator.drain_log(), rows

    def join(self, island: int, handle: Any) -> None:
        """A new island, or a new process of an old one; it takes part from a tick's start on."""
        self._keeper.add(island, handle)

    async def _start(self) -> int:
        keeper = self._keeper
        hashes = await self._reset()
        if len(set(hashes.values())) != 1:
            raise RuntimeError(f"islands start from different parameters: {hashes}")
        await self._form()
        self._handle(
            ArmStarted(
                event_id=self._coordinator.next_id(),
                at_s=0.0,
                arm=self._plan.arm,
                seed=self._plan.seed,
                islands=keeper.here,
            )
        )
        if self._plan.history is not None:
            self._handle(replace(self._plan.history, event_id=self._coordinator.next_id()))
        self._say_dropped(self._missing)
        return 0

    async def _reset(self) -> dict[int, str]:
        """All that are here made ready for the run; parameter hashes.

        An elastic run waits for one that is being started anew, and goes on without it at last.
        """
        keeper, loop = self._keeper, asyncio.get_running_loop()
        shards = None
        if self._plan.data_parallel:
            shards = tuple(range(self._islands.shards or self._islands.count))
        args = (self._plan.seed, self._plan.folder, shards)
        hashes: dict[int, str] = {}
        lost: dict[int, str] = {}
        left, ends_s = keeper.here, loop.time() + RESTART.limit_s
        while True:
            answers = await keeper.ask("reset", left, *args, limit_s=RESTART.limit_s)
            hashes |= answers.good
            lost |= answers.bad
            left = tuple(answers.gone)
            if not left or self._islands.elastic is None or loop.time() >= ends_s:
                break
            await asyncio.sleep(RETRY_S)
        lost = {i: why for i, why in lost.items() if i not in hashes}
        if not hashes or (lost and self._islands.elastic is None):
            raise RuntimeError(f"islands could not start: {_told(lost)}")
        keeper.drop(lost, gone=lost)
        self._missing = lost
        await keeper.note_processes(sorted(hashes))
        return hashes

    async def _form(self) -> None:
        """The group of all that are here, before the run's clock begins."""
        for attempt in range(1, MOST_ATTEMPTS + 1):
            try:
                await self._keeper.ensure(self._keeper.here)
                return
            except NoGroup:
                if self._islands.elastic is None or attempt == MOST_ATTEMPTS:
                    raise

    async def _go_on(self, resume: ResumeFrom) -> int:
        """Everything as it was when the checkpoint was written."""
        checkpoint, keeper = resume.checkpoint, self._keeper
        self._last_checkpoint = checkpoint
        self._recall(resume.events)
        self._coordinator.count_from(checkpoint.event_id)
        self._at_s = checkpoint.at_s
        left_out = [i for i in keeper.here if i not in checkpoint.islands]
        keeper.drop(dict.fromkeys(left_out, "not in the checkpoint"), gone=left_out)
        await self._reset()
        folder = str(Path(self._plan.folder) / checkpoint.folder)
        own = {i: (folder, checkpoint.files, f"island-{i}.safetensors") for i in keeper.here}
        loaded = await keeper.ask_each("load", own, limit_s=CHECKPOINT.limit_s)
        if loaded.bad:
            raise RuntimeError(f"islands could not load the checkpoint: {_told(loaded.bad)}")
        await self._form()
        self._say_dropped(self._missing)
        return checkpoint.tick + 1

    def _recall(self, events: tuple[Event, ...]) -> None:
        """Fold the log in again; LogDiffers when something else follows from it."""
        told = [event for event in events if not isinstance(event, _DECIDE_NOTHING)]
        at = 0
        for event in told:
            if isinstance(event, Decided | MergeStarted):  # the coordinator says it itself
                continue
            self._coordinator.count_from(event.event_id)
            self._fold(event)
            for ours in self._coordinator.drain_log():
                theirs = told[at] if at < len(told) else "the end of the log"
                at += 1
                if ours != theirs:
                    raise LogDiffers(
                        f"from what was measured follows {ours}, but logged is {theirs}: the "
                        "policy or its settings are not those of the run"
                    )
        if at != len(told):
            raise LogDiffers(f"{len(told)} events in the log, {at} follow from it")

    def _fold(self, event: Event) -> None:
        commands = self._coordinator.handle(event)
        if isinstance(event, Ticked):
            self._on_commands(event.sample.tick, commands)
            if self._trains(event.sample.tick):
                self._train_ticks += 1
                self._steps = self._steps_by(self._train_ticks)
        elif isinstance(event, MergeFinished):
            self._rounds_done = event.round + 1
            self._tokens += sum(part.tokens for part in event.parts)

    async def _drop_what_is_under_way(self) -> None:
        """Nothing of this run is waited for any more; islands are made ready anew for the next."""
        open_, self._overlapped = self._overlapped, None
        tasks: list[asyncio.Future[Any]] = [*self._waking.values()]
        if open_ is not None:
            tasks.append(open_.reducing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # A tick

    async def _tick(self, tick: int) -> None:
        self._at_s = tick * self._plan.tick_s
        await self._readmit()
        sample = await self._sample(tick)
        if self._end is not None:
            return
        commands = self._handle(Ticked(event_id=self._coordinator.next_id(), sample=sample))
        if self._end is not None:
            await self._finish_overlapped()
            return
        merged = False
        start = self._on_commands(tick, commands)
        if start is not None and not start.suppressed:
            merged = await self._merge_now(start)
        if self._trains(tick):
            merged = await self._train() or merged
        if merged:
            await self._after_merge(tick)

    def _on_commands(self, tick: int, commands: list[Command]) -> StartMerge | None:
        """The merge that was commanded, whose window begins here."""
        starts = [command for command in commands if isinstance(command, StartMerge)]
        if not starts:
            return None
        self._window_end_tick = tick + self._plan.width_ticks
        return starts[0]

    def _trains(self, tick: int) -> bool:
        """Steps pause in a window, unless merges overlap with them."""
        most = self._plan.train_ticks
        if tick >= self._plan.horizon_ticks or (most is not None and self._train_ticks >= most):
            return False
        return self._merge.overlap_steps > 0 or tick >= self._window_end_tick

    def _steps_by(self, train_ticks: int) -> int:
        return int(train_ticks * self._plan.tick_s / self._islands.step_interval_s + 1e-9)

    async def _sample(self, tick: int) -> Sample:
        told = await self._keeper.ask(
            "progress",
            self._keeper.here,
            self._at_s,
            limit_s=ANSWER.limit_s,
            grace_s=self._longest,
        )
        self._drop_or_end(told)
        progress: list[IslandProgress] = [told.good[i] for i in sorted(told.good)]
        return Sample(
            tick=tick,
            now_s=self._at_s,
            arrivals=self._plan.arrivals[tick],
            in_flight=self._plan.in_flight[tick],
            serving=None,
            network=None,
            checkpoint=None,
            islands=tuple(progress),
            blind=False,
        )

    async def _train(self) -> bool:
        """The tick's steps; True when a merge that overlapped with them was taken over."""
        self._train_ticks += 1
        due, done, merged = self._steps_by(self._train_ticks) - self._steps, 0, False
        if self._overlapped is not None:
            done = min(self._overlapped.steps_left, due)
            await self._advance(done, after=0)
            self._overlapped.steps_left -= done
            if self._overlapped.steps_left == 0:
                merged = await self._finish_overlapped()
        await self._advance(due - done, after=done)
        return merged

    async def _advance(self, steps: int, *, after: int) -> None:
        """``steps`` inner steps, which follow ``after`` ones of the same tick."""
        if steps == 0 or self._end is not None:
            return
        answers = await self._keeper.ask(
            "advance",
            self._keeper.here,
            steps,
            self._at_s + after * self._islands.step_interval_s,
            limit_s=STEPS.limit_s,
            grace_s=None if self._grace is None else self._grace_s,
        )
        if self._grace is not None:
            self._grace.arrived(answers.at_s)
        self._steps += steps
        self._drop_or_end(answers)

    @property
    def _longest(self) -> Callable[[], float] | None:
        elastic = self._islands.elastic
        return None if elastic is None else lambda: elastic.grace_s

    def _grace_s(self) -> float:
        assert self._grace is not None
        return self._grace.limit_s

    # A merge

    async def _merge_now(self, command: StartMerge) -> bool:
        opened = await self._rounds.gather(command.round)
        if isinstance(opened, Outcome):
            return self._settle(command, opened)
        if not self._merge.overlap_steps:
            outcome = await self._rounds.finish(opened, commit_args=(command.end_s,))
            return self._settle(command, outcome)
        self._overlapped = _Overlapped(
            command=command,
            opened=opened,
            reducing=asyncio.ensure_future(self._rounds.reduce(opened)),
            steps_left=self._merge.overlap_steps,
        )
        return False

    async def _finish_overlapped(self) -> bool:
        """Take over what was reduced while training went on."""
        open_, self._overlapped = self._overlapped, None
        if open_ is None:
            return False
        reduction = await open_.reducing
        if isinstance(reduction, Reduction):
            reduction = await self._rounds.commit(
                open_.opened, reduction, commit_args=(open_.command.end_s,)
            )
        return self._settle(open_.command, reduction)

    def _settle(self, command: StartMerge, outcome: Outcome) -> bool:
        """The round's events; True when it was merged."""
        self._say_dropped(outcome.dropped)
        if not outcome.merged:
            why = outcome.why or "no reason was given"
            self._handle(
                MergeFailed(
                    event_id=self._coordinator.next_id(),
                    cause_id=command.cause_id,
                    round=command.round,
                    at_s=self._at_s,
                    why=why,
                )
            )
            if self._islands.elastic is None or not self._keeper.here:
                self.fault("island_lost", f"merge {command.round}: {why}")
            return False
        self._rounds_done = command.round + 1
        parts = merge_parts(outcome, at_s=self._at_s)
        self._tokens += sum(part.tokens for part in parts)
        self._handle(
            MergeFinished(
                event_id=self._coordinator.next_id(),
                cause_id=command.cause_id,
                round=command.round,
                at_s=self._at_s,
                overran=False,
                parts=parts,
            )
        )
        hashes = set(outcome.committed.values())
        if len(hashes) > 1 and self._merge.leaves_islands_equal:
            self.fault("islands_differ", f"islands differ after merge {command.round}: {hashes}")
        elif outcome.dropped and (self._islands.elastic is None or not self._keeper.here):
            self.fault("island_lost", f"merge {command.round}: {_told(outcome.dropped)}")
        return True

    async def _after_merge(self, tick: int) -> None:
        """What is due after a merge, at the tick's end; a tick that was cut short is no place."""
        every = self._plan.validate_every_merges
        if every and self._rounds_done % every == 0 and self._end is None:
            await self._validate(closing=False)
        full = self._merge.checkpoint and self._merge.checkpoint_content == "full"
        due = full and self._rounds_done % self._merge.checkpoint_every_merges == 0
        if due and self._end is None:
            await self._checkpoint(tick)

    # Who is there

    def _drop_or_end(self, answers: Answers[Any]) -> None:
        """Go on without those that did not answer, where the study allows it.

        Who answered with an error lives, but its parameters may be anything: as if it were new.
        """
        if not answers.bad:
            return
        if self._islands.elastic is None:
            island, why = sorted(answers.bad.items())[0]
            self.fault("island_lost", f"island {island} lost: {why}")
            return
        self._keeper.drop(answers.bad, gone=answers.broken)
        self._say_dropped(answers.bad)
        if not self._keeper.here:
            self.fault("island_lost", f"no island is left: {_told(answers.bad)}")

    def _say_dropped(self, dropped: Mapping[int, str]) -> None:
        """Each loss once: a round that was under way tells of it again."""
        for island, why in sorted(dropped.items()):
            if island in self._said_out:
                continue
            self._said_out.add(island)
            self._handle(
                IslandDropped(
                    event_id=self._coordinator.next_id(),
                    at_s=self._at_s,
                    island=island,
                    round=self._rounds_done,
                    why=why,
                )
            )

    async def _readmit(self) -> None:
        """Islands that answer again stand on the last merge, and take part from here on."""
        if self._islands.elastic is None or self._overlapped is not None:
            return
        keeper = self._keeper
        for island in keeper.out:
            if island not in self._waking and not keeper.caller.is_busy(island):
                self._waking[island] = asyncio.ensure_future(self._wake(island))
        for island in sorted(self._awake):
            self._awake.discard(island)
            self._waking.pop(island, None)
            await self._adopt(island)

    async def _wake(self, island: int) -> None:
        """Wait for a process that lives; one that knows nothing of the run is made ready for it."""
        keeper, member = self._keeper, self._keeper.members[island]
        woken = await keeper.ask("process_id", [island], limit_s=RESTART.limit_s)
        process_id = woken.good.get(island)
        if process_id is not None and (member.gone or process_id != member.process_id):
            member.gone = True
            args = (self._plan.seed, self._plan.folder, None)
            woken = await keeper.ask_each("reset", {island: args}, limit_s=RESTART.limit_s)
            if island in woken.good:
                self._optimizer[island] = await self._load_optimizer(island)
        if island in woken.good:
            member.process_id = process_id
            self._awake.add(island)
        else:
            keeper.drop(woken.bad, gone=woken.broken)
            self._waking.pop(island, None)  # once more at the next tick

    async def _load_optimizer(self, island: int) -> str:
        """Its AdamW state as of the last checkpoint: nearer than none at all."""
        last, own = self._last_checkpoint, f"island-{island}.safetensors"
        if last is None or own not in {file.name for file in last.files}:
            return "fresh"
        folder = str(Path(self._plan.folder) / last.folder)
        args = {island: (folder, last.files, own)}
        loaded = await self._keeper.ask_each("load_optimizer", args, limit_s=CHECKPOINT.limit_s)
        return "checkpoint" if island in loaded.good else "fresh"

    async def _adopt(self, island: int) -> None:
        keeper, elastic = self._keeper, self._islands.elastic
        assert elastic is not None
        teller = keeper.standing
        if teller is None:  # all that are here came back themselves: after the next merge
            return
        keep = elastic.late == "rebase" and not keeper.members[island].gone
        # The state goes from island to island; neither this process nor the driver holds it.
        state = keeper.members[teller].handle.global_state.remote()
        args = (state, keep, self._steps, self._at_s)
        adopted = await keeper.ask_each("adopt", {island: args}, limit_s=STATE.limit_s)
        if adopted.bad:
            keeper.drop(adopted.bad, gone=adopted.gone)
            return
        keeper.back(island)
        self._said_out.discard(island)
        if self._grace is not None:
            self._grace.forget()
        self._handle(
            IslandJoined(
                event_id=self._coordinator.next_id(),
                at_s=self._at_s,
                island=island,
                rounds_applied=self._rounds_done,
                kept_steps=keep,
                optimizer=self._optimizer.pop(island, "kept"),
            )
        )

    # What stays

    async def _checkpoint(self, tick: int) -> None:
        keeper, began_s = self._keeper, time.monotonic()
        name, islands = checkpoint_folder(self._rounds_done), self._keeper.here
        folder = str(Path(self._plan.folder) / name)
        lead = keeper.standing
        if lead is None:  # nobody could write what is global
            return
        args = {i: (folder, self._rounds_done - 1, i == lead) for i in islands}
        saved = await keeper.ask_each(
            "save",
            args,
            limit_s=CHECKPOINT.limit_s,
            grace_s=None if self._grace is None else lambda: CHECKPOINT_GRACE.limit_s,
        )
        why = _told(saved.bad) if saved.bad else None
        if self._end is not None:  # the log up to here ends a run: nothing could go on from it
            why = why or f"the run was ended meanwhile: {self._end.why}"
        event_id = self._coordinator.next_id()
        self._rows[event_id] = [row for i in sorted(saved.good) for row in saved.good[i].rows]
        if why is not None:
            self._handle(
                CheckpointFailed(
                    event_id=event_id, at_s=self._at_s, round=self._rounds_done, why=why
                )
            )
            self._drop_or_end(Answers(gone=saved.gone, late=saved.late))
            return
        self._last_checkpoint = Checkpointed(
            event_id=event_id,
            at_s=self._at_s,
            tick=tick,
            round=self._rounds_done,
            folder=name,
            islands=islands,
            files=tuple(file for i in sorted(saved.good) for file in saved.good[i].files),
            took_s=time.monotonic() - began_s,
        )
        self._handle(self._last_checkpoint)

    async def _close(self) -> tuple[str, str | None]:
        """One merge more (of each fragment), so that no step is left out of what is validated."""
        for number in range(0 if self._plan.data_parallel else self._merge.fragments):
            outcome = await self._rounds.merge(
                self._coordinator.merges_started + number,
                ready_args=(),
                commit_args=(self._at_s,),
            )
            self._say_dropped(outcome.dropped)
            lost = self._islands.elastic is None and outcome.dropped
            if lost or not outcome.merged:
                why = f"the closing merge failed: {outcome.why or _told(outcome.dropped)}"
                self.fault("island_lost", why)
                return "invalid", why
            self._tokens += sum(ready.tokens for ready in outcome.ready.values())
        if not await self._validate(closing=True):
            return "invalid", "the last island was lost before the closing validation"
        return "complete", None

    async def _validate(self, *, closing: bool) -> bool:
        """Loss by an island that can tell it; False when none is left that could."""
        local, keeper = self._plan.data_parallel, self._keeper
        while (lead := keeper.standing) is not None:
            told = await keeper.ask("validation_loss", [lead], local, limit_s=VALIDATION.limit_s)
            done = await keeper.ask("progress", [lead], self._at_s, limit_s=ANSWER.limit_s)
            if told.bad or done.bad:
                self._drop_or_end(told if told.bad else done)
                if self._islands.elastic is None:
                    return False
                continue
            loss = told.good[lead]
            if loss is not None:  # else no text is held out
                # Who never merges has trained all its tokens since its last merge.
                tokens = done.good[lead].tokens_since_merge if local else self._tokens
                self._handle(
                    Validated(
                        event_id=self._coordinator.next_id(),
                        at_s=self._at_s,
                        round=self._rounds_done,
                        loss=loss,
                        tokens=tokens,
                        closing=closing,
                    )
                )
            return True
        return False

    def _handle(self, event: Event) -> list[Command]:
        commands = self._coordinator.handle(event)
        for command in commands:
            if isinstance(command, EndArm) and self._end is None:
                self._end = command
        return commands


def checkpoint_folder(round_: int) -> str:
    """Name of the folder of the checkpoint after so many merges, in the run folder."""
    return f"checkpoint-r{round_:05d}"


_DECIDE_NOTHING = IslandDropped | IslandJoined | Checkpointed | CheckpointFailed | Validated


def _told(why: Mapping[int, str]) -> str:
    return "; ".join(f"island {i}: {reason}" for i, reason in sorted(why.items()))


def merge_parts(outcome: Outcome, *, at_s: float) -> tuple[MergePart, ...]:
    """What the members did; on the step clock a merge takes no time of the run."""
    assert outcome.norm is not None
    parts = []
    for island in outcome.members:
        ready, reduced = outcome.ready[island], outcome.reduced[island]
        parts.append(
            MergePart(
                island=island,
                round=outcome.round,
                wait_s=ready.wait_s,
                codec_s=reduced.codec_s,
                all_reduce_s=reduced.all_reduce_s,
                outer_step_s=reduced.outer_step_s,
                checkpoint_s=0.0,
                real_s=reduced.codec_s + reduced.all_reduce_s + reduced.outer_step_s,
                emulated_s=0.0,
                fill_cpu_s=0.0,
                ended_at_s=at_s,
                weight=outcome.weights[island],
                tokens=ready.tokens,
                bytes_reduced=reduced.bytes_reduced,
                pseudo_gradient_norm=outcome.norm,
                parameter_hash=str(outcome.committed.get(island, "")),
                loss=ready.loss,
                codec_error=reduced.codec_error,
                missed_rounds=ready.missed_rounds,
                transport=outcome.transport,
            )
        )
    return tuple(parts)
