"""`lull sweep` on Ray: equal to the bit to a sweep in one process, also killed and resumed."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ray = pytest.importorskip("ray")
pytest.importorskip("optuna")

from mlflow import MlflowClient
from ray import tune
from ray.cluster_utils import Cluster

from orchestrator.cluster.live_trials import live_trial
from orchestrator.cluster.nodes import cluster_nodes
from orchestrator.cluster.tuning import check_cpus, run_trials
from orchestrator.config import StudyConfig
from orchestrator.endings import StageFailed
from orchestrator.study import load_study
from orchestrator.sweep.config import SpaceConfig, load_space
from orchestrator.sweep.drive import proposer
from orchestrator.sweep.here import play_here
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.progress import Progress, State
from tests.cluster.studies import ROOT, Lull, wait_for, write_study
from tests.fake_sweep import HALF_LIFE, FakeEvaluator, plan_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]
PLANT = {
    "slots": 8,
    "step_base_s": 0.01,
    "step_per_seq_s": 0.0,
    "prefill_per_token_s": 0.0,
    "overhead_s": 0.003,
    "merge_factor": 8.0,
}
SPACE: dict[str, Any] = {
    "policy": "wa_ewma",
    "parameters": {
        HALF_LIFE: {"low": 0.1, "high": 10.0, "scale": "log"},
        "corridor.target_steps": {"values": [40, 60]},
    },
    "settings": 12,
    "seed": 0,
    "ask_at_once": 4,
    "tuning": {"seeds": {"first": 0, "count": 4}, "draws": 4, "seeds_at_once": 2},
    "judging": {"seeds": {"first": 100, "count": 4}, "draws": 9},
    "stopping": {"after_seeds": 2},
}


def write_inputs(folder: Path, **space: Any) -> tuple[Path, Path]:
    """Study, space and plant; the study is long enough for a kill to come in between."""
    study = write_study(folder, horizon_s=600.0)
    raw = yaml.safe_load(study.read_text())
    raw["corridor"] = {
        "floor_steps": 20,
        "ceiling_steps": 100,
        "target_steps": 60,
        "budget_merges": 150,
    }
    raw["arms"] = [*raw["arms"], {"kind": "placebo", "of": "wa_ewma"}]
    raw["judge"] = ["wa_ewma"]
    study.write_text(yaml.safe_dump(raw))
    (folder / "space.yaml").write_text(yaml.safe_dump({**SPACE, **space}))
    (folder / "plant.json").write_text(json.dumps(PLANT))
    return study, folder / "space.yaml"


SWEEP = ("sweep", "study.yaml", "--space", "space.yaml", "--plant", "plant.json")


def results(folder: Path) -> list[str]:
    return sorted((folder / "tiny-sweep" / "results.jsonl").read_text().splitlines())


def blocks(lines: list[str]) -> int:
    return sum('"entry": "block"' in line for line in lines)


def runs_by_level(folder: Path) -> dict[str, int]:
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    found = client.get_experiment_by_name("tiny")
    assert found is not None
    counts: dict[str, int] = {}
    for run in client.search_runs([found.experiment_id], max_results=1000):
        level = run.data.tags["lull.level"]
        counts[level] = counts.get(level, 0) + 1
    return counts


def test_a_driver_killed_half_way_is_resumed_to_equal_results(lull: Lull, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    code, said = lull(*SWEEP, "--workers", "1", "--out", "alone", "--no-track")
    assert code == 0, said
    alone = results(tmp_path / "alone")

    driver = lull.start(*SWEEP, "--workers", "2", "--out", "killed")
    ledger = tmp_path / "killed" / "tiny-sweep" / "results.jsonl"
    wait_for(
        lambda: ledger.exists() and len(ledger.read_text().splitlines()) >= len(alone) // 2,
        limit_s=150.0,
        what="half of the results",
    )
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    done = blocks(ledger.read_text().splitlines())
    assert done < blocks(alone)
    states = [p for p in (tmp_path / "killed" / "tiny-sweep" / "tune").rglob("*") if p.is_file()]
    assert states
    for path in states:  # ray#58179: what Tune wrote is cut short
        os.truncate(path, path.stat().st_size // 2)

    code, said = lull(*SWEEP, "--workers", "2", "--out", "killed")
    assert code == 2
    assert "holds a sweep; --resume goes on with it" in said
    code, said = lull(*SWEEP, "--workers", "2", "--out", "killed", "--resume")
    assert code == 0, said
    assert f"{done} blocks are known and not played again" in said
    assert results(tmp_path / "killed") == alone
    names = ("result.json", "sweep.md", "judging/load-0/replay.parquet", "response.png")
    for name in names:
        one, other = (tmp_path / x / "tiny-sweep" / name for x in ("alone", "killed"))
        assert one.read_bytes() == other.read_bytes(), name
    expected = {"sweep": 1, "setting": 12, "seed": blocks(alone)}
    assert runs_by_level(tmp_path) == expected
    code, said = lull("track", "killed/tiny-sweep")
    assert code == 0, said
    assert runs_by_level(tmp_path) == expected


class NodeEvaluator(FakeEvaluator):
    """Also notes the node that it runs on."""

    def play(self, study: StudyConfig, *, policy: str, seed: int, draws: int) -> Any:
        assert self.log is not None
        with self.log.with_suffix(".nodes").open("a") as file:
            file.write(f"{ray.get_runtime_context().get_node_id()}\n")
        return super().play(study, policy=policy, seed=seed, draws=draws)


class DyingEvaluator(FakeEvaluator):
    """Its process ends in the middle of the third run of the sweep, once."""

    def play(self, study: StudyConfig, *, policy: str, seed: int, draws: int) -> Any:
        assert self.log is not None
        died = self.log.with_suffix(".died")
        if self.log.exists() and len(self.log.read_text().splitlines()) >= 3 and not died.exists():
            died.touch()
            os._exit(1)
        return super().play(study, policy=policy, seed=seed, draws=draws)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without CPUs and two nodes of two."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=2)
    made.add_node(num_cpus=2)
    env = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(address=made.address, namespace="lull", log_to_driver=False, runtime_env=env)
    yield made
    ray.shutdown()
    made.shutdown()


def inputs(folder: Path, **space: Any) -> tuple[StudyConfig, SpaceConfig]:
    study, path = write_inputs(folder, **space)
    return load_study(study), load_space(path)


@pytest.mark.usefixtures("cluster")
def test_a_sweep_uses_every_node_and_equals_one_process(tmp_path: Path) -> None:
    study, space = inputs(tmp_path)
    one, many = (
        Ledger(tmp_path / "one.jsonl", identity="test"),
        Ledger(tmp_path / "many.jsonl", identity="test"),
    )
    here = Progress(study, space, ledger=one, proposer=proposer(study, space))
    play_here(here, plan=plan_of(study, space, one), say=lambda _line: None)
    there = Progress(study, space, ledger=many, proposer=proposer(study, space))
    plan = plan_of(study, space, many)
    plan.bench.evaluator = NodeEvaluator(log=tmp_path / "log", work_s=0.05)
    said: list[str] = []
    run_trials(there, plan=plan, storage=tmp_path / "tune", name="attempt-1", say=said.append)
    assert many.rows == one.rows
    assert [t.state for t in there.tried] == [t.state for t in here.tried]
    assert said[0] == "4 trials at once on 3 node(s)"
    assert len(said) == 1 + 12
    assert len(set((tmp_path / "log.nodes").read_text().split())) == 2
    # trial folders carry the settings' ids
    folders = {p.name for p in (tmp_path / "tune" / "attempt-1").glob("setting-*")}
    assert folders == {f"setting-{t.setting.setting}" for t in there.tried}


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_dies_costs_nothing_of_the_results(tmp_path: Path) -> None:
    study, space = inputs(tmp_path, settings=4)
    one, other = (
        Ledger(tmp_path / "one.jsonl", identity="test"),
        Ledger(tmp_path / "other.jsonl", identity="test"),
    )
    here = Progress(study, space, ledger=one, proposer=proposer(study, space))
    play_here(here, plan=plan_of(study, space, one), say=lambda _line: None)
    there = Progress(study, space, ledger=other, proposer=proposer(study, space))
    plan = plan_of(study, space, other)
    plan.bench.evaluator = DyingEvaluator(log=tmp_path / "log")
    run_trials(there, plan=plan, storage=tmp_path / "t", name="a", say=lambda _line: None)
    assert (tmp_path / "log.died").exists()
    assert other.rows == one.rows
    assert [t.state for t in there.tried] == [t.state for t in here.tried]


@pytest.mark.usefixtures("cluster")
def test_settings_that_fail_are_named_and_the_others_are_kept(tmp_path: Path) -> None:
    values = {HALF_LIFE: {"values": [1.0, 2.0, 8.0]}}
    study, space = inputs(tmp_path, parameters=values, search="grid")
    ledger = Ledger(tmp_path / "results.jsonl", identity="test")
    progress = Progress(study, space, ledger=ledger, proposer=proposer(study, space))
    plan = plan_of(study, space, ledger, fails_at_s=4.0)
    with pytest.raises(StageFailed, match=r"1 of 3 settings failed.*half_life_s=8 cannot be"):
        run_trials(progress, plan=plan, storage=tmp_path / "t", name="a", say=lambda _line: None)
    states = {t.setting.values[HALF_LIFE]: t.state for t in progress.tried}
    assert states == {1.0: State.COMPLETE, 2.0: State.COMPLETE, 8.0: State.FAILED}
    assert len(ledger.rows) == 8


@pytest.mark.usefixtures("cluster")
def test_a_cluster_without_room_is_told_in_seconds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a trial needs 1 CPU on one node.* have 0, 0\.5"):
        check_cpus([{"CPU": 0.0}, {"CPU": 0.5}])
    study, space = inputs(tmp_path, settings=1)
    limit = study.resources.model_copy(update={"ready_timeout_s": 3.0})
    study = study.model_copy(update={"resources": limit})
    ledger = Ledger(tmp_path / "results.jsonl", identity="test")
    progress = Progress(study, space, ledger=ledger, proposer=proposer(study, space))
    plan = plan_of(study, space, ledger)
    groups = [ray.util.placement_group([{"CPU": 2.0}]) for _ in range(2)]  # others hold all
    assert all(group.wait(30) for group in groups)
    began_s = time.monotonic()
    try:
        with pytest.raises(StageFailed, match=r"needs 1 free CPU.*within 3 s.*0 of 4 CPU free"):
            run_trials(progress, plan=plan, storage=tmp_path, name="a", say=lambda _line: None)
    finally:
        for group in groups:
            ray.util.remove_placement_group(group)
    assert time.monotonic() - began_s < 30.0


class FakeLiveTrial(tune.Trainable):
    """Says where it and its bundles lie, and when; the first waits for another one."""

    def setup(self, config: dict[str, Any]) -> None:
        self._began_s = time.time()
        self._meeting = Path(config["meeting"])
        (self._meeting / f"began-{config['setting']}").touch()

    def step(self) -> dict[str, Any]:
        wait_for(lambda: len(list(self._meeting.iterdir())) > 1, limit_s=60.0, what="another one")
        group = ray.util.get_current_placement_group()
        nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
        return {
            "node": ray.get_runtime_context().get_node_id(),
            "nodes": sorted(set(nodes.values())),
            "bundles": len(nodes),
            "began_s": self._began_s,
            "ended_s": time.time(),
            "done": True,
        }


@pytest.mark.usefixtures("cluster")
def test_live_trials_at_one_time_share_no_node(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path))  # 0.25 + 0.25 + 0.5 CPU, as many as four fit a node
    resources = live_trial(study, cluster_nodes(), at_once=2)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    tuner = tune.Tuner(
        tune.with_resources(FakeLiveTrial, resources),
        param_space={"setting": tune.grid_search([0, 1, 2, 3]), "meeting": str(meeting)},
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            name="live",
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    done = tuner.fit()
    found = [done[i].metrics or {} for i in range(len(done))]
    assert all(m["nodes"] == [m["node"]] for m in found)
    assert {m["bundles"] for m in found} == {5}  # trial, two islands, a sidecar, the rest
    assert len({m["node"] for m in found}) == 2
    together = [
        (a, b)
        for i, a in enumerate(found)
        for b in found[:i]
        if a["began_s"] < b["ended_s"] and b["began_s"] < a["ended_s"]
    ]
    assert together
    assert all(a["node"] != b["node"] for a, b in together)


def test_one_node_is_refused_for_live_trials_with_the_number_that_is_needed(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path))
    with pytest.raises(ValueError, match=r"2 live trials at once need 2 nodes with 3 CPU.*1 of 1"):
        live_trial(study, [{"CPU": 4.0}], at_once=2)
    spread = study.resources.model_copy(update={"placement": "spread"})
    with pytest.raises(ValueError, match="cannot be kept apart; live sweeps need placement: same"):
        live_trial(study.model_copy(update={"resources": spread}), [{"CPU": 4.0}] * 2, at_once=2)
