"""Durations come from an injected clock: monotonic when live, virtual in tests and replay.

Actors on several nodes share one run clock: each tells its boot id and monotonic time, and the
coordinator turns them into an offset (zero on its own host, half a round trip of error elsewhere).
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Seconds on a monotonic scale."""

    def now_s(self) -> float: ...


class MonotonicClock:
    """CLOCK_MONOTONIC: one scale for all processes of a host."""

    def now_s(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that moves only when told to."""

    def __init__(self, *, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, by_s: float) -> None:
        if by_s < 0:
            raise ValueError(f"a clock cannot go back: advance by {by_s} s")
        self._now_s += by_s


@dataclass(frozen=True, slots=True)
class ClockProbe:
    """What an actor's host says of its clock."""

    boot_id: str
    monotonic_s: float


def probe_clock() -> ClockProbe:
    """Read this host's boot id and monotonic clock."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ClockProbe(boot_id=boot_id, monotonic_s=time.monotonic())


def clock_offset_s(local_before: ClockProbe, remote: ClockProbe, local_after: ClockProbe) -> float:
    """Remote minus local monotonic seconds; exactly 0 on one host (same boot id)."""
    if remote.boot_id == local_before.boot_id:
        return 0.0
    return remote.monotonic_s - 0.5 * (local_before.monotonic_s + local_after.monotonic_s)
