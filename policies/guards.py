"""Guard rails beside the corridor: no island starves by the clock, no sidecar carries it all.

Pure state machines like the policies; the wrapper applies them around any policy, and neither
leaves corridor or budget: starvation forces inside the range, fairness only defers inside it.
"""

from dataclasses import replace

from policies.config import GuardsConfig
from policies.corridor import Corridor
from policies.ewma import TimedMean
from policies.observation import Action, Decision, Reason, Sample, SidecarLoad
from policies.ticks import ticks_within

Terms = tuple[tuple[str, float | None], ...]


def cut_corridor(
    corridor: Corridor, *, max_gap_s: float, tick_s: float, budget: int | None
) -> Corridor:
    """The corridor whose ceiling is no longer than ``max_gap_s``; every arm of a study has it.

    ValueError for a bound below the floor, or one under which the budget cannot be kept.
    """
    bound = ticks_within(max_gap_s, tick_s=tick_s, what="guards.max_gap_s")
    if bound < max(1, corridor.floor_ticks):
        raise ValueError(
            f"guards.max_gap_s={max_gap_s:g} is below the corridor's floor of "
            f"{corridor.floor_ticks} ticks of {tick_s:g} s; raise it or lower the floor"
        )
    cut = replace(corridor, ceiling_ticks=min(corridor.ceiling_ticks, bound))
    if budget is None:
        return cut
    try:
        cut.require(budget)
    except ValueError as error:
        raise ValueError(f"guards.max_gap_s={max_gap_s:g} cuts the ceiling: {error}") from error
    return cut


class Guards:
    """What the wrapper asks beside the policy. ``fair`` is off for controls: they are schedules."""

    def __init__(
        self, config: GuardsConfig, *, width_ticks: int, tick_s: float, fair: bool = True
    ) -> None:
        self._max_gap_s = config.max_gap_s
        self._tick_s = tick_s
        share = config.max_overlap_share if fair else None
        self._fair = (
            None if share is None else FairShare(share, width_ticks=width_ticks, tick_s=tick_s)
        )

    def observe(self, sample: Sample) -> None:
        """Fold one tick's measurements in."""
        if self._fair is not None:
            self._fair.observe(sample)

    def settle(self, *, last_end_tick: int) -> None:
        """Learn of the last merge's window; at every decision, windows included."""
        if self._fair is not None:
            self._fair.settle(last_end_tick=last_end_tick)

    def starved(self, sample: Sample, *, last_end_tick: int) -> Decision | None:
        """A forced merge once the run clock is ``max_gap_s`` past the last merge's planned end.

        The clock and not the tick number: ticks that came late or not at all do not stretch it.
        """
        since_s = sample.now_s - last_end_tick * self._tick_s
        if self._max_gap_s is None or since_s < self._max_gap_s:
            return None
        terms = (("since_merge_s", since_s), ("max_gap_s", self._max_gap_s))
        return Decision(action=Action.MERGE, reason=Reason.STARVED, terms=terms)

    def checked(self, decision: Decision) -> Decision:
        """The policy's answer; a merge that would be unfair is deferred, its score kept."""
        if self._fair is None or decision.action is Action.DEFER:
            return decision
        objection = self._fair.objection()
        if objection is None:
            return decision
        return replace(
            decision,
            action=Action.DEFER,
            reason=Reason.UNFAIR,
            terms=(*decision.terms, *objection),
        )


class FairShare:
    """Keeps the largest share of merge overlap that any sidecar carries at or below a limit.

    Overlap of a merge: requests in flight at its start and those that arrive in its window. What
    is expected of one now: in flight + W ticks at the rate of late (half-life W / 4, at least a
    tick: a longer one blurs bursts that take turns).
    """

    def __init__(self, max_share: float, *, width_ticks: int, tick_s: float) -> None:
        self._max_share = max_share
        self._width_ticks = width_ticks
        self._window_s = width_ticks * tick_s
        self._half_life_s = max(tick_s, self._window_s / 4)
        self._carried: dict[int, float] = {}
        self._rates: dict[int, TimedMean] = {}
        self._arrived: dict[int, int] = {}  # counted and not yet folded in
        self._folded_at_s: float | None = None
        self._now: tuple[SidecarLoad, ...] = ()
        self._now_tick = -1
        self._before: tuple[SidecarLoad, ...] = ()
        self._before_tick = -1
        self._window_end_tick = 0
        self._settled = True  # whether the arrivals of ``_now`` are counted

    def observe(self, sample: Sample) -> None:
        """Unknown loads stay unknown at this tick; the next count stands for the time between."""
        self._before, self._before_tick = self._now, self._now_tick
        self._now, self._now_tick = sample.by_sidecar, sample.tick
        self._settled = False
        for load in sample.by_sidecar:
            self._arrived[load.sidecar] = self._arrived.get(load.sidecar, 0) + load.arrivals
        if self._folded_at_s is None:  # counts run from 0 on, or from an earlier first tick
            self._folded_at_s = min(0.0, sample.now_s)
        elapsed_s = sample.now_s - self._folded_at_s
        if not sample.by_sidecar or elapsed_s <= 0:
            return
        self._folded_at_s = sample.now_s
        for sidecar, arrived in self._arrived.items():
            rate = self._rates.setdefault(sidecar, TimedMean(self._half_life_s))
            rate.fold(arrived / elapsed_s, elapsed_s=elapsed_s)
        self._arrived = dict.fromkeys(self._arrived, 0)

    def settle(self, *, last_end_tick: int) -> None:
        """Add what the last window has met so far; a second call at a tick adds nothing."""
        start_tick = last_end_tick - self._width_ticks
        if last_end_tick > self._window_end_tick:
            self._window_end_tick = last_end_tick
            if self._before_tick == start_tick:
                self._carry({load.sidecar: load.in_flight for load in self._before})
        inside = start_tick < self._now_tick <= self._window_end_tick
        if self._window_end_tick and inside and not self._settled:
            self._carry({load.sidecar: load.arrivals for load in self._now})
        self._settled = True

    def _carry(self, met: dict[int, int]) -> None:
        for sidecar, requests in met.items():
            self._carried[sidecar] = self._carried.get(sidecar, 0.0) + requests

    def shares(self) -> dict[int, float]:
        """Share of the overlap so far by sidecar; empty before there was any."""
        total = sum(self._carried.values())
        return {s: c / total for s, c in sorted(self._carried.items())} if total else {}

    def objection(self) -> Terms | None:
        """Why a merge now is unfair; None where it is not, or where nothing is known to say so.

        Unfair to a sidecar: its share afterwards is above the limit, and so is its share of this
        merge alone (else the merge would bring it down). The first merge has nothing to even out.
        """
        if len(self._now) < 2 or any(load.sidecar not in self._rates for load in self._now):
            return None
        before = self.shares()
        own = {load.sidecar: self._expected(load) for load in self._now}
        met = sum(own.values())
        if not before or not met:
            return None
        total = met + sum(self._carried.values())
        after = {s: (self._carried.get(s, 0.0) + e) / total for s, e in sorted(own.items())}
        worst = max(after, key=after.__getitem__)
        if after[worst] <= self._max_share or own[worst] / met <= self._max_share:
            return None
        return (
            ("unfair_to_sidecar", float(worst)),
            ("share_before", before.get(worst, 0.0)),
            ("share_after", after[worst]),
            ("max_overlap_share", self._max_share),
        )

    def _expected(self, load: SidecarLoad) -> float:
        """Requests that a merge met that started now."""
        rate = self._rates[load.sidecar].mean
        assert rate is not None  # folded at least once, over some time
        return load.in_flight + self._window_s * rate
