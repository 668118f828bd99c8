"""A sidecar on the mock engine: start, health, idleness, faults, attaching, and a clean end."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.config import SidecarsConfig
from actors.serving.engine import ServerBusy, ServerFailed
from actors.serving.http import Unreachable, get_json, get_text, post_json
from actors.serving.metrics import MetricMissing
from actors.serving.sidecar import Sidecar, SidecarInfo, check_engine

pytestmark = pytest.mark.slow  # whole processes, which start and end in their own time

Configs = Callable[..., SidecarsConfig]
REQUEST = {"prompt": [1, 2, 3], "max_tokens": 4, "min_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sidecar")


@pytest.fixture(scope="module")
def running(module_folder: Path) -> Iterator[tuple[Sidecar, SidecarInfo]]:
    """One sidecar for the tests that leave it well."""
    config = SidecarsConfig.model_validate_json('{"count": 1, "engine": {"kind": "mock"}}')
    sidecar = Sidecar(config, 0, module_folder)
    yield sidecar, sidecar.start()
    sidecar.stop()


@pytest.fixture
def sidecar(sidecars: Configs, tmp_path: Path) -> Iterator[Sidecar]:
    """One of a test's own, to break."""
    made = Sidecar(sidecars(kind="mock"), 3, tmp_path)
    yield made
    made.stop()


def test_it_says_what_runs_where(running: tuple[Sidecar, SidecarInfo]) -> None:
    sidecar, info = running
    assert (info.sidecar, info.engine, info.engine_version) == (0, "mock", "mock-1")
    assert info.pid is not None
    assert "actors.serving.mock_server" in psutil.Process(info.pid).cmdline()
    assert get_json(f"{info.url}/v1/models")["data"][0]["id"] == info.model
    assert sidecar.alive() is None


def test_idle_is_when_no_request_is_in_the_system(running: tuple[Sidecar, SidecarInfo]) -> None:
    sidecar, info = running
    sidecar.wait_idle(5.0)
    post_json(f"{info.url}/mock/fault", {"kind": "stall", "duration_s": 0.5})
    request = threading.Thread(target=post_json, args=(f"{info.url}/v1/completions", REQUEST))
    request.start()
    while 'running{engine="0",model_name="mock"} 0' in get_text(f"{info.url}/metrics"):
        if not request.is_alive():
            break
    with pytest.raises(ServerBusy, match=r"running and .* waiting after 0 s"):
        sidecar.wait_idle(0.0)
    sidecar.wait_idle(20.0)
    request.join()


def test_a_merge_mark_reaches_the_server(running: tuple[Sidecar, SidecarInfo]) -> None:
    sidecar, _ = running
    sidecar.mark_merge(True)
    sidecar.mark_merge(False)
    assert sidecar.alive() is None


def with_guards(info: SidecarInfo) -> list[int]:
    assert info.pid is not None
    parents = psutil.Process(info.pid).parents()
    return [info.pid, parents[0].pid, parents[1].pid]


def test_stop_leaves_no_process_and_no_port(sidecar: Sidecar, watch: Any) -> None:
    info = sidecar.start()
    tree = watch(with_guards(info))
    sidecar.stop()
    assert tree.all_gone(0)
    with pytest.raises(Unreachable):
        get_text(f"{info.url}/health")
    sidecar.stop()
    with pytest.raises(ServerFailed, match="not started"):
        sidecar.wait_idle(1.0)


def test_a_server_that_dies_is_told_with_its_last_line_and_may_start_again(
    sidecar: Sidecar, watch: Any
) -> None:
    info = sidecar.start()
    tree = watch(with_guards(info))
    with pytest.raises(Unreachable):
        post_json(f"{info.url}/mock/fault", {"kind": "die", "exit_code": 9})
    assert tree.all_gone()
    why = sidecar.alive()
    assert why is not None
    assert why.startswith("sidecar 3: the server ended: exit code 9")
    assert "told to die with exit code 9" in why
    sidecar.stop()
    assert sidecar.start().pid != info.pid
    assert sidecar.alive() is None


def test_a_port_in_use_is_named_before_anything_starts(
    running: tuple[Sidecar, SidecarInfo], sidecars: Configs, tmp_path: Path
) -> None:
    port = int(running[1].url.rpartition(":")[2])
    before = psutil.Process().children(recursive=True)
    with pytest.raises(ValueError, match=f"port {port} is in use"):
        Sidecar(sidecars(kind="mock", port=port), 1, tmp_path).start()
    assert psutil.Process().children(recursive=True) == before
    assert not list(tmp_path.iterdir())


def test_several_sidecars_cannot_share_a_port(sidecars: Configs) -> None:
    config = sidecars(count=2, kind="mock", port=18_000)
    with pytest.raises(ValueError, match=r"port=18000 with sidecars\.count=2"):
        check_engine(config.engine, sidecars=config.count)


def attach(sidecars: Configs, folder: Path, url: str, **changes: Any) -> Sidecar:
    engine = {"kind": "attach", "url": url, "max_model_len_tokens": 1024, "max_num_seqs": 16}
    return Sidecar(sidecars(**(engine | changes)), 0, folder)


def test_an_attached_mock_is_called_a_mock_and_survives_the_stop(
    running: tuple[Sidecar, SidecarInfo], sidecars: Configs, tmp_path: Path
) -> None:
    url = running[1].url
    sidecar = attach(sidecars, tmp_path, url + "/")
    info = sidecar.start()
    assert (info.url, info.engine, info.model, info.pid) == (url, "mock", "mock", None)
    sidecar.wait_idle(5.0)
    sidecar.mark_merge(True)
    sidecar.stop()
    assert running[0].alive() is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "other"}, "'other' is not served"),
        ({"max_model_len_tokens": 4096}, "4096 is above the 1024"),
        ({"url": "localhost:8000"}, "no http:// or https:// URL"),
    ],
)
def test_attaching_to_what_the_study_does_not_expect_is_refused(
    running: tuple[Sidecar, SidecarInfo],
    sidecars: Configs,
    tmp_path: Path,
    changes: dict[str, Any],
    why: str,
) -> None:
    with pytest.raises(ValueError, match=why):
        attach(sidecars, tmp_path, **({"url": running[1].url} | changes)).start()


def test_attaching_to_nothing_names_the_url(sidecars: Configs, tmp_path: Path) -> None:
    sidecar = attach(sidecars, tmp_path, "http://127.0.0.1:9")
    with pytest.raises(ServerFailed, match=r"127\.0\.0\.1:9/health does not answer"):
        sidecar.start()


def test_a_metric_that_is_missing_at_the_start_is_named(
    sidecar: Sidecar, sidecars: Configs, tmp_path: Path
) -> None:
    url = sidecar.start().url
    name = "vllm:kv_cache_usage_perc"
    fault = {"kind": "rename_metric", "metric": name, "to": "vllm:cache_usage_now"}
    post_json(f"{url}/mock/fault", fault)
    with pytest.raises(MetricMissing, match=r"sidecar 0: metric .*kv_cache_usage_perc") as caught:
        attach(sidecars, tmp_path, url).start()
    assert "mock-1" in str(caught.value)
    assert "vllm:cache_usage_now" in str(caught.value)


def test_a_missing_model_folder_is_named_before_anything_starts(
    sidecars: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.serving.vllm_engine.version", lambda _name: "0.33.0")
    model = str(tmp_path / "missing")
    config = sidecars(kind="vllm", model=model, max_model_len_tokens=64, max_num_seqs=1)
    with pytest.raises(ValueError, match="missing': no such folder"):
        Sidecar(config, 0, tmp_path).start()
    assert not list(tmp_path.iterdir())
