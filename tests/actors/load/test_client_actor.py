"""The Ray shell of the load: questions are answered while a run goes on."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from actors.config import ClientConfig
from actors.load.client import LoadFailed
from actors.load.request import Outcome

ray = pytest.importorskip("ray")
client_actor = pytest.importorskip("actors.load.client_actor")

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default::ResourceWarning")]
ANSWER_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def test_a_run_is_asked_and_aborted_from_outside(make_request: Any) -> None:
    actor = client_actor.LoadActor.options(num_cpus=0).remote(ClientConfig())
    assert ray.get(actor.clock_probe.remote(), timeout=ANSWER_S).monotonic_s > 0
    requests = [make_request(0), make_request(1, at_s=3600.0)]
    refused = "http://127.0.0.1:1"  # nobody listens at port 1
    assert ray.get(actor.prepare.remote(requests, [refused], ["m"]), timeout=ANSWER_S) == 2
    with pytest.raises(LoadFailed, match="1 of 1 warm-up requests failed"):
        ray.get(actor.warm_up.remote(1), timeout=ANSWER_S)
    run = actor.run.remote(time.monotonic())
    deadline_s = time.monotonic() + ANSWER_S
    while ray.get(actor.snapshot.remote(), timeout=ANSWER_S).finished < 1:
        assert time.monotonic() < deadline_s, "the first request got no row"
    seen = ray.get(actor.snapshot.remote(), timeout=ANSWER_S)
    assert (seen.scheduled_so_far, seen.sent, seen.failed, seen.in_flight) == (1, 1, 1, 0)
    ray.get(actor.abort.remote("interrupted"), timeout=ANSWER_S)
    ray.get(run, timeout=ANSWER_S)
    rows = ray.get(actor.drain_rows.remote(), timeout=ANSWER_S)
    assert [r.outcome for r in rows] == [Outcome.CONNECTION_ERROR, Outcome.NOT_SENT]
    assert ray.get(actor.drain_rows.remote(), timeout=ANSWER_S) == []
