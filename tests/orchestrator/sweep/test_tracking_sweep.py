"""A sweep in MLflow: three levels, one writer, nothing twice."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
pytest.importorskip("mlflow")

from mlflow import MlflowClient

from orchestrator.config import StudyConfig
from orchestrator.replay.calibrated import Calibration
from orchestrator.replay.config import PlantConfig
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.folder import begin, write_tables
from orchestrator.sweep.result import sweep_result
from orchestrator.tracking_sweep import track_sweep
from tests.fake_sweep import HALF_LIFE, PlaySweep

pytestmark = pytest.mark.slow
PLANT = PlantConfig(
    slots=8,
    step_base_s=0.01,
    step_per_seq_s=0.0,
    prefill_per_token_s=0.0,
    overhead_s=0.0,
    merge_factor=2.0,
)
MakeSweep = Callable[[str], Path]


@pytest.fixture
def make_sweep(
    make_study: Callable[..., StudyConfig],
    make_space: Callable[..., SpaceConfig],
    play_sweep: PlaySweep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> MakeSweep:
    """make_sweep(study name): a folder as `lull sweep` leaves it; four settings, one refused."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    space = make_space(
        parameters={HALF_LIFE: {"values": [1.0, 2.0, 4.0, -1.0]}},
        search="grid",
        tuning={"seeds": {"first": 0, "count": 2}},
    )

    def make(name: str) -> Path:
        study, folder = make_study(study=name), tmp_path / "runs" / f"{name}-sweep"
        folder.mkdir(parents=True)
        calibration = Calibration(plant=PLANT)
        ledger = begin(
            folder, study, space, calibration=calibration, study_dir=tmp_path, resume=False
        )
        progress, played = play_sweep(study, space, name=name)
        ledger.add(played.rows)
        ledger.close()
        write_tables(folder, sweep_result(study, space, progress.tried, ledger=ledger), ledger.rows)
        return folder

    return make


def runs(folder: Path, experiment: str) -> list[Any]:
    client = MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}")
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return list(client.search_runs([found.experiment_id], max_results=1000))


def test_parent_child_and_grandchild_are_linked_and_a_second_call_adds_nothing(
    make_sweep: MakeSweep,
) -> None:
    folder = make_sweep("tracked")
    first = track_sweep(folder)
    assert first.runs == 1 + 4 + 3 * 2
    by_level: dict[str, list[Any]] = {}
    for run in runs(folder, "tracked"):
        by_level.setdefault(run.data.tags["lull.level"], []).append(run)
    assert {k: len(v) for k, v in by_level.items()} == {"sweep": 1, "setting": 4, "seed": 6}
    parent = by_level["sweep"][0].info.run_id
    assert parent == first.parent_run_id
    assert {r.data.tags["mlflow.parentRunId"] for r in by_level["setting"]} == {parent}
    children = {r.info.run_id: r.data.tags["setting"] for r in by_level["setting"]}
    for run in by_level["seed"]:
        assert children[run.data.tags["mlflow.parentRunId"]] == run.data.tags["setting"]
    statuses = sorted(r.info.status for r in by_level["setting"])
    assert statuses == ["FAILED", "FINISHED", "FINISHED", "FINISHED"]
    assert by_level["sweep"][0].data.params["space.search"] == "grid"

    client = MlflowClient(tracking_uri=first.uri)
    cut_off = by_level["seed"][0].info.run_id  # as a kill in the middle of an upload leaves it
    client.update_run(cut_off, status="RUNNING")
    again = track_sweep(folder)
    assert again.parent_run_id == parent
    known = {run.info.run_id for run in runs(folder, "tracked")}
    assert len(known) == 11
    assert cut_off not in known


def test_a_sweep_that_has_not_ended_is_refused(make_sweep: MakeSweep) -> None:
    folder = make_sweep("unfinished")
    (folder / "result.json").unlink()
    with pytest.raises(ValueError, match="has not ended; --resume it first"):
        track_sweep(folder)


def _track(folder: str, answers: Any) -> None:
    answers.put(track_sweep(Path(folder)).runs)


@pytest.mark.timeout(300)  # six interpreters load mlflow at once
def test_six_processes_share_a_database_that_does_not_exist_yet(make_sweep: MakeSweep) -> None:
    """Two of them track the same sweep: still no run stands twice."""
    folders = [make_sweep(f"sweep-{i}") for i in range(5)]
    assert not (folders[0].parent / "mlflow.db").exists()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    started = [
        context.Process(target=_track, args=(str(f), answers)) for f in (*folders, folders[0])
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [p.exitcode for p in started] == [0] * 6
    assert [answers.get(timeout=5) for _ in started] == [11] * 6
    assert [len(runs(f, f"sweep-{i}")) for i, f in enumerate(folders)] == [11] * 5
