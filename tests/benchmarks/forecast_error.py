"""Errors between the traffic and what a policy sees of it: noise, lag, bias. Pure, from an rng.

A policy forecasts from its samples alone, so an error in them is an error in its forecast. Noise
and lag hold from the first sample on: what a policy learns, it learns through them. Bias begins
with the run, at tick 0: a factor that always held would be learned away.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from policies.observation import Sample


class Kind(StrEnum):
    """What the size counts."""

    NOISE = "noise"  # sd of the noise, in sd of the count that it is added to; inf: noise alone
    LAG = "lag"  # ticks
    BIAS = "bias"  # factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    kind: Kind
    size: float

    def __post_init__(self) -> None:
        whole = self.kind is not Kind.LAG or float(self.size).is_integer()
        finite = self.kind is Kind.NOISE or math.isfinite(self.size)
        if not (self.size >= 0 and whole and finite):
            raise ValueError(f"{self.kind.value} of size {self.size}: give a number of at least 0")


def altered(samples: list[Sample], error: Error, *, rng: np.random.Generator) -> list[Sample]:
    """The samples as a policy sees them under the error; times stay, known counts change."""
    match error.kind:
        case Kind.NOISE:
            return _noisy(samples, error.size, rng=rng)
        case Kind.LAG:
            return _late(samples, int(error.size))
        case Kind.BIAS:
            return [_scaled(s, error.size) if s.tick >= 0 else s for s in samples]


def _noisy(samples: list[Sample], size: float, *, rng: np.random.Generator) -> list[Sample]:
    arrivals = _with_noise([s.arrivals for s in samples], size, rng=rng)
    in_flight = _with_noise([s.in_flight for s in samples], size, rng=rng)
    return [
        replace(s, arrivals=a, in_flight=f)
        for s, a, f in zip(samples, arrivals, in_flight, strict=True)
    ]


def _with_noise(
    counts: list[int | None], size: float, *, rng: np.random.Generator
) -> list[int | None]:
    """Whole numbers of at least 0, as counts are. Without end: the noise alone, at the own sd."""
    known = np.array([n for n in counts if n is not None], dtype=float)
    noise = rng.normal(size=len(counts)) * (known.std() if len(known) else 0.0)
    alone = math.isinf(size)
    return [
        None if n is None else max(0, round(z if alone else n + size * z))
        for n, z in zip(counts, noise.tolist(), strict=True)
    ]


def _late(samples: list[Sample], ticks: int) -> list[Sample]:
    """Each tick shows what was true ``ticks`` earlier; before that, nothing is known."""
    late = [
        replace(now, arrivals=then.arrivals, in_flight=then.in_flight)
        for now, then in zip(samples[ticks:], samples, strict=False)
    ]
    return [replace(s, arrivals=None, in_flight=None) for s in samples[:ticks]] + late


def _scaled(sample: Sample, factor: float) -> Sample:
    a, f = sample.arrivals, sample.in_flight
    return replace(
        sample,
        arrivals=None if a is None else round(factor * a),
        in_flight=None if f is None else round(factor * f),
    )
