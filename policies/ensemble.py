"""Follows the member whose placements would have gained most so far.

Every member plays a shadow schedule of its own on the samples, inside the corridor and at the
target cadence: a longer gap leaves more choice, so gains compare at the same cadence only. A shadow
merge gains what its window cost less than an average one.
"""

import math
from collections import deque

from policies.config import EnsembleConfig
from policies.frame import Frame
from policies.observation import Action, Decision, Policy, Reason, Sample, Seen

ROUNDS_TO_RETURN = 8  # a gap off the target is returned in as many rounds: half a judged run


class Shadow:
    """One member's schedule that never happens, and its decayed mean gain per merge."""

    def __init__(self, member: Policy, frame: Frame) -> None:
        self.member = member
        self._frame = frame
        self._last_end_tick: int | None = None
        self._owed_ticks = 0  # gaps short of the target so far, less those beyond it
        self.open_tick: int | None = None  # start of the window whose cost is not yet known
        self._gain = 0.0
        self._weight = 0.0

    @property
    def gain(self) -> float | None:
        """Mean of 1 - cost / mean cost over its merges; None before the first."""
        return self._gain / self._weight if self._weight > 0 else None

    def observe(self, sample: Sample) -> None:
        """The member sees the sample and answers for the shadow schedule."""
        self.member.observe(sample)
        corridor = self._frame.corridor
        if self._last_end_tick is None:
            self._last_end_tick = sample.tick
        gap = sample.tick - self._last_end_tick
        if gap < corridor.floor_ticks:
            return
        decision = self.member.decide(
            Seen(
                tick=sample.tick,
                now_s=sample.now_s,
                tick_s=self._frame.tick_s,
                last_end_tick=self._last_end_tick,
                earliest_tick=self._last_end_tick + corridor.floor_ticks,
                latest_tick=max(sample.tick, self._last_end_tick + corridor.ceiling_ticks),
                merges_done=0,
                budget=0,  # none: it aims at the target gap
                width_ticks=corridor.width_ticks,
                target_gap_ticks=self._target_gap_ticks,
                blind=sample.blind,
            )
        )
        if gap >= corridor.ceiling_ticks or decision.action is Action.MERGE:
            self._owed_ticks += self._frame.target_gap_ticks - gap
            self._last_end_tick = sample.tick + corridor.width_ticks
            learnt = decision.reason is not Reason.TOO_LITTLE_DATA
            self.open_tick = sample.tick if learnt else None

    @property
    def _target_gap_ticks(self) -> int:
        """The next gap that leads back to the target cadence, inside the corridor."""
        corridor, aim = self._frame.corridor, self._frame.target_gap_ticks
        back = aim + round(self._owed_ticks / ROUNDS_TO_RETURN)
        return min(max(back, corridor.floor_ticks), corridor.ceiling_ticks)

    def close(self, gain: float | None, *, keep: float) -> None:
        """The open window's gain is in, or will never be known."""
        self.open_tick = None
        if gain is not None:
            self._gain = keep * self._gain + gain
            self._weight = keep * self._weight + 1.0


class WindowCosts:
    """Cost of the window that ended at the latest tick, and the decayed mean over all."""

    def __init__(self, *, width_ticks: int, half_life_ticks: float) -> None:
        self._keep = math.exp2(-1.0 / half_life_ticks)
        # One entry a tick, from the start of the window on: arrivals, in flight; None: unknown.
        self._ticks: deque[tuple[int | None, int | None]] = deque(maxlen=width_ticks + 1)
        self._tick: int | None = None
        self._sum = 0.0
        self._weight = 0.0
        self.cost: float | None = None

    def fold(self, sample: Sample) -> None:
        """One tick; a count that covers more than its own tick leaves no window known."""
        ticks = self._ticks
        if self._tick is not None and sample.tick - self._tick != 1:
            ticks.clear()
        self._tick = sample.tick
        ticks.append((sample.arrivals, sample.in_flight))
        self.cost = self._latest()
        if self.cost is not None:
            self._sum = self._keep * self._sum + (1.0 - self._keep) * self.cost
            self._weight = self._keep * self._weight + (1.0 - self._keep)

    @property
    def gain(self) -> float | None:
        """1 - cost / mean cost of the window that ended now; None where unknown."""
        if self.cost is None or self._sum <= 0:
            return None
        return 1.0 - self.cost * self._weight / self._sum

    def _latest(self) -> float | None:
        ticks = self._ticks
        waiting = ticks[0][1]
        if len(ticks) < (ticks.maxlen or 0) or waiting is None:
            return None
        total = waiting
        for arrivals, _ in list(ticks)[1:]:
            if arrivals is None:
                return None
            total += arrivals
        return float(total)


class Ensemble:
    """Every member observes and shadows; the leader decides. Before any gain: the first."""

    def __init__(self, config: EnsembleConfig, frame: Frame, members: tuple[Policy, ...]) -> None:
        half_life_ticks = config.gain_half_life_s / frame.tick_s
        width = frame.corridor.width_ticks
        self._width_ticks = width
        self._shadows = tuple(Shadow(member, frame) for member in members)
        self._names = tuple(member.kind for member in config.members)
        self._windows = WindowCosts(width_ticks=width, half_life_ticks=half_life_ticks)
        cadence = frame.target_gap_ticks + width
        self._keep = math.exp2(-cadence / half_life_ticks)  # per merge

    def observe(self, sample: Sample) -> None:
        """Fold the sample into every member, and score the shadow merges that ended."""
        self._windows.fold(sample)
        for shadow in self._shadows:
            opened = shadow.open_tick
            if opened is not None and sample.tick - opened >= self._width_ticks:
                on_time = sample.tick - opened == self._width_ticks
                shadow.close(self._windows.gain if on_time else None, keep=self._keep)
            shadow.observe(sample)

    def decide(self, seen: Seen) -> Decision:
        """The leader's decision, its number and all gains among the terms."""
        gains = [shadow.gain for shadow in self._shadows]
        ranked = [-math.inf if gain is None else gain for gain in gains]
        leader = ranked.index(max(ranked))
        decision = self._shadows[leader].member.decide(seen)
        return Decision(
            action=decision.action,
            reason=decision.reason,
            score=decision.score,
            terms=(
                *decision.terms,
                ("leader", float(leader)),
                *((f"gain.{n}", g) for n, g in zip(self._names, gains, strict=True)),
            ),
        )
