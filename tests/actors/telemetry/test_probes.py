"""Probes: what they read, and that a failure is told, never taken for zero."""

import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from actors.clock import VirtualClock
from actors.serving.http import Unreachable
from actors.serving.metrics import ServerGauges
from actors.telemetry.probes import (
    ProbeFailed,
    RateProbe,
    ServingProbe,
    disk_written_bytes,
    network_bytes,
)


def metrics(running: int, waiting: int) -> str:
    labels = '{engine="0",model_name="m"}'
    return (
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} {running}.0\n"
        f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{labels} {waiting}.0\n"
        f"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{labels} 0.25\n"
    )


@pytest.fixture
def probe_of() -> Iterator[Callable[[dict[str, str]], ServingProbe]]:
    """A probe of servers whose answers are given; a missing one does not answer."""
    probes: list[ServingProbe] = []

    def make(answers: dict[str, str]) -> ServingProbe:
        def fetch(url: str, *, timeout_s: float) -> str:
            assert timeout_s == 0.7
            if not answers[url]:
                raise Unreachable(f"{url} does not answer: refused")
            return answers[url]

        urls = [url.removesuffix("/metrics") for url in answers]
        probes.append(ServingProbe(urls, timeout_s=0.7, fetch=fetch))
        return probes[-1]

    yield make
    for probe in probes:
        probe.close()


def test_every_sidecar_is_read(probe_of: Callable[[dict[str, str]], ServingProbe]) -> None:
    got = probe_of({"http://a/metrics": metrics(3, 4), "http://b/metrics": metrics(1, 0)}).read()
    assert got == (
        ServerGauges(running=3, waiting=4, kv_usage=0.25),
        ServerGauges(running=1, waiting=0, kv_usage=0.25),
    )


def test_a_sidecar_that_does_not_answer_makes_all_unknown(
    probe_of: Callable[[dict[str, str]], ServingProbe],
) -> None:
    probe = probe_of({"http://a/metrics": metrics(3, 4), "http://b/metrics": ""})
    with pytest.raises(ProbeFailed, match="http://b/metrics does not answer"):
        probe.read()


def test_a_renamed_metric_is_told_by_name(
    probe_of: Callable[[dict[str, str]], ServingProbe],
) -> None:
    renamed = metrics(3, 4).replace("vllm:num_requests_running", "vllm:requests_active")
    with pytest.raises(ProbeFailed, match="vllm:num_requests_running"):
        probe_of({"http://a/metrics": renamed}).read()


def test_sidecars_are_polled_at_the_same_time() -> None:
    """Each answer waits for the other poll to have begun."""
    both = threading.Barrier(2, timeout=20)

    def fetch(url: str, *, timeout_s: float) -> str:
        both.wait()
        return metrics(1, 0)

    probe = ServingProbe(["http://a", "http://b"], timeout_s=1.0, fetch=fetch)
    assert len(probe.read()) == 2
    probe.close()


def rates(counts: list[int | None], *, step_s: float = 0.5) -> list[float | None]:
    clock = VirtualClock(now_s=100.0)
    readings = iter(counts)
    probe = RateProbe(lambda: next(readings), clock=clock)
    got = []
    for _ in counts:
        got.append(probe.read())
        clock.advance(step_s)
    return got


def test_the_first_read_has_no_rate() -> None:
    assert rates([1000, 1500, 1500]) == [None, 1000.0, 0.0]


def test_a_counter_set_back_is_unknown_for_one_interval() -> None:
    assert rates([1000, 10, 60]) == [None, None, 100.0]


def test_a_counter_that_is_missing_is_unknown_and_starts_anew() -> None:
    assert rates([1000, None, 5000, 5100]) == [None, None, None, 200.0]


def test_no_time_passed_is_no_rate() -> None:
    assert rates([1000, 2000], step_s=0.0) == [None, None]


def test_this_host_has_network_counters_that_never_shrink() -> None:
    first, second = network_bytes(), network_bytes()
    assert first is not None
    assert second is not None
    assert 0 <= first <= second


def test_loopback_bytes_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = type("Counter", (), {"bytes_sent": 100, "bytes_recv": 100})()
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: {"lo": counter, "eth0": counter})
    assert network_bytes() == 300


@pytest.mark.parametrize("raised", [NotImplementedError("no /proc/diskstats"), OSError(13, "no")])
def test_a_host_without_disk_counters_is_unknown(
    monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def refuse() -> None:
        raise raised

    monkeypatch.setattr(psutil, "disk_io_counters", refuse)
    assert disk_written_bytes() is None
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    assert disk_written_bytes() is None
