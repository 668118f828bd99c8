"""`lull replay` spread over Ray: killed and started again, on two nodes, always the same bytes."""

import json
import signal
from pathlib import Path

import pytest

pytest.importorskip("ray")

from ray.cluster_utils import Cluster

from tests.cluster.studies import ROOT, Lull, wait_for
from tests.replaying import ARMS, PLANT, replay_study

pytestmark = pytest.mark.ray
SEEDS = 700


def parts(out: Path) -> int:
    return len(list((out / "synthetic-replay" / "replay.parts").glob("*.parquet")))


def written(folder: Path) -> tuple[str, ...]:
    """A study and a plant on disk, as arguments."""
    study, plant = folder / "study.yaml", folder / "plant.json"
    study.write_text(json.dumps(replay_study(arms=ARMS[:2] + ARMS[3:5]).model_dump(mode="json")))
    plant.write_text(PLANT.model_dump_json())
    return str(study), "--plant", str(plant)


def table(out: Path) -> bytes:
    return (out / "synthetic-replay" / "replay.parquet").read_bytes()


def test_a_replay_that_was_killed_goes_on_and_no_bit_depends_on_the_processes(
    lull: Lull, tmp_path: Path
) -> None:
    args = ("replay", *written(tmp_path), "--replicates", str(SEEDS))
    alone, spread = tmp_path / "alone", tmp_path / "spread"

    driver = lull.start(*args, "--out", str(spread), "--workers", "2")
    wait_for(lambda: parts(spread) >= 2, limit_s=120.0, what="two finished batches")
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    kept = parts(spread)
    assert kept >= 2
    assert not (spread / "synthetic-replay" / "replay.parquet").exists()

    code, _ = lull(*args, "--out", str(spread), "--workers", "2")
    assert code == 0
    code, _ = lull(*args, "--out", str(alone), "--workers", "1")
    assert code == 0
    assert table(alone) == table(spread)


@pytest.mark.slow
def test_a_cluster_of_two_nodes_gives_the_same_bytes(
    lull: Lull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the nodes' workers
    args = ("replay", *written(tmp_path), "--replicates", "200")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        lull.env["RAY_ADDRESS"] = cluster.address
        code, output = lull(*args, "--out", str(tmp_path / "two"))
    finally:
        cluster.shutdown()
    assert code == 0, output
    lull.env["RAY_ADDRESS"] = "local"
    assert lull(*args, "--out", str(tmp_path / "one"), "--workers", "1")[0] == 0
    assert table(tmp_path / "two") == table(tmp_path / "one")
