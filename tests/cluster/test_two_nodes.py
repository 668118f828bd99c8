"""Placement on a cluster of two Ray nodes on this machine: bundles land as the config says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("torch")

from ray.cluster_utils import Cluster

from orchestrator.cluster.nodes import cluster_nodes
from orchestrator.cluster.stage import Stage
from orchestrator.config import StudyConfig
from orchestrator.study import load_study
from tests.cluster.studies import write_study

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1})
    made.add_node(num_cpus=2, num_gpus=1)  # logical GPUs: nothing here uses a device
    ray.init(address=made.address, namespace="lull", log_to_driver=False)
    yield
    ray.shutdown()
    made.shutdown()


def study(folder: Path, placement: str, island_cpus: float) -> StudyConfig:
    path = write_study(folder, islands__num_cpus=island_cpus, sidecars__num_cpus=0.5)
    made = load_study(path)
    resources = made.resources.model_copy(update={"placement": placement})
    return made.model_copy(update={"resources": resources})


def node_of(actor: Any) -> str:
    def ask(_: Any) -> str:
        node: str = ray.get_runtime_context().get_node_id()
        return node

    node: str = ray.get(actor.__ray_call__.remote(ask))
    return node


@pytest.mark.usefixtures("cluster")
def test_bundles_land_as_the_config_says(tmp_path: Path) -> None:
    assert cluster_nodes() == [{"CPU": 2.0, "GPU": 1.0}] * 2
    for placement, island_cpus, nodes in (("same_node", 0.5, 1), ("spread", 1.5, 2)):
        stage = Stage(study(tmp_path, placement, island_cpus), tmp_path, say=lambda _line: None)
        try:
            stage.start()
            assert len({node_of(a) for a in stage.islands}) == nodes
            together = {node_of(stage.sidecars[0]), node_of(stage.load), node_of(stage.telemetry)}
            assert len(together) == 1
            hashes = ray.get([a.reset.remote(seed=0, checkpoint_dir=None) for a in stage.islands])
            assert len(set(hashes)) == 1
        finally:
            stage.stop()
        assert ray.util.placement_group_table() == {} or all(
            g["state"] == "REMOVED" for g in ray.util.placement_group_table().values()
        )


@pytest.mark.usefixtures("cluster")
def test_what_no_single_node_holds_is_refused_at_once(tmp_path: Path) -> None:
    stage = Stage(study(tmp_path, "same_node", 1.5), tmp_path, say=lambda _line: None)
    with pytest.raises(ValueError, match=r"CPU: 3\.5 needed, 2 present"):
        stage.start()


def with_gpus(made: StudyConfig, fraction: float) -> StudyConfig:
    islands = made.islands.model_copy(update={"num_gpus": fraction})
    sidecars = made.sidecars.model_copy(update={"num_gpus": fraction})
    return made.model_copy(update={"islands": islands, "sidecars": sidecars})


@pytest.mark.usefixtures("cluster")
def test_gpu_fractions_share_a_node_or_are_refused_or_take_two(tmp_path: Path) -> None:
    """Two islands and a sidecar at a quarter, then at a half of a GPU each."""
    for placement, fraction, nodes in (("same_node", 0.25, 1), ("pack", 0.5, 2)):
        made = with_gpus(study(tmp_path, placement, 0.5), fraction)
        stage = Stage(made, tmp_path, say=lambda _line: None)
        try:
            stage.start()
            assert len({node_of(a) for a in (*stage.islands, *stage.sidecars)}) == nodes
        finally:
            stage.stop()
    too_much = with_gpus(study(tmp_path, "same_node", 0.5), 0.5)
    with pytest.raises(ValueError, match=r"GPU: 1\.5 needed, 1 present"):
        Stage(too_much, tmp_path, say=lambda _line: None).start()
