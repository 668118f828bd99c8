"""A policy on a stretch of traffic, and its placement against exact random and the oracle.

A policy's state depends on the samples alone, so one pass plays it at the fixed budget and at its
own count. Closed = (random - policy) / (random - oracle) and gain = 1 - policy / random, ratios of
means over replicates, random and oracle exact for the count that was played.
"""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from policies.build import build_policy
from policies.config import EnsembleConfig, PolicyConfig
from policies.ensemble import Ensemble
from policies.frame import Frame
from policies.observation import Action, Decision, Policy, Reason, Sample, Seen
from policies.wrapper import CorridorWrapper
from tests.benchmarks.families import BUDGET, CORRIDOR, HORIZON_S, TARGET_GAP_S, Traffic

Floats = npt.NDArray[np.float64]
LAST_TICK = HORIZON_S - CORRIDOR.width_ticks  # a merge ends by T
LEVEL = 0.90  # of intervals
FRAME = Frame(corridor=CORRIDOR, target_gap_ticks=TARGET_GAP_S, tick_s=1.0)


class OnCycle:
    """Asks a policy every ``cycle_ticks`` only, as a scheduler with a slow loop does."""

    def __init__(self, policy: Policy, *, cycle_ticks: int) -> None:
        self._policy = policy
        self._cycle_ticks = cycle_ticks

    def observe(self, sample: Sample) -> None:
        self._policy.observe(sample)

    def decide(self, seen: Seen) -> Decision:
        if seen.tick % self._cycle_ticks:
            return Decision(action=Action.DEFER, reason=Reason.NOT_SCHEDULED)
        return self._policy.decide(seen)


def wrapped(policy: Policy) -> CorridorWrapper:
    return CorridorWrapper(
        CORRIDOR,
        budget=BUDGET,
        policy=policy,
        tick_s=1.0,
        target_gap_ticks=TARGET_GAP_S,
        needs_probes=False,
    )


class Course:
    """The starts so far of one schedule."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.end = 0

    def start(self, tick: int) -> None:
        self.starts.append(tick)
        self.end = tick + CORRIDOR.width_ticks


def step_fixed(course: Course, wrapper: CorridorWrapper, sample: Sample) -> None:
    """One tick at the fixed budget, through the product's wrapper."""
    decision, _, _ = wrapper.decide(
        sample,
        merges_done=len(course.starts),
        last_end_tick=course.end,
        in_window=sample.tick < course.end,
    )
    if decision.action is Action.MERGE:
        course.start(sample.tick)


def step_free(course: Course, policy: Policy, sample: Sample) -> None:
    """One tick in the plain corridor, no budget: floor, ceiling and horizon alone."""
    tick, earliest = sample.tick, course.end + CORRIDOR.floor_ticks
    latest = course.end + CORRIDOR.ceiling_ticks
    if not earliest <= tick <= LAST_TICK:
        return
    seen = Seen(
        tick=tick,
        now_s=sample.now_s,
        tick_s=1.0,
        last_end_tick=course.end,
        earliest_tick=earliest,
        latest_tick=latest,
        merges_done=len(course.starts),
        budget=0,
        width_ticks=CORRIDOR.width_ticks,
        target_gap_ticks=TARGET_GAP_S,
        blind=sample.blind,
    )
    if tick >= latest or policy.decide(seen).action is Action.MERGE:
        course.start(tick)


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Policies by name, and those whose observe reaches all of them: an ensemble tells members."""

    players: dict[str, Policy]
    observers: tuple[Policy, ...]


def company(configs: dict[str, PolicyConfig]) -> Company:
    """Fresh policies; one that is a member of the ensemble is played where it stands."""
    leaders = {
        config: _ensemble(config) for config in configs.values() if config.kind == "ensemble"
    }
    members = {c: policy for _, own in leaders.values() for c, policy in own.items()}
    built = {c: leaders[c][0] if c in leaders else build(c) for c in configs.values()}
    players = {name: members.get(c, built[c]) for name, c in configs.items()}
    return Company(
        players=players, observers=tuple(p for c, p in built.items() if c not in members)
    )


def build(config: PolicyConfig) -> Policy:
    return build_policy(config, step_interval_s=1.0, tick_s=1.0, frame=FRAME)


def _ensemble(config: EnsembleConfig) -> tuple[Policy, dict[PolicyConfig, Policy]]:
    members: dict[PolicyConfig, Policy] = {member: build(member) for member in config.members}
    return Ensemble(config, FRAME, tuple(members.values())), members


def on_cycle(made: Company, name: str, *, cycle_ticks: int) -> Company:
    """One more player: the policy of that name, asked on a slow cycle."""
    slow = OnCycle(made.players[name], cycle_ticks=cycle_ticks)
    label = f"{name}_{cycle_ticks}s"
    return Company(players={**made.players, label: slow}, observers=made.observers)


def play(
    troupe: Company, made: Traffic, *, free: bool = True, altered: list[Sample] | None = None
) -> dict[str, tuple[list[int], list[int]]]:
    """By policy: starts at the fixed budget and, if asked for, at the policy's own count.

    ``altered``: what the policies see instead of the samples.
    """
    fixed = {name: (wrapped(policy), Course()) for name, policy in troupe.players.items()}
    own = {name: Course() for name in troupe.players}
    for sample in altered or made.samples:
        for observer in troupe.observers:
            observer.observe(sample)
        if sample.tick < 0:
            continue
        for name, policy in troupe.players.items():
            wrapper, course = fixed[name]
            step_fixed(course, wrapper, sample)
            if free:
                step_free(own[name], policy, sample)
    for name in troupe.players:
        for course in (fixed[name][1], own[name]) if free else (fixed[name][1],):
            if not CORRIDOR.contains(course.starts):
                raise AssertionError(f"{name} left the corridor: {course.starts}")
    return {name: (fixed[name][1].starts, own[name].starts) for name in troupe.players}


def microseconds(policy: Policy, made: Traffic) -> float:
    """CPU time a tick of observe and decide in the run, through the wrapper."""
    wrapper, course = wrapped(policy), Course()
    history = sum(sample.tick < 0 for sample in made.samples)
    for sample in made.samples[:history]:
        wrapper.observe(sample)
    began = time.process_time()
    for sample in made.samples[history:]:
        wrapper.observe(sample)
        step_fixed(course, wrapper, sample)
    return 1e6 * (time.process_time() - began) / (HORIZON_S + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """What one schedule cost, beside exact random and the oracle of its count; full and new."""

    merges: int
    cost: float
    random: float
    best: float
    new: float
    new_random: float


def paid(starts: list[int], made: Traffic) -> Paid:
    merges = len(starts)
    expected = CORRIDOR.start_marginals(merges)
    return Paid(
        merges=merges,
        cost=float(made.cost[starts].sum()),
        random=float(expected @ made.cost),
        best=CORRIDOR.best(made.cost, merges)[0],
        new=float(made.new[starts].sum()),
        new_random=float(expected @ made.new),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A ratio of means over replicates with its interval; NaN bounds from one replicate."""

    value: float
    low: float
    high: float


def share(above: Floats, below: Floats) -> Share:
    """mean(above) / mean(below), replicates independent: interval by the delta method and t."""
    n, base = len(above), float(below.mean())
    value = float(above.mean()) / base
    spread = float(np.std(above - value * below, ddof=1)) / np.sqrt(n) / base if n > 1 else np.nan
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * spread if n > 1 else np.nan
    return Share(value=value, low=value - half, high=value + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One policy on one family at one kind of count."""

    merges: float
    closed: Share
    gain: Share
    new_gain: Share


def placement(runs: list[Paid]) -> Placement:
    def column(name: str) -> Floats:
        return np.array([getattr(run, name) for run in runs], dtype=float)

    cost, random, best = column("cost"), column("random"), column("best")
    new, new_random = column("new"), column("new_random")
    return Placement(
        merges=float(column("merges").mean()),
        closed=share(random - cost, random - best),
        gain=share(random - cost, random),
        new_gain=share(new_random - new, new_random),
    )
