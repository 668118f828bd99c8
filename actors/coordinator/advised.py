"""What the advisor keeps of a merge and of a learner."""

from dataclasses import dataclass, field

from actors.coordinator.advice import Report
from policies.observation import IslandProgress


def last_merge_step(report: Report, *, otherwise: int) -> int:
    """Where the learner's last merge was, never after its report: it may have gone back since."""
    if not report.merges or report.last_merge_step is None:
        return min(otherwise, report.step)
    return min(report.last_merge_step, report.step)


@dataclass(slots=True)
class AdvisedMerge:
    """A merge that is decided, or one that learners made alone (``round`` is None then)."""

    place: int  # in the list of merges
    step: int
    reason: str
    round: int | None = None
    tick: int = 0
    cause_id: int = 0
    finished: bool = True
    begun_at_s: float | None = None  # when the first learner was told to merge now
    last_window_tick: int = 0
    seconds: dict[int, float | None] = field(default_factory=dict)


@dataclass(slots=True)
class AdvisedLearner:
    """What one live learner has reported. ``joined``: merges of the others before its own count."""

    learner: int
    joined: int
    merges: int
    step: int
    tokens: int
    tokens_at_merge: int
    merged_step: int
    merged_at_s: float
    heard_at_s: float
    first_loss: float | None = None
    last_loss: float | None = None
    losses: int = 0

    @property
    def done(self) -> int:
        """Its place in the list of merges: the next one it has to make."""
        return self.joined + self.merges

    def fold_loss(self, loss: float | None) -> None:
        if loss is None:
            return
        self.first_loss = loss if self.first_loss is None else self.first_loss
        self.last_loss = loss
        self.losses += 1

    def progress(self, *, now_s: float) -> IslandProgress:
        drop = None
        if self.losses >= 2 and self.first_loss is not None and self.last_loss is not None:
            drop = self.first_loss - self.last_loss
        return IslandProgress(
            island=self.learner,
            steps_since_merge=max(0, self.step - self.merged_step),
            tokens_since_merge=max(0, self.tokens - self.tokens_at_merge),
            loss_drop=drop,
            staleness_s=max(0.0, now_s - self.merged_at_s),
        )
