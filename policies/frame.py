"""What a forecasting policy is told before the run, and what it does until it has seen enough.

Too little data: the target cadence. An unknown measurement after that: defer and say so.
"""

import math
from dataclasses import dataclass

from policies.corridor import Corridor
from policies.observation import Action, Decision, Reason, Seen

Terms = tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Corridor, cadence and tick of the run that the policy is built for."""

    corridor: Corridor
    target_gap_ticks: int
    tick_s: float

    def ticks(self, duration_s: float) -> int:
        """Nearest whole number of ticks, at least one: for memories, not for the corridor."""
        return max(1, round(duration_s / self.tick_s))

    def paced_gap(self, seen: Seen) -> float:
        """The gap at which the merges that are left, evenly spread, end at the horizon.

        A fixed budget makes every gap short of the target a longer one later: aiming at what is
        left returns it step by step, not all at once at the end. Without a budget: the target.
        """
        left = seen.budget - seen.merges_done
        if left <= 0:
            return float(max(1, seen.target_gap_ticks))
        time_left = self.corridor.horizon_ticks - seen.last_end_tick
        even = time_left / left - self.corridor.width_ticks
        return min(max(even, self.corridor.floor_ticks, 1.0), float(self.corridor.ceiling_ticks))


def too_little_data(seen: Seen, *, known: int, needed: int) -> Decision:
    """Target cadence, as fixed_h keeps it, with the number of known ticks as the reason."""
    due = seen.tick - seen.last_end_tick >= seen.target_gap_ticks
    return Decision(
        action=Action.MERGE if due else Action.DEFER,
        reason=Reason.TOO_LITTLE_DATA,
        terms=(("known_ticks", float(known)), ("needed_ticks", float(needed))),
    )


def unknown(terms: Terms) -> Decision:
    """Defer: a measurement that the forecast starts from is missing at this tick."""
    return Decision(action=Action.DEFER, reason=Reason.UNKNOWN, terms=terms)


def forecast(*, now: float, later: float, terms: Terms) -> Decision:
    """Merge when no later start is expected to cost less; the score is what waiting costs.

    Where no later start is left ``later`` is infinite: then both are unknown, for a record holds
    numbers only.
    """
    best = now <= later
    shown = (("cost_now", now), ("cost_later", later), *terms)
    return Decision(
        action=Action.MERGE if best else Action.DEFER,
        reason=Reason.FORECAST_BEST if best else Reason.FORECAST_LATER,
        score=_finite(later - now),
        terms=tuple((name, _finite(value)) for name, value in shown),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
