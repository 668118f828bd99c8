"""The published effects as ratios, beside the same ratios of the replays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.paper_regimes.looped import Figures
from experiments.paper_regimes.matched import Matched
from experiments.paper_regimes.published import Published

REPRODUCED = 0.10  # relative distance of the replay's ratio from the published one
STEADY, BURSTY = "steady", "bursty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One policy, published or replayed: means over its runs."""

    rate: float  # violations / requests
    requests: float
    windows: float
    inside: float | None = None  # requests in windows
    p95_ratio: float | None = None

    @property
    def per_window(self) -> float:
        return self.rate * self.requests / self.windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A ratio as published, replayed with the published exposure, and with equal exposure."""

    load: str
    what: str
    published: float
    replayed: float
    matched: float | None  # None where equal exposure leaves nothing of that kind

    @property
    def apart(self) -> float:
        """Of the replayed ratio from the published one, relative."""
        return self.replayed / self.published - 1.0

    @property
    def reproduced(self) -> bool:
        return abs(self.apart) <= REPRODUCED


def published_steady(published: Published) -> dict[str, Arm]:
    return {
        label: Arm(
            rate=_mean([r.violations / r.requests for r in runs]),
            requests=_mean([r.requests for r in runs]),
            windows=_mean([r.exposure.windows for r in runs]),
            inside=_mean([r.inside for r in runs]),
            p95_ratio=_mean([r.p95_ratio for r in runs]),
        )
        for label, runs in published.steady.items()
    }


def published_bursty(published: Published) -> dict[str, Arm]:
    return {
        label: Arm(
            rate=arm.violation_rate,
            requests=arm.requests,
            windows=_mean([e.windows for e in arm.exposures]),
            inside=arm.inside,
        )
        for label, arm in published.bursty.items()
    }


def replayed_arms(runs: Mapping[str, Sequence[Figures]]) -> dict[str, Arm]:
    return {
        label: Arm(
            rate=_mean([f.violation_rate for f in own]),
            requests=_mean([f.requests for f in own]),
            windows=_mean([f.windows for f in own]),
            inside=_mean([f.inside for f in own]),
            p95_ratio=_mean([f.p95_ratio for f in own if f.p95_ratio is not None]),
        )
        for label, own in runs.items()
    }


def matched_arms(found: Sequence[Matched]) -> dict[str, Arm]:
    return {m.arm: Arm(rate=m.rate, requests=m.requests, windows=m.windows) for m in found}


Ratio = Callable[[Mapping[str, Arm]], float]


def rate_of(one: str, other: str) -> Ratio:
    return lambda arms: arms[one].rate / arms[other].rate


def inside_of(one: str, other: str) -> Ratio:
    """Requests in windows, for each window."""

    def ratio(arms: Mapping[str, Arm]) -> float:
        a, b = arms[one], arms[other]
        assert a.inside is not None
        assert b.inside is not None
        return (a.inside / a.windows) / (b.inside / b.windows)

    return ratio


def most_over_least(get: Callable[[Arm], float]) -> Ratio:
    """Over the policies; random placement of equal exposure is none of them."""

    def ratio(arms: Mapping[str, Arm]) -> float:
        values = [get(arm) for label, arm in arms.items() if label != "random"]
        return max(values) / min(values)

    return ratio


def effects(
    published: Mapping[str, Mapping[str, Arm]],
    replayed: Mapping[str, Mapping[str, Arm]],
    matched: Mapping[str, Mapping[str, Arm]],
) -> tuple[Effect, ...]:
    """Every effect; the arguments are arms by load, then by policy."""

    def one(load: str, what: str, of: Ratio, left: Ratio | None = None) -> Effect:
        return Effect(
            load=load,
            what=what,
            published=of(published[load]),
            replayed=of(replayed[load]),
            matched=None if left is None else left(matched[load]),
        )

    rates, counts = most_over_least(lambda a: a.rate), most_over_least(lambda a: a.requests)
    each = most_over_least(lambda a: a.per_window)
    knows = "stage12_calibrated_replay"
    return (
        one(STEADY, "violation rate, most / least of the policies", rates, rates),
        one(
            STEADY,
            "violation rate, fixed_h_256 / wa_diloco",
            rate_of("fixed_h_256", "wa_diloco"),
            rate_of("fixed_h", "wa_score"),
        ),
        one(
            STEADY,
            "violation rate, wa_diloco / random_matched",
            rate_of("wa_diloco", "random_matched"),
            rate_of("wa_score", "random"),
        ),
        one(STEADY, "violations a window, most / least of the policies", each, each),
        one(STEADY, "requests a run, most / least of the policies", counts, counts),
        one(STEADY, "violations / requests in windows", _violations_of_inside),
        one(STEADY, "p95 inside / outside windows", _p95_ratio),
        one(BURSTY, "violation rate, most / least of the policies", rates, rates),
        one(
            BURSTY,
            "violation rate, fixed_h_256 / random_matched",
            rate_of("fixed_h_256", "random_matched"),
            rate_of("fixed_h", "random"),
        ),
        one(
            BURSTY,
            "violation rate, wa_diloco / random_matched",
            rate_of("wa_diloco", "random_matched"),
            rate_of("wa_score", "random"),
        ),
        one(
            BURSTY,
            "violation rate, stage12_calibrated_replay / random_matched",
            rate_of(knows, "random_matched"),
        ),
        one(
            BURSTY,
            "requests in windows, a window, stage12_calibrated_replay / random_matched",
            inside_of(knows, "random_matched"),
        ),
        one(
            BURSTY,
            "requests in windows, a window, online_calibrated_wa / random_matched",
            inside_of("online_calibrated_wa", "random_matched"),
        ),
    )


def _violations_of_inside(arms: Mapping[str, Arm]) -> float:
    violations = sum(a.rate * a.requests for a in arms.values())
    return violations / sum(a.inside for a in arms.values() if a.inside is not None)


def _p95_ratio(arms: Mapping[str, Arm]) -> float:
    return _mean([a.p95_ratio for a in arms.values() if a.p95_ratio is not None])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
