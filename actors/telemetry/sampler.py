"""Takes a round of readings each interval and keeps the last good one of each probe.

A reading may be used until it is ``max_age_s`` old; from then on its pressure is unknown.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from actors.clock import Clock, MonotonicClock
from actors.config import TelemetryConfig
from actors.serving.metrics import ServerGauges
from actors.telemetry.pressure import rate_pressure, serving_pressure
from actors.telemetry.probes import (
    ProbeFailed,
    RateProbe,
    ServingProbe,
    disk_written_bytes,
    network_bytes,
)
from actors.telemetry.snapshot import TelemetrySnapshot

# A server that is starved by a merge may take some tenths of a second to answer: no reason to be
# blind. Longer than this, and the other readings would grow old behind it.
POLL_TIMEOUT_S = 1.0


class Serving(Protocol):
    def read(self) -> tuple[ServerGauges, ...]: ...


class Rate(Protocol):
    def read(self) -> float | None: ...


class Stop(Protocol):
    """A threading.Event, or what a test puts in its place."""

    def wait(self, timeout: float | None = None) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Held:
    """The last good reading of a probe."""

    value: float
    at_s: float


class Sampler:
    """sample() by one thread; latest() and drain_rows() by any."""

    def __init__(
        self,
        config: TelemetryConfig,
        *,
        serving: Serving,
        network: Rate,
        checkpoint: Rate,
        clock: Clock,
        zero_monotonic_s: float,
    ) -> None:
        self._config = config
        self._serving = serving
        self._network = network
        self._checkpoint = checkpoint
        self._clock = clock
        self._zero_s = zero_monotonic_s
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._gauges: tuple[ServerGauges, ...] = ()
        self._error: str | None = None
        self._rows: deque[dict[str, Any]] = deque()

    def sample(self) -> None:
        """One round: host counters first, so that a slow server does not hold them up."""
        network_at_s, network_bytes_per_s = self._clock.now_s(), self._network.read()
        checkpoint_at_s, checkpoint_bytes_per_s = self._clock.now_s(), self._checkpoint.read()
        serving_at_s = self._clock.now_s()  # before the poll: an age is never told too young
        gauges: tuple[ServerGauges, ...] = ()
        error = None
        try:
            gauges = self._serving.read()
        except ProbeFailed as failed:
            error = str(failed)
        config = self._config
        pressures = {
            "serving": serving_pressure(gauges, full_requests=config.serving_full_requests),
            "network": rate_pressure(
                network_bytes_per_s, full_bytes_per_s=config.network_full_bytes_per_s
            ),
            "checkpoint": rate_pressure(
                checkpoint_bytes_per_s, full_bytes_per_s=config.checkpoint_full_bytes_per_s
            ),
        }
        at_s = {"serving": serving_at_s, "network": network_at_s, "checkpoint": checkpoint_at_s}
        with self._lock:
            self._error = error
            if gauges:
                self._gauges = gauges
            for name, value in pressures.items():
                if value is not None:
                    self._held[name] = _Held(value, at_s[name])
            self._rows.append(
                {
                    "at_s": serving_at_s - self._zero_s,
                    **_over_sidecars(gauges),
                    **pressures,
                    "network_bytes_per_s": network_bytes_per_s,
                    "checkpoint_bytes_per_s": checkpoint_bytes_per_s,
                    "blind": self._known("serving", now_s=self._clock.now_s()) is None,
                }
            )

    def sample_until(self, stop: Stop) -> None:
        """A round each interval; rounds that were missed are not made up for."""
        due_s = self._clock.now_s()
        try:
            while True:
                self.sample()
                now_s = self._clock.now_s()
                due_s = max(now_s, due_s + self._config.interval_s)
                if stop.wait(due_s - now_s):
                    return
        except Exception as error:
            with self._lock:
                self._error = f"the sampler ended: {type(error).__name__}: {error}"
            raise

    def latest(self) -> TelemetrySnapshot:
        """What is known now; readings grow old here also while the sampler hangs."""
        now_s = self._clock.now_s()
        with self._lock:
            serving = self._known("serving", now_s=now_s)
            network = self._known("network", now_s=now_s)
            checkpoint = self._known("checkpoint", now_s=now_s)
            requests = _over_sidecars(self._gauges if serving is not None else ())
            return TelemetrySnapshot(
                at_monotonic_s=now_s,
                serving=None if serving is None else serving.value,
                network=None if network is None else network.value,
                checkpoint=None if checkpoint is None else checkpoint.value,
                serving_at_monotonic_s=None if serving is None else serving.at_s,
                network_at_monotonic_s=None if network is None else network.at_s,
                checkpoint_at_monotonic_s=None if checkpoint is None else checkpoint.at_s,
                running=requests["running"],
                waiting=requests["waiting"],
                error=self._error,
            )

    def drain_rows(self) -> list[dict[str, Any]]:
        """One row a round since the last call: what was read in it, None where nothing was."""
        return [self._rows.popleft() for _ in range(len(self._rows))]

    def _known(self, name: str, *, now_s: float) -> _Held | None:
        held = self._held.get(name)
        return None if held is None or now_s - held.at_s > self._config.max_age_s else held


def _over_sidecars(gauges: Sequence[ServerGauges]) -> dict[str, Any]:
    if not gauges:
        return {"running": None, "waiting": None, "kv_usage": None}
    return {
        "running": sum(g.running for g in gauges),
        "waiting": sum(g.waiting for g in gauges),
        "kv_usage": max(g.kv_usage for g in gauges),
    }


class SamplerThread:
    """A sampler over this host's own probes, in a thread of its own, until stop()."""

    def __init__(
        self, config: TelemetryConfig, *, urls: Sequence[str], zero_monotonic_s: float
    ) -> None:
        clock = MonotonicClock()
        self._probe = ServingProbe(urls, timeout_s=min(POLL_TIMEOUT_S, config.max_age_s))
        self.sampler = Sampler(
            config,
            serving=self._probe,
            network=RateProbe(network_bytes, clock=clock),
            checkpoint=RateProbe(disk_written_bytes, clock=clock),
            clock=clock,
            zero_monotonic_s=zero_monotonic_s,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self.sampler.sample_until, args=(self._stop,), name="sampler", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Returns when no more round is under way (or it hangs in a poll beyond its time limit)."""
        self._stop.set()
        self._thread.join(timeout=2 * POLL_TIMEOUT_S)
        self._probe.close()
