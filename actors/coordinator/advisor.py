"""The plain advisor: trainers of others report, the same coordinator decides; no Ray, no I/O.

    Report(learner, step) --> the first that comes to a tick's step --> Sample --> Coordinator
          <-- MergeDecision <-- the same for all that come to that step <-- StartMerge or nothing

Control time is counted in steps. A tick is ``tick_steps`` inner steps after the last merge: tick
k of a round is step ``last merge + k * tick_steps``, and a merge stands for the W ticks of its
planned window however long it takes. So the corridor and the budget that the coordinator keeps in
ticks are kept in steps, exactly, whatever the trainers' pace; ``tick_s`` is what a tick takes at
that pace, for the policies that reckon in seconds. The run clock of a sample is real.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from actors.coordinator.advice import AdviceRefused, Merged, MergeDecision, Report, Standing
from actors.coordinator.advised import AdvisedLearner, AdvisedMerge, last_merge_step
from actors.coordinator.coordinator import Coordinator
from actors.coordinator.sampling import SampleBuilder
from actors.events import (
    ArmStarted,
    Command,
    Decided,
    EndArm,
    Event,
    MergeFinished,
    StartMerge,
    Ticked,
)
from policies.observation import Sample

MOST_ALONE = 10_000  # merges of a learner between two of its reports; more is a mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What is known now of the team's server; SampleBuilder says what it reads of the two."""

    load: Any  # ServerCounts or LoadSnapshot; None where unknown
    telemetry: Any  # TelemetrySnapshot; None where unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisorSetting:
    """What an advisor is told beforehand; corridor and policy are the coordinator's."""

    name: str
    policy: str  # its kind, to be said
    learners: int  # expected; others may join
    start_step: int  # of the last merge before the advice begins
    floor_steps: int
    ceiling_steps: int
    tick_steps: int
    tick_s: float
    width_ticks: int
    window_s: float  # a merge that takes longer overran
    notice_steps: int  # a merge is decided so many steps ahead
    silence_s: float
    least_step: int = 0  # a report below it is a mistake


class Advisor:
    """Answers learners; ``read`` gives the readings of a tick, ``now_s`` the run clock."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        setting: AdvisorSetting,
        builder: SampleBuilder,
        read: Callable[[], Readings],
        now_s: Callable[[], float],
    ) -> None:
        self._coordinator = coordinator
        self._setting = setting
        self._builder = builder
        self._read = read
        self._now_s = now_s
        self._learners: dict[int, AdvisedLearner] = {}
        self._dropped: dict[int, AdvisedLearner] = {}  # silent, as they were last heard
        self._trainers: dict[int, str] = {}  # that reported last as this learner, where known
        self._replaced: set[tuple[int, str]] = set()  # those before it
        self._merges: list[AdvisedMerge] = []
        self._open: AdvisedMerge | None = None  # the last one, while somebody has still to make it
        self._base_step = setting.start_step  # ticks of this round are counted from here
        self._late_step = setting.start_step  # the furthest step of that merge: for the floor
        self._base_tick = 0
        self._decided = -1  # the last tick of this round that is decided; tick 0 is its begin
        self._reason = "no_tick_yet"
        self._blind: bool | None = None
        self._ended = False
        self._events: list[Event] = []
        self._notes: list[dict[str, Any]] = []
        coordinator.handle(
            ArmStarted(
                event_id=coordinator.next_id(),
                at_s=now_s(),
                arm=setting.name,
                seed=0,
                islands=tuple(range(setting.learners)),
            )
        )

    def ask(self, report: Report) -> MergeDecision:
        """The decision for a learner at its step; AdviceRefused for one that cannot be placed."""
        now_s = self._now_s()
        self._drop_silent(now_s, but=report.learner)
        learner = self._hear(report, now_s=now_s)
        if learner.done == len(self._merges):
            self._advance(learner.step, now_s=now_s)
        return self._answer(learner, now_s=now_s)

    def merged(self, done: Merged) -> None:
        """A learner has merged. Of one that is not known its next report will tell."""
        now_s = self._now_s()
        learner = self._learners.get(done.learner) or self._back(
            done.learner, step=done.step, merges=done.merges, now_s=now_s
        )
        if learner is None or not 0 < done.merges - learner.merges <= MOST_ALONE:
            return
        learner.heard_at_s = now_s
        learner.step = max(learner.step, done.step)
        learner.tokens = learner.tokens if done.tokens is None else done.tokens
        self._count_merge(
            learner, merges=done.merges, step=done.step, seconds=done.seconds, now_s=now_s
        )

    def poll(self) -> None:
        """To be called each ``tick_s`` where something can: one look at the server in a window."""
        now_s = self._now_s()
        self._drop_silent(now_s, but=None)
        merge = self._open
        if merge is None or merge.begun_at_s is None or self._decided >= 0:
            return  # no merge, or somebody has gone on from it and the next round's ticks count
        inside = int((now_s - merge.begun_at_s) / self._setting.tick_s)
        if merge.last_window_tick < inside < self._setting.width_ticks:
            merge.last_window_tick = inside
            self._observe(merge.tick + inside, now_s=now_s)

    def drain_events(self) -> list[Event]:
        """Events since the last call, in order: they alone give the decisions again."""
        events, self._events = [*self._events, *self._coordinator.drain_log()], []
        return events

    def drain_notes(self) -> list[dict[str, Any]]:
        """Who joined, merged, was dropped, since the last call; decides nothing."""
        notes, self._notes = self._notes, []
        return notes

    def standing(self) -> Standing:
        """What a learner or its user may want to know."""
        setting = self._setting
        return Standing(
            policy=setting.policy,
            floor_steps=setting.floor_steps,
            ceiling_steps=setting.ceiling_steps,
            tick_steps=setting.tick_steps,
            notice_steps=setting.notice_steps,
            step=max((learner.step for learner in self._learners.values()), default=None),
            last_merge_step=self._merges[-1].step if self._merges else None,
            merges=len(self._merges),
            learners=tuple(sorted(self._learners)),
            blind=self._blind,
        )

    def _hear(self, report: Report, *, now_s: float) -> AdvisedLearner:
        if (report.learner, report.trainer_id) in self._replaced:
            raise AdviceRefused(
                f"learner {report.learner} is another trainer by now: two report under this "
                "number; give each its own, and end one that was started again elsewhere"
            )
        learner = self._learners.get(report.learner) or self._back(
            report.learner, step=report.step, merges=report.merges, now_s=now_s
        )
        if (
            learner is None
            or report.step < learner.step  # it was started again
            or report.merges < learner.merges
        ):
            learner = self._join(report, now_s=now_s)
        elif report.merges > learner.merges:
            if report.merges - learner.merges > MOST_ALONE:
                raise AdviceRefused(
                    f"learner {report.learner} reports {report.merges} merges, but had done "
                    f"{learner.merges} when it was last heard; count them from its first report on"
                )
            step = last_merge_step(report, otherwise=learner.step)
            self._count_merge(learner, merges=report.merges, step=step, seconds=None, now_s=now_s)
        learner.step, learner.tokens = report.step, report.tokens
        learner.heard_at_s = now_s
        learner.fold_loss(report.loss)
        self._know(report)
        return learner

    def _know(self, report: Report) -> None:
        """The trainer speaks for its learner from now on, and one before it no longer."""
        known = self._trainers.get(report.learner)
        if not report.trainer_id or report.trainer_id == known:
            return
        if known is not None:
            self._replaced.add((report.learner, known))
        self._trainers[report.learner] = report.trainer_id

    def _join(self, report: Report, *, now_s: float) -> AdvisedLearner:
        """Place a learner by its step; tokens and losses count from here."""
        closed = max((m.step for m in self._merges if m.finished), default=self._setting.least_step)
        if report.step < closed:
            raise AdviceRefused(
                f"learner {report.learner} reports step {report.step}, but the others have merged "
                f"at step {closed}: load that merge's state and count inner steps on from there, "
                f"so that the first report is step {closed + 1}"
            )
        joined = sum(
            m.step < report.step or (m.finished and m.step == report.step) for m in self._merges
        )
        before = self._merges[joined - 1].step if joined else self._setting.start_step
        merged_step = last_merge_step(report, otherwise=before)
        if joined == len(self._merges):
            self._late_step = max(self._late_step, merged_step)
        learner = AdvisedLearner(
            learner=report.learner,
            joined=joined - report.merges,
            merges=report.merges,
            step=report.step,
            tokens=report.tokens,
            tokens_at_merge=report.tokens,
            merged_step=merged_step,
            merged_at_s=now_s,
            heard_at_s=now_s,
        )
        self._dropped.pop(report.learner, None)
        self._learners[report.learner] = learner
        self._note("joined", learner=report.learner, step=report.step, at_s=now_s)
        return learner

    def _back(self, number: int, *, step: int, merges: int, now_s: float) -> AdvisedLearner | None:
        """A dropped learner that goes on where it was last heard; None for one started again.

        The merges that it has made meanwhile are still to be counted; those that the others
        finished without it are behind it, and before the last of these it cannot stand.
        """
        learner = self._dropped.get(number)
        if learner is None or step < learner.step or merges < learner.merges:
            return None
        later = self._merges[learner.joined + merges :]
        missed = list(takewhile(lambda merge: merge.finished, later))
        if missed and step < missed[-1].step:
            return None
        learner.joined += len(missed)
        self._learners[number] = self._dropped.pop(number)
        self._note("joined", learner=number, step=step, at_s=now_s)
        return learner

    def _drop_silent(self, now_s: float, *, but: int | None) -> None:
        """A learner need not ask within a tick, so its silence counts from there."""
        limit_s = self._setting.silence_s + self._setting.tick_s
        silent = [
            number
            for number, learner in self._learners.items()
            if number != but and now_s - learner.heard_at_s > limit_s
        ]
        for number in silent:
            learner = self._dropped[number] = self._learners.pop(number)
            self._note("dropped", learner=number, step=learner.step, at_s=now_s)
        if silent:
            self._settle(now_s=now_s)

    def _count_merge(
        self,
        learner: AdvisedLearner,
        *,
        merges: int,
        step: int,
        seconds: float | None,
        now_s: float,
    ) -> None:
        learner.merges = merges
        learner.merged_step, learner.merged_at_s = step, now_s
        learner.tokens_at_merge = learner.tokens
        learner.first_loss = learner.last_loss = None
        learner.losses = 0
        while len(self._merges) < learner.done:
            # Made alone, while this advisor could not be reached. The ticks of the round that are
            # decided stay so, and the next is as many steps after this merge as after a planned
            # one: so the corridor holds from here, at the price of a round decided later.
            place = len(self._merges)
            self._merges.append(AdvisedMerge(place=place, step=step, reason="made_alone"))
            self._base_step = max(self._base_step, step)
            self._note("merged_alone", learner=learner.learner, step=step, at_s=now_s)
        if learner.done == len(self._merges):
            self._late_step = max(self._late_step, step)
        if learner.done:
            self._merges[learner.done - 1].seconds[learner.learner] = seconds
        self._note("merged", learner=learner.learner, step=step, at_s=now_s, seconds=seconds)
        self._settle(now_s=now_s)

    def _settle(self, *, now_s: float) -> None:
        """The open merge is finished when every live learner has made it."""
        merge = self._open
        if merge is None or not self._learners:
            return
        if all(learner.done > merge.place for learner in self._learners.values()):
            self._finish(merge, now_s=now_s)

    def _finish(self, merge: AdvisedMerge, *, now_s: float) -> None:
        assert merge.round is not None
        took_s = [s for s in merge.seconds.values() if s is not None]
        merge.finished, self._open = True, None
        self._coordinator.handle(
            MergeFinished(
                event_id=self._coordinator.next_id(),
                cause_id=merge.cause_id,
                round=merge.round,
                at_s=now_s,
                overran=bool(took_s) and max(took_s) > self._setting.window_s,
                parts=(),  # of its parts nothing is known; the notes hold each learner's seconds
            )
        )

    def _advance(self, step: int, *, now_s: float) -> None:
        """Decide the tick that ``step`` has come to, if no one has come to it before."""
        setting = self._setting
        tick = (step + setting.notice_steps - self._base_step) // setting.tick_steps
        if self._ended or tick <= self._decided:
            return
        if tick > 0 and self._open is not None:
            self._finish(self._open, now_s=now_s)  # somebody has gone on from it
        self._decided = tick
        for command in self._observe(self._base_tick + tick, now_s=now_s):
            if isinstance(command, EndArm):
                self._ended, self._reason = True, "horizon"
            elif isinstance(command, StartMerge):
                self._plan(command, tick)

    def _observe(self, tick: int, *, now_s: float) -> list[Command]:
        sample = self._sample(tick, now_s=now_s)
        self._blind = sample.blind
        ticked = Ticked(event_id=self._coordinator.next_id(), sample=sample)
        commands = self._coordinator.handle(ticked)
        log = self._coordinator.drain_log()
        self._events += log
        reasons = [str(e.decision.reason) for e in log if isinstance(e, Decided)]
        self._reason = reasons[-1] if reasons else self._reason
        return commands

    def _sample(self, tick: int, *, now_s: float) -> Sample:
        """Progress is that of each live learner's latest report, at most a tick old."""
        readings = self._read()
        return self._builder.build(
            tick,
            now_s=now_s,
            load=readings.load,
            telemetry=readings.telemetry,
            islands=[self._learners[n].progress(now_s=now_s) for n in sorted(self._learners)],
        )

    def _plan(self, command: StartMerge, tick: int) -> None:
        """The merge is at this tick's step.

        Later only if somebody asked too late and is past, or has made the last merge later than
        it was planned and would not have its floor: so learners that differ in steps after a
        silence are level again.
        """
        setting, place = self._setting, len(self._merges)
        furthest = max(m.step for m in self._learners.values() if m.done == place)
        step = max(
            self._base_step + tick * setting.tick_steps,
            furthest,
            self._late_step + setting.floor_steps,
        )
        self._open = AdvisedMerge(
            place=place,
            step=step,
            reason=self._reason,
            round=command.round,
            tick=command.tick,
            cause_id=command.cause_id,
            finished=False,
        )
        self._merges.append(self._open)
        self._base_step = self._late_step = step
        self._decided = -1
        self._base_tick = command.tick + self._setting.width_ticks

    def _answer(self, learner: AdvisedLearner, *, now_s: float) -> MergeDecision:
        setting, step = self._setting, learner.step
        if learner.done < len(self._merges):
            merge = self._merges[learner.done]
            now = step >= merge.step
            if now and merge.begun_at_s is None:
                merge.begun_at_s = now_s
            return MergeDecision(
                merge=now,
                reason=merge.reason,
                merge_at_step=merge.step,
                ask_at_step=merge.step,
                round=learner.done,
            )
        next_step = self._base_step + (self._decided + 1) * setting.tick_steps
        next_step -= setting.notice_steps
        return MergeDecision(
            merge=False,
            reason=self._reason,
            merge_at_step=None,
            ask_at_step=step + setting.tick_steps if self._ended else max(step + 1, next_step),
            round=learner.done,
        )

    def _note(
        self, kind: str, *, learner: int, step: int, at_s: float, seconds: float | None = None
    ) -> None:
        self._notes.append(
            {"kind": kind, "learner": learner, "step": step, "at_s": at_s, "seconds": seconds}
        )
