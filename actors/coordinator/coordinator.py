"""The plain coordinator: events in, commands out; no Ray, no clock, no I/O.

    Ticked(sample) --> wrapper(policy) --> Decided --MERGE--> StartMerge --> islands
         ^                                                         |
         |            MergeFinished(parts) <-----------------------+
         +-- next tick                Faulted --> EndArm(invalid)

The live shell and the replay drive this same object. Everything that goes in and every event
that follows from it is kept in the log, in order; the log alone gives the decisions again.
"""

from typing import assert_never

from actors.coordinator.told import told_samples
from actors.events import (
    ArmFinished,
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
    IslandFinished,
    IslandJoined,
    MergeFailed,
    MergeFinished,
    MergeStarted,
    SidecarRefreshed,
    StartMerge,
    Ticked,
    Validated,
)
from policies.observation import Action, Decision, Reason, Sample
from policies.wrapper import CorridorWrapper

Told = IslandDropped | IslandJoined | Checkpointed | CheckpointFailed | Validated | SidecarRefreshed


class Coordinator:
    """One arm of one seed. ``wrapper`` is None for no_sync."""

    def __init__(
        self,
        wrapper: CorridorWrapper | None,
        *,
        tick_s: float,
        width_ticks: int,
        horizon_ticks: int,
        suppressed: bool = False,
    ) -> None:
        self._wrapper = wrapper
        self._tick_s = tick_s
        self._width_ticks = width_ticks
        self._horizon_ticks = horizon_ticks
        self._suppressed = suppressed
        self._islands: tuple[int, ...] = ()
        self._next_id = 0
        self._merges_done = 0  # started, suppressed ones too
        self._last_end_tick = 0
        self._open: MergeStarted | None = None
        self._ended = False
        self._log: list[Event] = []

    def next_id(self) -> int:
        """A fresh event id, for the shell's own events too."""
        self._next_id += 1
        return self._next_id

    @property
    def merges_started(self) -> int:
        """Suppressed ones too."""
        return self._merges_done

    def count_from(self, event_id: int) -> None:
        """The next id follows this one: a log is folded in again under its own ids."""
        self._next_id = event_id

    def drain_log(self) -> list[Event]:
        """Events since the last call, in order."""
        log, self._log = self._log, []
        return log

    def handle(self, event: Event) -> list[Command]:
        """Fold one event in; ValueError on one that cannot come now."""
        late = Faulted | IslandFinished | ArmFinished | MergeFinished | MergeFailed | Told
        if self._ended and not isinstance(event, late):
            return []
        self._log.append(event)
        match event:
            case ArmStarted():
                self._islands = event.islands
                return []
            case HistoryTold():
                return self._recall(event)
            case Ticked():
                return self._on_tick(event)
            case MergeFinished():
                return self._on_merge_end(event.round, "finished")
            case Faulted():
                status = "partial" if event.kind == "interrupted" else "invalid"
                return self._end(event.event_id, status=status, why=event.what)
            case MergeFailed():
                return self._on_merge_end(event.round, "failed")
            case IslandFinished() | IslandDropped() | IslandJoined():
                return []
            case Checkpointed() | CheckpointFailed() | Validated() | SidecarRefreshed():
                return []
            case ArmFinished():
                self._ended = True
                return []
            case Decided() | MergeStarted():
                raise ValueError(f"{type(event).__name__} is the coordinator's own to say")
            case _:
                assert_never(event)

    def _recall(self, event: HistoryTold) -> list[Command]:
        if self._wrapper is not None:
            for sample in told_samples(event, tick_s=self._tick_s):
                self._wrapper.recall(sample)
        return []

    def _on_tick(self, event: Ticked) -> list[Command]:
        sample = event.sample
        if sample.tick >= self._horizon_ticks:
            return self._end(event.event_id, status="complete", why=None)
        decision, earliest, latest = self._decide(sample)
        decided = Decided(
            event_id=self.next_id(),
            cause_id=event.event_id,
            tick=sample.tick,
            earliest_tick=earliest,
            latest_tick=latest,
            decision=decision,
        )
        self._log.append(decided)
        if decision.action is Action.DEFER:
            return []
        return [self._start(decided)]

    def _decide(self, sample: Sample) -> tuple[Decision, int | None, int | None]:
        if self._wrapper is None:
            return Decision(action=Action.DEFER, reason=Reason.NO_SYNC), None, None
        self._wrapper.observe(sample)
        return self._wrapper.decide(
            sample,
            merges_done=self._merges_done,
            last_end_tick=self._last_end_tick,
            in_window=self._open is not None or sample.tick < self._last_end_tick,
        )

    def _start(self, decided: Decided) -> StartMerge:
        tick = decided.tick
        start_s = tick * self._tick_s
        end_s = (tick + self._width_ticks) * self._tick_s
        started = MergeStarted(
            event_id=self.next_id(),
            cause_id=decided.event_id,
            round=self._merges_done,
            tick=tick,
            at_s=start_s,
            planned_start_s=start_s,
            planned_end_s=end_s,
            suppressed=self._suppressed,
            islands=self._islands,
        )
        self._log.append(started)
        self._merges_done += 1
        self._last_end_tick = tick + self._width_ticks
        if not self._suppressed:
            self._open = started
        return StartMerge(
            cause_id=started.event_id,
            round=started.round,
            tick=tick,
            start_s=start_s,
            end_s=end_s,
            islands=self._islands,
            suppressed=self._suppressed,
        )

    def _on_merge_end(self, round_: int, how: str) -> list[Command]:
        if self._open is None or round_ != self._open.round:
            raise ValueError(
                f"merge of round {round_} {how}, but open is "
                f"{'none' if self._open is None else self._open.round}"
            )
        self._open = None
        return []

    def _end(self, cause_id: int, *, status: str, why: str | None) -> list[Command]:
        if self._ended:
            return []
        self._ended = True
        return [EndArm(cause_id=cause_id, status=status, why=why)]
