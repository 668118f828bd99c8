"""Arrivals from a server's own counters: growth of finished and held together, never a guess."""

import socket
import threading
from collections.abc import Iterator

import pytest

from actors.clock import MonotonicClock
from actors.config import MockConfig, TelemetryConfig
from actors.serving.http import Unreachable
from actors.serving.metrics import MetricMissing
from actors.serving.mock_batch import Batch
from actors.serving.mock_metrics import MockMetrics
from actors.telemetry.probes import ProbeFailed
from actors.telemetry.server_counts import CountingProbe, ServerTelemetry, parse_finished

LIMIT_S = 30.0


def metrics(finished: int, running: int, waiting: int = 0) -> str:
    labels = 'engine="0",model_name="m"'
    return (
        f"# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{{{labels}}} {running}.0\n"
        f"# TYPE vllm:num_requests_waiting gauge\n"
        f"vllm:num_requests_waiting{{{labels}}} {waiting}.0\n"
        f"# TYPE vllm:kv_cache_usage_perc gauge\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.25\n"
        f"# TYPE vllm:request_success_total counter\n"
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {finished}.0\n'
        f'vllm:request_success_total{{{labels},finished_reason="length"}} 2.0\n'
        f"# TYPE vllm:request_success_created gauge\n"
        f'vllm:request_success_created{{{labels},finished_reason="stop"}} 1.7e+09\n'
    )


class Server:
    """Answers with ``text``; None: does not answer."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.asked: list[str] = []
        self.read = threading.Semaphore(0)

    def __call__(self, url: str, *, timeout_s: float) -> str:
        self.asked.append(url)
        self.read.release()
        if self.text is None:
            raise Unreachable(f"{url} does not answer: refused")
        return self.text


def test_finished_requests_are_summed_over_their_reasons() -> None:
    assert parse_finished(metrics(5, 1)) == 7
    assert parse_finished(metrics(5, 1).replace("vllm:", "ray_vllm_")) == 7


def test_the_mock_server_counts_as_vllm_does() -> None:
    counted = MockMetrics(Batch(MockConfig(kind="mock")), model="m")
    assert parse_finished(counted.render()) == 0
    for reason in ("length", "abort"):
        counted.finish(reason, after_s=0.1)
    assert parse_finished(counted.render()) == 2


def test_a_server_without_the_counter_is_told_by_name() -> None:
    with pytest.raises(MetricMissing, match="vllm:request_success_total is not in /metrics"):
        parse_finished(metrics(5, 1).replace("request_success", "request_done"))


def test_arrivals_are_what_was_added_since_the_first_look() -> None:
    server = Server(metrics(1000, 3))
    probe = CountingProbe("http://a/metrics", timeout_s=1.0, fetch=server)
    assert probe.counts() is None
    seen = []
    for finished, running, waiting in (
        (1000, 3, 0),  # a server that has been up for long: nothing arrived since
        (1002, 3, 1),  # two finished, one more is held
        (1002, 2, 1),  # its user gave one up: nobody arrived
        (1002, 3, 1),  # somebody did
        (5, 2, 0),  # started anew: five (and two by another reason) finished, two held
    ):
        server.text = metrics(finished, running, waiting)
        (gauges,) = probe.read()
        counts = probe.counts()
        assert counts is not None
        assert counts.in_flight == gauges.running + gauges.waiting
        seen.append(counts.scheduled_so_far)
    assert seen == [0, 3, 3, 4, 4 + 9]
    assert set(server.asked) == {"http://a/metrics"}


def test_the_servers_root_is_as_good_as_its_metrics() -> None:
    server = Server(metrics(1, 0))
    CountingProbe("http://a/", timeout_s=1.0, fetch=server).read()
    assert server.asked == ["http://a/metrics"]


def test_a_server_that_does_not_answer_is_unknown() -> None:
    probe = CountingProbe("http://a", timeout_s=1.0, fetch=Server(None))
    with pytest.raises(ProbeFailed, match="http://a/metrics does not answer"):
        probe.read()
    assert probe.counts() is None


@pytest.fixture
def telemetry_of() -> Iterator[list[ServerTelemetry]]:
    made: list[ServerTelemetry] = []
    yield made
    for telemetry in made:
        telemetry.stop()


def test_it_reads_in_a_thread_of_its_own_and_grows_blind(
    telemetry_of: list[ServerTelemetry],
) -> None:
    clock, server = MonotonicClock(), Server(metrics(1, 4))
    config = TelemetryConfig(
        interval_s=0.01,
        max_age_s=0.2,
        serving_full_requests=10,
        network_full_bytes_per_s=1e9,
        checkpoint_full_bytes_per_s=1e9,
    )
    telemetry = ServerTelemetry(
        config, url="http://a", zero_monotonic_s=clock.now_s(), fetch=server
    )
    telemetry_of.append(telemetry)
    for _ in range(3):
        assert server.read.acquire(timeout=LIMIT_S)
    known = telemetry.read()
    assert known.telemetry.serving == 0.4
    assert (known.load.in_flight, known.load.scheduled_so_far) == (4, 0)
    server.text = None
    deadline_s = clock.now_s() + LIMIT_S
    while telemetry.read().telemetry.serving is not None:
        assert server.read.acquire(timeout=LIMIT_S)
        assert clock.now_s() < deadline_s
    assert telemetry.read().load is None
    assert telemetry.drain_rows()[0]["serving"] == 0.4


@pytest.mark.parametrize("bad", ["NaN", "+Inf"])
@pytest.mark.parametrize("name", ["num_requests_running", "kv_cache_usage_perc", "request_success"])
def test_a_number_that_says_nothing_is_unknown_and_does_not_end_the_reading(
    name: str, bad: str
) -> None:
    lines = metrics(5, 1).splitlines()
    broken = [
        f"{line.rpartition(' ')[0]} {bad}" if line.startswith(f"vllm:{name}") else line
        for line in lines
    ]
    server = Server("\n".join(broken) + "\n")
    probe = CountingProbe("http://a", timeout_s=1.0, fetch=server)
    with pytest.raises(ProbeFailed):
        probe.read()
    assert probe.counts() is None
    server.text = metrics(5, 1)
    probe.read()
    assert probe.counts() is not None


def test_a_server_that_speaks_no_http_is_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ProbeFailed, match="does not answer"):
            CountingProbe(url, timeout_s=LIMIT_S).read()
        thread.join(LIMIT_S)
