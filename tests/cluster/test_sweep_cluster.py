"""How a sweep's workers get the code: uploaded from a checkout, when it is small enough."""

from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster

from orchestrator.cluster import sweep_cluster
from orchestrator.cluster.sweep_cluster import code_env, connected
from orchestrator.endings import StageFailed

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_checkout_is_uploaded_a_job_and_an_installed_package_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    assert code_env(tmp_path, say=said.append) is None  # no pyproject.toml: site-packages
    (tmp_path / "pyproject.toml").write_text("x" * 1024**2)
    assert code_env(tmp_path, say=said.append) == {"working_dir": str(tmp_path)}
    assert said == ["uploading 1.0 MiB of code to the cluster"]
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert code_env(tmp_path, say=said.append) is None


def test_a_checkout_too_large_to_upload_is_refused_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    (tmp_path / "pyproject.toml").touch()
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(101 * 1024**2)
    with pytest.raises(ValueError, match=r"above the limit.*weights\.bin 101\.0 MiB"):
        code_env(tmp_path, say=lambda _line: None)


def test_a_dead_address_is_told_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with (
        pytest.raises(StageFailed, match="no Ray cluster answers there"),
        connected(None, say=lambda _line: None),
    ):
        pass


def test_workers_of_an_attached_cluster_run_the_uploaded_code(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    said: list[str] = []

    @ray.remote(num_cpus=1)
    def where() -> str:
        import orchestrator.sweep.here as module

        return str(module.__file__)

    try:
        with connected(None, say=said.append):
            found = ray.get(where.remote(), timeout=120)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert said[0].startswith("uploading ")
    assert found.endswith("orchestrator/sweep/here.py")
    assert Path(found).parents[2] != checkout
    assert sweep_cluster.python_path().startswith(str(checkout))
