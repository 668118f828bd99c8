"""The Ray shell: what ends the actor's process ends the server, however it is ended."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.config import SidecarsConfig
from actors.serving.engine import ServerFailed
from actors.serving.refresh import RefreshRefused
from tests.actors.serving.exported_folder import export

ray = pytest.importorskip("ray")
sidecar_actor = pytest.importorskip("actors.serving.sidecar_actor")

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default::ResourceWarning")]
ANSWER_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def actor(tmp_path: Path) -> Callable[..., Any]:
    def make(**engine: Any) -> Any:
        config = {"count": 1, "engine": {"kind": "mock"} | engine}
        sidecars = SidecarsConfig.model_validate_json(json.dumps(config))
        return sidecar_actor.SidecarActor.options(num_cpus=0).remote(sidecars, 0, str(tmp_path))

    return make


def started(handle: Any, watch: Any) -> tuple[Any, Any]:
    info = ray.get(handle.start.remote(), timeout=ANSWER_S)
    server = psutil.Process(info.pid)
    guards = [parent.pid for parent in server.parents()[:2]]
    return info, watch([info.pid, *guards])


def test_the_methods_of_the_contract(actor: Any, watch: Any) -> None:
    handle = actor()
    assert ray.get(handle.clock_probe.remote(), timeout=ANSWER_S).monotonic_s > 0
    info, tree = started(handle, watch)
    assert (info.engine, info.sidecar) == ("mock", 0)
    assert info.url.startswith("http://127.0.0.1:")  # one node: not open to the network
    assert ray.get(handle.alive.remote(), timeout=ANSWER_S) is None
    ray.get(handle.wait_idle.remote(5.0), timeout=ANSWER_S)
    ray.get(handle.mark_merge.remote(True), timeout=ANSWER_S)
    ray.get(handle.stop.remote(), timeout=ANSWER_S)
    assert tree.all_gone(0)
    ray.kill(handle)


@pytest.mark.parametrize("how", ["ray.kill", "SIGKILL"])
def test_a_killed_actor_takes_its_server_with_it(actor: Any, watch: Any, how: str) -> None:
    handle = actor()
    info, tree = started(handle, watch)
    if how == "ray.kill":
        ray.kill(handle)
    else:
        os.kill(psutil.Process(info.pid).parents()[2].pid, signal.SIGKILL)
    assert tree.all_gone()


def test_weights_reach_the_server_and_refusals_come_back(tmp_path: Path) -> None:
    raw = {"count": 1, "engine": {"kind": "mock"}, "refresh": {"kind": "in_place"}}
    config = SidecarsConfig.model_validate_json(json.dumps(raw))
    handle = sidecar_actor.SidecarActor.options(num_cpus=0).remote(config, 0, str(tmp_path))
    zero, one = (str(export(tmp_path / "served", round_)) for round_ in (0, 1))
    ray.get(handle.start.remote(zero), timeout=ANSWER_S)
    done = ray.get(handle.refresh.remote(one, 1), timeout=ANSWER_S)
    assert (done.kind, done.round, done.proof.conclusive) == ("in_place", 1, True)
    with pytest.raises(RefreshRefused, match="of round 0, not of 2"):
        ray.get(handle.refresh.remote(zero, 2), timeout=ANSWER_S)
    assert ray.get(handle.restart.remote(zero, 0), timeout=ANSWER_S).kind == "restart"
    ray.get(handle.stop.remote(), timeout=ANSWER_S)
    ray.kill(handle)


def test_failures_cross_the_boundary_as_themselves(actor: Any) -> None:
    handle = actor(start_timeout_s=0.01)
    with pytest.raises(ServerFailed, match=r"(?s)sidecar 0: the server at .* not ready"):
        ray.get(handle.start.remote(), timeout=ANSWER_S)
    ray.kill(handle)
