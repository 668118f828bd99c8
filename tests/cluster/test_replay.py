"""`lull replay` on a Ray of its own: killed from outside and started again, the same bytes."""

import json
import signal
from pathlib import Path

import pytest

pytest.importorskip("ray")

from tests.cluster.studies import Lull, wait_for
from tests.replaying import ARMS, PLANT, replay_study

pytestmark = pytest.mark.ray
SEEDS = 700


def parts(out: Path) -> int:
    return len(list((out / "synthetic-replay" / "replay.parts").glob("*.parquet")))


def test_a_replay_that_was_killed_goes_on_and_no_bit_depends_on_the_processes(
    lull: Lull, tmp_path: Path
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(json.dumps(replay_study(arms=ARMS[:2] + ARMS[3:5]).model_dump(mode="json")))
    plant = tmp_path / "plant.json"
    plant.write_text(PLANT.model_dump_json())
    args = ("replay", str(study), "--plant", str(plant), "--replicates", str(SEEDS))
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
    tables = [(out / "synthetic-replay" / "replay.parquet").read_bytes() for out in (alone, spread)]
    assert tables[0] == tables[1]
