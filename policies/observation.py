"""What a policy may see and what it may answer: nothing else reaches it.

A policy is a deterministic state machine. ``observe(sample)`` folds one tick's measurements in;
``decide(seen)`` answers whether the next outer merge starts at this tick. Fed the logged
measurements alone, it gives the logged decisions again, bit for bit.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class Action(StrEnum):
    """The answer for one tick."""

    MERGE = "merge"
    DEFER = "defer"


class Reason(StrEnum):
    """Why; a closed set, counted in reports."""

    BELOW_FLOOR = "below_floor"  # corridor: fewer than H_min inner steps since the last merge
    AT_CEILING = "at_ceiling"  # corridor: H_max reached, the merge is forced
    BUDGET = "budget"  # wrapper: forced or forbidden so that exactly B merges stay feasible
    HORIZON = "horizon"  # the merge would not end by the horizon, or the budget is spent
    IN_WINDOW = "in_window"  # a merge is going on
    SCHEDULED = "scheduled"  # the schedule or fixed interval says now
    NOT_SCHEDULED = "not_scheduled"
    PRESSURE_LOW = "pressure_low"
    PRESSURE_HIGH = "pressure_high"
    SCORE_ABOVE = "score_above"
    SCORE_BELOW = "score_below"
    FORECAST_BEST = "forecast_best"  # no later candidate window is expected to overlap less
    FORECAST_LATER = "forecast_later"
    TOO_LITTLE_DATA = "too_little_data"  # a forecaster's minimum is not reached: target cadence
    STARVED = "starved"  # guard: the run clock is past the longest gap, the merge is forced
    UNFAIR = "unfair"  # guard: one sidecar would carry too much of the merges
    UNKNOWN = "unknown"  # a term the policy needs is missing: defer and say so
    BLIND = "blind"  # the probes are blind: merge only when forced
    NO_SYNC = "no_sync"  # this arm never merges


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One pressure in [0, 1] and how old it is; a missing reading is None, never 0."""

    value: float
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandProgress:
    """What one live, reporting island has done since its last merge."""

    island: int
    steps_since_merge: int
    tokens_since_merge: int
    loss_drop: float | None  # first minus last loss since the merge; None before two steps
    staleness_s: float  # run time since this island last took part in a merge


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarLoad:
    """One sidecar's part of the load, as the client counts it."""

    sidecar: int
    arrivals: int  # requests that arrived since the last known count
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One tick's measurements, all taken at or before ``now_s``."""

    tick: int
    now_s: float  # run clock: 0 at the first tick
    arrivals: int | None  # requests that arrived since the last known count
    in_flight: int | None  # requests sent and not finished, seen by the client
    serving: Reading | None
    network: Reading | None
    checkpoint: Reading | None
    islands: tuple[IslandProgress, ...]
    blind: bool  # a needed probe is missing or older than its limit
    by_sidecar: tuple[SidecarLoad, ...] = ()  # empty where unknown, as in older records


def sample_from_record(raw: dict[str, Any]) -> Sample:
    """Rebuild a Sample from its JSON object; without loss, so that decisions come out the same."""
    fields = dict(raw)
    for name in ("serving", "network", "checkpoint"):
        reading = fields[name]
        fields[name] = None if reading is None else Reading(**reading)
    fields["islands"] = tuple(IslandProgress(**p) for p in fields["islands"])
    fields["by_sidecar"] = tuple(SidecarLoad(**s) for s in fields.get("by_sidecar", ()))
    return Sample(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Where the run stands in the corridor at the tick of a decision.

    The next merge has to start in [earliest_tick, latest_tick]: the corridor cut down to
    what keeps the budget feasible. A policy is asked only inside that range.
    """

    tick: int
    now_s: float
    tick_s: float
    last_end_tick: int  # end of the last merge, 0 before the first
    earliest_tick: int
    latest_tick: int
    merges_done: int
    budget: int  # 0: free cadence, the policy itself decides how often
    width_ticks: int
    target_gap_ticks: int  # end to start gap of the target cadence
    blind: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer, its reason, and every term of the score (None where unknown)."""

    action: Action
    reason: Reason
    score: float | None = None
    terms: tuple[tuple[str, float | None], ...] = ()


class Policy(Protocol):
    """The contract that tests/policies/test_contract.py runs over every policy."""

    def observe(self, sample: Sample) -> None:
        """Fold one tick's measurements in; samples come in tick order."""
        ...

    def decide(self, seen: Seen) -> Decision:
        """Answer for ``seen.tick``; changes no state."""
        ...
