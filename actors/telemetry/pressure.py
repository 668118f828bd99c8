"""Raw readings to pressures in [0, 1]: pure, so that live and replay use the same."""

from collections.abc import Sequence

from actors.serving.metrics import ServerGauges


def serving_pressure(gauges: Sequence[ServerGauges], *, full_requests: int) -> float | None:
    """Requests in the system over the full scale, of the fullest sidecar; None without any."""
    if not gauges:
        return None
    return max(_fraction(g.running + g.waiting, full=full_requests) for g in gauges)


def rate_pressure(bytes_per_s: float | None, *, full_bytes_per_s: float) -> float | None:
    """A rate over its full scale; unknown stays unknown."""
    return None if bytes_per_s is None else _fraction(bytes_per_s, full=full_bytes_per_s)


def _fraction(value: float, *, full: float) -> float:
    return min(1.0, max(0.0, value / full))
