"""Injected errors by hand and at their limits."""

import math

import numpy as np
import pytest

from policies.observation import Sample
from policies.streams import stream
from tests.benchmarks import families
from tests.benchmarks.forecast_error import Error, Kind, altered


def samples() -> list[Sample]:
    return families.traffic_of("exponential", 0, replicates=1, seed=1).samples


def counts(seen: list[Sample]) -> list[tuple[int | None, int | None]]:
    return [(s.arrivals, s.in_flight) for s in seen]


@pytest.mark.parametrize(("kind", "size"), [(Kind.NOISE, 0.0), (Kind.LAG, 0.0), (Kind.BIAS, 1.0)])
def test_an_error_of_no_size_changes_nothing(kind: Kind, size: float) -> None:
    true = samples()
    assert altered(true, Error(kind=kind, size=size), rng=stream(1, "x")) == true


def test_noise_has_the_size_it_says_and_follows_its_stream() -> None:
    true = samples()
    seen = altered(true, Error(kind=Kind.NOISE, size=0.5), rng=stream(1, "x"))
    again = altered(true, Error(kind=Kind.NOISE, size=0.5), rng=stream(1, "x"))
    assert seen == again
    own = np.array([s.in_flight for s in true], dtype=float)
    busy = own > 3 * own.std()  # where the cut at 0 does not reach
    apart = np.array([s.in_flight for s in seen], dtype=float) - own
    assert busy.sum() > 50
    assert apart[busy].std() == pytest.approx(0.5 * own.std(), rel=0.25)


def test_noise_without_end_does_not_depend_on_where_the_traffic_lies() -> None:
    true = samples()
    turned = [
        Sample(
            **{f: getattr(t, f) for f in t.__slots__}
            | {"arrivals": r.arrivals, "in_flight": r.in_flight}
        )
        for t, r in zip(true, reversed(true), strict=True)
    ]
    error = Error(kind=Kind.NOISE, size=math.inf)
    one = altered(true, error, rng=stream(1, "x"))
    other = altered(turned, error, rng=stream(1, "x"))
    assert counts(one) == counts(other)
    assert counts(one) != counts(true)


def test_lag_shows_what_was_true_and_nothing_before() -> None:
    true = samples()
    seen = altered(true, Error(kind=Kind.LAG, size=3.0), rng=stream(1, "x"))
    assert [s.tick for s in seen] == [s.tick for s in true]
    assert counts(seen) == [(None, None)] * 3 + counts(true)[:-3]


def test_bias_begins_with_the_run() -> None:
    true = samples()
    seen = altered(true, Error(kind=Kind.BIAS, size=2.0), rng=stream(1, "x"))
    assert seen[: families.HISTORY_S] == true[: families.HISTORY_S]
    last, was = seen[-1], true[-1]
    assert was.arrivals is not None
    assert was.in_flight is not None
    assert (last.arrivals, last.in_flight) == (2 * was.arrivals, 2 * was.in_flight)


@pytest.mark.parametrize(
    ("kind", "size"), [(Kind.LAG, 0.5), (Kind.BIAS, math.inf), (Kind.NOISE, -1)]
)
def test_a_size_that_means_nothing_is_refused(kind: Kind, size: float) -> None:
    with pytest.raises(ValueError, match="of size"):
        Error(kind=kind, size=size)
