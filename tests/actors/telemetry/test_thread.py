"""The sampling thread against a real /metrics over HTTP, in this process."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from actors.config import TelemetryConfig
from actors.telemetry.sampler import SamplerThread

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_running{engine="1"} 1
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 1
vllm:num_requests_waiting{engine="1"} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.1
"""


class Server(ThreadingHTTPServer):
    """Counts polls; ``polled`` is set at the third, when a rate is known as well."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.polls = 0
        self.polled = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        assert self.path == "/metrics"
        body = METRICS.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.polls += 1
        if self.server.polls == 3:
            self.server.polled.set()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_thread_samples_a_server_over_http_until_stopped(server: Server) -> None:
    config = TelemetryConfig(
        interval_s=0.02,
        max_age_s=60.0,
        serving_full_requests=10,
        network_full_bytes_per_s=1e9,
        checkpoint_full_bytes_per_s=1e9,
    )
    url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = SamplerThread(config, urls=[url], zero_monotonic_s=0.0)
    try:
        assert server.polled.wait(timeout=30)
        got = thread.sampler.latest()
    finally:
        thread.stop()
    assert (got.serving, got.running, got.waiting) == (0.5, 4, 1)  # summed over engines
    assert got.network is not None
    rows = thread.sampler.drain_rows()
    assert len(rows) >= 2
    assert rows[0]["network"] is None  # the first read of a counter has no rate
    polls = server.polls
    thread.stop()  # twice is harmless
    assert server.polls == polls
