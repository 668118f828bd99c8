"""Raw readings from the servers' /metrics and the host's counters; units converted here."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import psutil

from actors.clock import Clock
from actors.serving.engine import ServerFailed
from actors.serving.http import Unreachable, get_text
from actors.serving.metrics import ServerGauges, parse_gauges

LOOPBACK = "lo"


class ProbeFailed(RuntimeError):
    """A probe has no reading now; the message says why."""


class Fetch(Protocol):
    def __call__(self, url: str, *, timeout_s: float) -> str: ...


class ServingProbe:
    """Gauges of every sidecar, polled at the same time; one that fails makes all unknown."""

    def __init__(self, urls: Sequence[str], *, timeout_s: float, fetch: Fetch = get_text) -> None:
        self._urls = [url.rstrip("/") + "/metrics" for url in urls]
        self._timeout_s = timeout_s
        self._fetch = fetch
        self._pool = ThreadPoolExecutor(max(1, len(urls)), thread_name_prefix="serving-probe")

    def read(self) -> tuple[ServerGauges, ...]:
        """One entry a sidecar. The fullest one counts, so a missing one must not be left out."""
        return tuple(self._pool.map(self._read_one, self._urls))

    def _read_one(self, url: str) -> ServerGauges:
        try:
            return parse_gauges(self._fetch(url, timeout_s=self._timeout_s))
        except (Unreachable, ServerFailed) as error:
            raise ProbeFailed(f"serving: {error}") from error

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class RateProbe:
    """Growth of a byte counter between two reads, in bytes/s."""

    def __init__(self, count_bytes: Callable[[], int | None], *, clock: Clock) -> None:
        self._count_bytes = count_bytes
        self._clock = clock
        self._last: tuple[float, int] | None = None

    def read(self) -> float | None:
        """None at the first read, without a counter, and when the counter was set back."""
        at_s, total = self._clock.now_s(), self._count_bytes()
        last, self._last = self._last, None if total is None else (at_s, total)
        if total is None or last is None or total < last[1] or at_s <= last[0]:
            return None
        return (total - last[1]) / (at_s - last[0])


def network_bytes() -> int | None:
    """Sent and received over all interfaces; loopback once, since it counts each byte twice."""
    try:
        counters = psutil.net_io_counters(pernic=True)
    except OSError:
        return None
    if not counters:
        return None
    return sum(
        c.bytes_sent if name == LOOPBACK else c.bytes_sent + c.bytes_recv
        for name, c in counters.items()
    )


def disk_written_bytes() -> int | None:
    """Written to all disks; None where the host shows no disk counters, as in some containers."""
    try:
        counters = psutil.disk_io_counters()
    except (OSError, NotImplementedError):
        return None
    return None if counters is None else int(counters.write_bytes)
