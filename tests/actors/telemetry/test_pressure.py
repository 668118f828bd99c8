"""Readings to pressures: clipped, of the fullest sidecar, unknown stays unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.metrics import ServerGauges
from actors.telemetry.pressure import rate_pressure, serving_pressure


def gauges(running: int, waiting: int) -> ServerGauges:
    return ServerGauges(running=running, waiting=waiting, kv_usage=0.5)


def test_running_and_waiting_count_alike() -> None:
    assert serving_pressure([gauges(3, 5)], full_requests=16) == 0.5


def test_the_fullest_sidecar_counts_not_the_mean() -> None:
    assert serving_pressure([gauges(0, 0), gauges(4, 4)], full_requests=16) == 0.5


def test_no_reading_is_unknown_not_zero() -> None:
    assert serving_pressure([], full_requests=16) is None
    assert rate_pressure(None, full_bytes_per_s=1.0) is None


def test_an_idle_server_is_zero_not_unknown() -> None:
    assert serving_pressure([gauges(0, 0)], full_requests=16) == 0.0
    assert rate_pressure(0.0, full_bytes_per_s=1.0) == 0.0


@given(
    counts=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=4),
    full=st.integers(1, 500),
)
def test_serving_pressure_is_a_fraction(counts: list[tuple[int, int]], full: int) -> None:
    got = serving_pressure([gauges(*c) for c in counts], full_requests=full)
    assert got is not None
    assert 0.0 <= got <= 1.0


@pytest.mark.parametrize(("rate", "pressure"), [(50.0, 0.5), (100.0, 1.0), (1e9, 1.0)])
def test_a_rate_is_clipped_at_its_full_scale(rate: float, pressure: float) -> None:
    assert rate_pressure(rate, full_bytes_per_s=100.0) == pressure
