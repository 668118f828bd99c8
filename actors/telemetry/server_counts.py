"""Arrivals and requests in flight from a server's own counters, where no load client is ours.

A server counts requests that finished; those that it holds are in its gauges. So what arrived
between two looks is the growth of both together.
"""

import math
import threading
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from actors.clock import Clock, MonotonicClock
from actors.config import TelemetryConfig
from actors.coordinator.advisor import Readings
from actors.serving.engine import ServerFailed
from actors.serving.http import Unreachable, get_text
from actors.serving.metrics import MetricMissing, ServerGauges, parse_gauges
from actors.telemetry.probes import (
    Fetch,
    ProbeFailed,
    RateProbe,
    disk_written_bytes,
    network_bytes,
)
from actors.telemetry.sampler import POLL_TIMEOUT_S, Sampler

FINISHED = "request_success"  # of vllm:request_success_total, in any of its spellings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounts:
    """As SampleBuilder reads a load: requests since the first look, and those in the server."""

    scheduled_so_far: int
    in_flight: int
    by_sidecar: tuple[Any, ...] = ()


def parse_finished(text: str) -> int:
    """Requests that the server has finished since its start, whatever the reason."""
    lines = "\n".join(line for line in text.splitlines() if FINISHED in line) + "\n"
    total, found = 0.0, False
    try:
        for family in text_string_to_metric_families(lines):
            for sample in family.samples:
                if not sample.name.endswith("_created"):  # when it began, not how many
                    total, found = total + sample.value, True
    except ValueError as error:
        raise MetricMissing(f"/metrics is not in the Prometheus text format: {error}") from error
    if not found:
        raise MetricMissing(
            f"metric vllm:{FINISHED}_total is not in /metrics of the server, so its arrivals are "
            "not known. Use a vLLM release that has it, or teach "
            "actors/telemetry/server_counts.py its new name"
        )
    return round(total)


class CountingProbe:
    """The serving probe of one server that keeps count of its arrivals too.

    A request that its user gave up leaves the server without being counted as finished: it takes
    nothing back. After a restart of the server counting goes on; what it held then is lost.
    """

    def __init__(self, url: str, *, timeout_s: float, fetch: Fetch = get_text) -> None:
        self._url = url.rstrip("/").removesuffix("/metrics") + "/metrics"
        self._timeout_s = timeout_s
        self._fetch = fetch
        self._lock = threading.Lock()
        self._last: tuple[int, int] | None = None  # finished, in the server
        self._arrived = 0

    def read(self) -> tuple[ServerGauges, ...]:
        """The gauges, as a serving probe gives them; ProbeFailed where they are not known."""
        try:
            text = self._fetch(self._url, timeout_s=self._timeout_s)
            gauges, finished = parse_gauges(text), parse_finished(text)
        except (Unreachable, ServerFailed, ValueError, OverflowError) as error:  # nan, inf
            raise ProbeFailed(f"serving: {error}") from error
        if not math.isfinite(gauges.kv_usage):
            raise ProbeFailed(f"serving: {self._url} says {gauges.kv_usage} of its cache is used")
        held = gauges.running + gauges.waiting
        with self._lock:
            if self._last is not None:
                self._arrived += max(0, _grown(self._last, finished=finished, held=held))
            self._last = (finished, held)
        return (gauges,)

    def counts(self) -> ServerCounts | None:
        """As of the last good look; None before the first."""
        with self._lock:
            if self._last is None:
                return None
            return ServerCounts(scheduled_so_far=self._arrived, in_flight=self._last[1])


def _grown(last: tuple[int, int], *, finished: int, held: int) -> int:
    before, held_before = last
    if finished < before:  # a new server: it has seen what it finished and what it holds
        return finished + held
    return finished - before + held - held_before


class ServerTelemetry:
    """A sampler of one server and of this host, in a thread of its own, until stop()."""

    def __init__(
        self,
        config: TelemetryConfig,
        *,
        url: str,
        zero_monotonic_s: float,
        clock: Clock | None = None,
        fetch: Fetch = get_text,
    ) -> None:
        clock = clock or MonotonicClock()
        timeout_s = min(POLL_TIMEOUT_S, config.max_age_s)
        self._probe = CountingProbe(url, timeout_s=timeout_s, fetch=fetch)
        self._sampler = Sampler(
            config,
            serving=self._probe,
            network=RateProbe(network_bytes, clock=clock),
            checkpoint=RateProbe(disk_written_bytes, clock=clock),
            clock=clock,
            zero_monotonic_s=zero_monotonic_s,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._sampler.sample_until, args=(self._stop,), name="sampler", daemon=True
        )
        self._thread.start()

    def read(self) -> Readings:
        """What is known now; counts as old as an unknown pressure are unknown too."""
        snapshot = self._sampler.latest()
        counts = None if snapshot.serving is None else self._probe.counts()
        return Readings(load=counts, telemetry=snapshot)

    def drain_rows(self) -> list[dict[str, Any]]:
        return self._sampler.drain_rows()

    def stop(self) -> None:
        """Returns when no more round is under way (or it hangs in a poll beyond its time limit)."""
        self._stop.set()
        self._thread.join(timeout=2 * POLL_TIMEOUT_S)
