"""The Ray shell of the telemetry: blind without a server, restarted for each arm."""

import time
from collections.abc import Iterator

import pytest

from actors.config import TelemetryConfig

ray = pytest.importorskip("ray")
sampler_actor = pytest.importorskip("actors.telemetry.sampler_actor")

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default::ResourceWarning")]
ANSWER_S = 60.0
CONFIG = TelemetryConfig(
    interval_s=0.05,
    max_age_s=3.0,
    serving_full_requests=10,
    network_full_bytes_per_s=1e9,
    checkpoint_full_bytes_per_s=1e9,
)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def test_without_a_server_it_is_blind_and_says_why() -> None:
    actor = sampler_actor.TelemetryActor.options(num_cpus=0).remote(
        CONFIG, ["http://127.0.0.1:1"], [16]
    )
    assert ray.get(actor.latest.remote(), timeout=ANSWER_S).serving is None
    assert ray.get(actor.drain_rows.remote(), timeout=ANSWER_S) == []
    for zero_s in (time.monotonic(), time.monotonic() + 100.0):  # two arms
        ray.get(actor.start.remote(zero_s), timeout=ANSWER_S)
        deadline_s = time.monotonic() + ANSWER_S
        while ray.get(actor.latest.remote(), timeout=ANSWER_S).network is None:
            assert time.monotonic() < deadline_s, "no second round of probes"
        got = ray.get(actor.latest.remote(), timeout=ANSWER_S)
        assert got.serving is None
        assert "http://127.0.0.1:1/metrics" in got.error
    ray.get(actor.stop.remote(), timeout=ANSWER_S)
    rows = ray.get(actor.drain_rows.remote(), timeout=ANSWER_S)
    assert len(rows) >= 2
    assert all(row["blind"] and row["at_s"] < 0 for row in rows)  # of the second arm alone
    last = ray.get(actor.latest.remote(), timeout=ANSWER_S)
    assert last.at_monotonic_s > 0
