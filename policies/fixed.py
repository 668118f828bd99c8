"""The fixed-H baseline: merge whenever H inner steps have passed since the last merge.

It looks at nothing but the time since then.
"""

from policies.observation import Action, Decision, Reason, Sample, Seen


class FixedH:
    """Merges at the first tick that is ``h_ticks`` or more after the end of the last merge."""

    def __init__(self, h_ticks: int) -> None:
        if h_ticks < 0:
            raise ValueError(f"h_ticks={h_ticks} is negative; give a whole number of at least 0")
        self._h_ticks = h_ticks

    def observe(self, sample: Sample) -> None:
        """Nothing to remember."""

    def decide(self, seen: Seen) -> Decision:
        """Merge once the interval has passed."""
        since = seen.tick - seen.last_end_tick
        due = since >= self._h_ticks
        return Decision(
            action=Action.MERGE if due else Action.DEFER,
            reason=Reason.SCHEDULED if due else Reason.NOT_SCHEDULED,
            terms=(("ticks_since_merge", float(since)), ("h_ticks", float(self._h_ticks))),
        )
