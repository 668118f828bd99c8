"""Controls, never deployable: a schedule drawn beforehand.

matched_random, placebo and oracle run it; no_sync has no policy, so nothing stands here for it.
"""

from itertools import pairwise

from policies.observation import Action, Decision, Reason, Sample, Seen


class ScheduledPolicy:
    """Starts merge i at the i-th tick of a given schedule, or at once where that has passed."""

    def __init__(self, starts: tuple[int, ...]) -> None:
        if any(a >= b for a, b in pairwise(starts)):
            raise ValueError(f"starts={starts} do not rise; give each start tick once, in order")
        self._starts = starts

    def observe(self, sample: Sample) -> None:
        """Nothing to remember."""

    def decide(self, seen: Seen) -> Decision:
        """Merge when the next scheduled tick has come."""
        if seen.merges_done >= len(self._starts):
            return Decision(
                action=Action.DEFER, reason=Reason.NOT_SCHEDULED, terms=(("next_start_tick", None),)
            )
        start = self._starts[seen.merges_done]
        due = seen.tick >= start
        return Decision(
            action=Action.MERGE if due else Action.DEFER,
            reason=Reason.SCHEDULED if due else Reason.NOT_SCHEDULED,
            terms=(("next_start_tick", float(start)),),
        )
