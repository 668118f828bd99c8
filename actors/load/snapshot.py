"""What the load client says of itself while a run goes on; the coordinator reads it each tick."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSnapshot:
    """The part of one sidecar's own arrival stream."""

    sidecar: int
    scheduled_so_far: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSnapshot:
    """Counts at one moment. sent = in_flight + finished - those never sent."""

    at_monotonic_s: float
    scheduled_so_far: int  # due by now, sent or not
    sent: int
    in_flight: int
    finished: int  # rows that are final, whatever their outcome
    failed: int  # of these, outcome not ok
    by_sidecar: tuple[SidecarSnapshot, ...] = ()
