"""The one place that applies corridor, budget, guard rails and blind mode, around any policy.

Whatever the policy answers, the schedule lies in the corridor and has exactly the budget. Without
a budget (free cadence) the corridor alone binds, and how often to merge is the policy's choice.
"""

from policies.corridor import Corridor
from policies.guards import Guards
from policies.observation import Action, Decision, Policy, Reason, Sample, Seen


class CorridorWrapper:
    """Asks the policy only where the corridor and the budget leave a choice."""

    def __init__(
        self,
        corridor: Corridor,
        *,
        budget: int | None,
        policy: Policy,
        tick_s: float,
        target_gap_ticks: int,
        needs_probes: bool,
        guards: Guards | None = None,
    ) -> None:
        if budget is not None:
            corridor.require(budget)
        self._corridor = corridor
        self._last_tick = corridor.horizon_ticks - corridor.width_ticks  # a merge ends by T
        self._budget = budget
        self._policy = policy
        self._tick_s = tick_s
        self._target_gap_ticks = target_gap_ticks
        self._needs_probes = needs_probes
        self._guards = guards

    def observe(self, sample: Sample) -> None:
        """Fold one tick's measurements into the policy, at every tick, windows included."""
        if self._guards is not None:
            self._guards.observe(sample)
        self._policy.observe(sample)

    def recall(self, sample: Sample) -> None:
        """One tick of traffic before the run; the guard rails count from the run's start."""
        self._policy.observe(sample)

    def decide(
        self, sample: Sample, *, merges_done: int, last_end_tick: int, in_window: bool
    ) -> tuple[Decision, int | None, int | None]:
        """Decision for ``sample.tick``, and the earliest and latest start of the next merge."""
        if self._guards is not None:
            self._guards.settle(last_end_tick=last_end_tick)
        if in_window:
            return _defer(Reason.IN_WINDOW), None, None
        bounds = self._bounds(merges_done=merges_done, last_end_tick=last_end_tick)
        if bounds is None or sample.tick > self._last_tick:
            return _defer(Reason.HORIZON), None, None
        earliest, latest = bounds
        decision = self._inside(sample, earliest, latest, merges_done, last_end_tick)
        return decision, earliest, latest

    def _bounds(self, *, merges_done: int, last_end_tick: int) -> tuple[int, int] | None:
        """Range of the next start; None when no further merge may start."""
        if self._budget is None:
            # The ceiling may lie beyond the last start: then the horizon forces nothing.
            floor, ceiling = self._corridor.floor_ticks, self._corridor.ceiling_ticks
            return last_end_tick + floor, last_end_tick + ceiling
        if merges_done >= self._budget:
            return None
        exact = self._corridor.next_range(
            merges_done=merges_done, last_end_tick=last_end_tick, budget=self._budget
        )
        if exact is not None:
            return exact
        # Only after a merge that overran its window or started late: the budget is out of reach
        # and the run no longer judged, but training goes on inside the plain corridor.
        earliest = last_end_tick + self._corridor.floor_ticks
        latest = min(last_end_tick + self._corridor.ceiling_ticks, self._last_tick)
        return (earliest, latest) if earliest <= latest else None

    def _inside(
        self, sample: Sample, earliest: int, latest: int, merges_done: int, last_end_tick: int
    ) -> Decision:
        since = sample.tick - last_end_tick
        if sample.tick < earliest:
            below = since < self._corridor.floor_ticks
            return _defer(Reason.BELOW_FLOOR if below else Reason.BUDGET)
        if self._guards is not None:
            starved = self._guards.starved(sample, last_end_tick=last_end_tick)
            if starved is not None:
                return starved
        if sample.tick >= latest:
            at_ceiling = since >= self._corridor.ceiling_ticks
            return Decision(
                action=Action.MERGE, reason=Reason.AT_CEILING if at_ceiling else Reason.BUDGET
            )
        if sample.blind and self._needs_probes:
            return _defer(Reason.BLIND)
        decision = self._policy.decide(
            Seen(
                tick=sample.tick,
                now_s=sample.now_s,
                tick_s=self._tick_s,
                last_end_tick=last_end_tick,
                earliest_tick=earliest,
                latest_tick=latest,
                merges_done=merges_done,
                budget=self._budget or 0,
                width_ticks=self._corridor.width_ticks,
                target_gap_ticks=self._target_gap_ticks,
                blind=sample.blind,
            )
        )
        return decision if self._guards is None else self._guards.checked(decision)


def _defer(reason: Reason) -> Decision:
    return Decision(action=Action.DEFER, reason=reason)
