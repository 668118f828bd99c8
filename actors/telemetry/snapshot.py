"""The last known pressures, each with the moment of its reading; unknown is None, never 0."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySnapshot:
    """Pressures in [0, 1] as of ``at_monotonic_s``; a reading that is too old is None."""

    at_monotonic_s: float
    serving: float | None
    network: float | None
    checkpoint: float | None
    serving_at_monotonic_s: float | None
    network_at_monotonic_s: float | None
    checkpoint_at_monotonic_s: float | None
    running: int | None  # requests over all sidecars
    waiting: int | None
    error: str | None  # what the last round of probes could not read


def nothing_known(at_monotonic_s: float) -> TelemetrySnapshot:
    """Before the first round of probes."""
    return TelemetrySnapshot(
        at_monotonic_s=at_monotonic_s,
        serving=None,
        network=None,
        checkpoint=None,
        serving_at_monotonic_s=None,
        network_at_monotonic_s=None,
        checkpoint_at_monotonic_s=None,
        running=None,
        waiting=None,
        error=None,
    )
