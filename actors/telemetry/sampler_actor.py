"""Ray shell of the telemetry: a sampling thread for each arm."""

from typing import Any

import ray

from actors.clock import ClockProbe, MonotonicClock, probe_clock
from actors.config import TelemetryConfig
from actors.priority import take_instrument_priority
from actors.telemetry.sampler import SamplerThread
from actors.telemetry.snapshot import TelemetrySnapshot, nothing_known


@ray.remote
class TelemetryActor:
    """Probes of one study; samples from start() to stop() or the next start()."""

    def __init__(
        self, telemetry: TelemetryConfig, urls: list[str], max_num_seqs: list[int]
    ) -> None:
        if len(urls) != len(max_num_seqs):
            raise ValueError(f"{len(urls)} urls and {len(max_num_seqs)} max_num_seqs; one each")
        self._warning = take_instrument_priority()
        self._config = telemetry
        self._urls = urls
        self._thread: SamplerThread | None = None

    def clock_probe(self) -> ClockProbe:
        return probe_clock()

    def warning(self) -> str | None:
        return self._warning

    def start(self, zero_monotonic_s: float) -> None:
        self.stop()
        self._thread = SamplerThread(
            self._config, urls=self._urls, zero_monotonic_s=zero_monotonic_s
        )

    def latest(self) -> TelemetrySnapshot:
        if self._thread is None:
            return nothing_known(MonotonicClock().now_s())
        return self._thread.sampler.latest()

    def drain_rows(self) -> list[dict[str, Any]]:
        return [] if self._thread is None else self._thread.sampler.drain_rows()

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()
