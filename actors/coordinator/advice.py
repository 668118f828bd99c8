"""What a trainer of one's own says and hears: reports, decisions, and the learner's side of both.

Standard library alone, so that a trainer needs nothing else of this package installed.

The agreement, without a barrier: every answer says up to which step a learner may train before it
asks again, the same step for all, and the advisor decides about that step when the first learner
has come to it. So no learner has passed a step that a merge is decided for, and all that come to
it later hear the same.
"""

import logging
import math
import uuid
from dataclasses import dataclass, replace
from operator import index
from typing import Protocol

ADVISOR_SILENT = "advisor_silent"  # the reason of a decision that a learner had to take alone
NOT_ASKED = "not_asked"
_log = logging.getLogger(__name__)


class AdvisorSilent(RuntimeError):
    """No answer in time, or none that can be read; takes one message."""


class AdviceRefused(ValueError):
    """The advisor cannot place what a learner reports; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a learner has done so far."""

    tokens: int  # trained by this learner, in total
    loss: float | None = None  # of the latest step; None where unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One question: may ``learner`` merge at ``step``?"""

    learner: int
    step: int  # inner steps done, counted on one axis by all learners
    tokens: int
    loss: float | None = None
    merges: int = 0  # that this learner has done since its first report, advised or alone
    last_merge_step: int | None = None  # of the last of these
    trainer_id: str = ""  # of the process that reports, new with every start; "" is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A learner's merge is done."""

    learner: int
    step: int
    merges: int  # this one counted
    seconds: float | None = None  # that it took on this learner
    tokens: int | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeDecision:
    """True when the learner is to merge now, at the step that it has just reported."""

    merge: bool
    reason: str  # of the policy or the corridor; ADVISOR_SILENT for a learner's own decision
    merge_at_step: int | None  # the next merge, where it is known beforehand
    ask_at_step: int  # no decision can concern an earlier step
    round: int  # merges done so far: the number of this one
    advised: bool = True  # False: the learner's own fixed H, for the advisor gave no answer
    detail: str | None = None

    def __bool__(self) -> bool:
        return self.merge


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What an advisor says of itself."""

    policy: str
    floor_steps: int
    ceiling_steps: int
    tick_steps: int
    notice_steps: int
    step: int | None  # the furthest that any learner has reported; None before the first
    last_merge_step: int | None
    merges: int
    learners: tuple[int, ...]  # live, reporting ones
    blind: bool | None  # of the last tick: nothing is known of the server; None before it
    problem: str | None = None


class Transport(Protocol):
    """The way to an advisor: AdvisorSilent where it gives no answer, AdviceRefused where it won't.

    An advisor in the same process is one itself.
    """

    def ask(self, report: Report) -> MergeDecision: ...

    def merged(self, done: Merged) -> None: ...

    def standing(self) -> Standing: ...


def known(value: float | None) -> float | None:
    """A number; None for none, and for one that says nothing (nan, infinity)."""
    return None if value is None or not math.isfinite(value) else float(value)


def _took_s(seconds: float | None) -> float | None:
    """Of a clock that was set back meanwhile nothing is known."""
    took_s = known(seconds)
    return None if took_s is None or took_s < 0 else took_s


class Learner:
    """One learner's way to ask: `if learner.ready_to_merge(step, progress): ...`.

    To be called after every inner step. Most calls are answered here, in microseconds, for the
    advisor has said before which step it has to be asked at. Where it gives no answer the learner
    goes on, asks again after 1, 2, 4, ... steps, and merges ``own_h_steps`` after its last merge at
    the latest (give all learners the same H): the decision's reason says so. A merge that was
    announced stands, whatever becomes of the advisor. When a silence begins and when it ends is
    logged as a warning.

    ``notice_steps``: how long before a merge of its own the learner has to know of it.
    """

    def __init__(
        self, transport: Transport, *, learner: int, own_h_steps: int, notice_steps: int = 0
    ) -> None:
        for name, value, least in (
            ("learner", learner, 0),
            ("own_h_steps", own_h_steps, 1),
            ("notice_steps", notice_steps, 0),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r} is no whole number of at least {least}")
        self._transport = transport
        self._learner = learner
        self._trainer_id = uuid.uuid4().hex
        self._own_h_steps = own_h_steps
        self._notice_steps = notice_steps
        self._merges = 0
        self._step: int | None = None  # of the last call
        self._merged_step: int | None = None  # where this round began; None before the first call
        self._progress = Progress(tokens=0)
        self._due: int | None = None  # the step of a merge that was said and is not yet counted
        self._retry_steps = 1
        self._silent = False
        self._held = MergeDecision(
            merge=False, reason=NOT_ASKED, merge_at_step=None, ask_at_step=0, round=0
        )

    def ready_to_merge(self, step: int, progress: Progress) -> MergeDecision:
        """Whether to merge now, ``step`` inner steps being done. AdviceRefused: see its text."""
        step = index(step)  # numpy's too, but no float
        if self._step is not None and step < self._step:
            self._go_back(step)
        self._step = step
        if self._due is not None:
            if step <= self._due:
                return self._held  # asked again, before the merge was made
            self._count(self._due, seconds=None)  # it has gone on: so it has merged
        if self._merged_step is None:
            self._merged_step = max(0, step - 1)
        self._progress = progress
        if step < self._held.ask_at_step:
            return self._held
        self._held = decision = self._decide(step)
        if decision.merge:
            self._due = step
        return decision

    def merged(self, step: int, *, seconds: float | None = None) -> None:
        """The merge at ``step`` is done and took ``seconds`` here.

        Not to say it is no fault: the next ``ready_to_merge`` shows it, without the seconds.
        """
        if self._due is None and self._merged_step is not None and step <= self._merged_step:
            return  # counted already
        self._count(index(step), seconds=seconds)

    def standing(self) -> Standing | None:
        """What the advisor says of itself; None where it does not answer."""
        try:
            return self._transport.standing()
        except AdvisorSilent:
            return None

    def _go_back(self, step: int) -> None:
        """The trainer has loaded an older state: no merge is due there, and all is asked anew."""
        self._due, self._retry_steps = None, 1
        if self._merged_step is not None and self._merged_step >= step:
            self._merged_step = max(0, step - 1)
        self._held = MergeDecision(
            merge=False,
            reason=NOT_ASKED,
            merge_at_step=None,
            ask_at_step=step,
            round=self._merges,
        )

    def _decide(self, step: int) -> MergeDecision:
        held, merge_at = self._held, self._held.merge_at_step
        if merge_at is not None and (held.advised or step >= merge_at - self._notice_steps):
            return replace(held, merge=step >= merge_at, ask_at_step=merge_at)
        report = Report(
            learner=self._learner,
            step=step,
            tokens=index(self._progress.tokens),
            loss=known(self._progress.loss),
            merges=self._merges,
            last_merge_step=self._merged_step if self._merges else None,
            trainer_id=self._trainer_id,
        )
        try:
            decision = self._transport.ask(report)
        except AdvisorSilent as error:
            return self._alone(step, why=str(error))
        except AdviceRefused:
            if not self._merges:
                self._merged_step = None  # it has to start elsewhere, and its own H with it
            raise
        self._retry_steps = 1
        if self._silent:
            self._silent = False
            _log.warning("learner %d: the advisor answers again at step %d", self._learner, step)
        return decision

    def _alone(self, step: int, *, why: str) -> MergeDecision:
        """This learner's own fixed H, counted from its last merge."""
        merge_at = self._held.merge_at_step  # of an earlier silence in this round
        if merge_at is None:
            assert self._merged_step is not None
            merge_at = max(self._merged_step + self._own_h_steps, step + self._notice_steps)
        settled_at = merge_at - self._notice_steps  # from there on nothing is asked
        ask_at = merge_at if step >= settled_at else min(step + self._retry_steps, settled_at)
        self._retry_steps = min(2 * self._retry_steps, self._own_h_steps)
        detail = (
            f"{why}; this learner merges at its own H of {self._own_h_steps} steps: at step "
            f"{merge_at}"
        )
        if not self._silent:
            self._silent = True
            _log.warning("learner %d, step %d: %s", self._learner, step, detail)
        return MergeDecision(
            merge=step >= merge_at,
            reason=ADVISOR_SILENT,
            merge_at_step=merge_at,
            ask_at_step=ask_at,
            round=self._merges,
            advised=False,
            detail=detail,
        )

    def _count(self, step: int, *, seconds: float | None) -> None:
        was_advised, self._retry_steps = self._held.advised, 1
        self._merges += 1
        self._merged_step = step
        self._due = None
        self._held = MergeDecision(
            merge=False,
            reason="merged",
            merge_at_step=None,
            ask_at_step=step + 1,
            round=self._merges,
        )
        if not was_advised:
            return  # silent a moment ago: the next report says it all
        try:
            self._transport.merged(
                Merged(
                    learner=self._learner,
                    step=step,
                    merges=self._merges,
                    seconds=_took_s(seconds),
                    tokens=index(self._progress.tokens),
                    loss=known(self._progress.loss),
                )
            )
        except AdvisorSilent:
            pass  # the next report says that this learner has merged
