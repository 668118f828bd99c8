"""`lull calibrate` on the command line: a run folder, a study file measured first, errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import running
from orchestrator.replay.calibrated import load_plant
from orchestrator.replay.folders import write_folders
from orchestrator.replay.scale import ReplayJob
from orchestrator.replay.standing import plant_words
from orchestrator.rundir import write_study
from tests.orchestrator.replay.plant_world import LOAD, TRUTH
from tests.synthetic import synthetic_study

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests do not look at how good the fit is."""
    for name, value in (("STARTS", 1), ("EVALUATIONS", 2), ("POLISH", 10), ("PHASES", 1)):
        monkeypatch.setattr(f"orchestrator.replay.fit.{name}", value)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds on disk, answered by a plant; and the study file beside them."""
    folder = tmp_path_factory.mktemp("calibrate")
    study = synthetic_study(
        seeds=[0, 1],
        load=LOAD,
        horizon_s=40.0,
        islands={"num_cpus": 0.1},  # fits any machine, as `lull plan` looks
        sidecars={"num_cpus": 0.1},
    )
    write_study(folder / "synthetic", study)
    job = ReplayJob(study=study, plant=TRUTH, study_dir=folder, arms=None)
    write_folders(job, folder / "synthetic")
    (folder / "study.yaml").write_text(study.model_dump_json())
    return folder


@pytest.fixture
def runs(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "runs"))


def test_a_run_folder_becomes_a_plant_with_its_errors(lull: Say, runs: Path) -> None:
    file = runs / "plant.json"
    code, out, _ = lull("calibrate", str(runs / "synthetic"), "--out", str(file))
    assert code == 0
    made = load_plant(file)
    assert made.fitted_on is not None
    assert made.fitted_on.seeds == (0,)
    assert made.fitted_on.engine == "model"
    assert "engine=model" in out
    assert "SIMULATED: no server" in out
    assert "effect_ratio" in out
    assert "decisions: wa_ewma: " in out
    assert made.transfer is not None
    assert made.transfer.decisions[0].merges == 4


def test_json_is_the_file_and_says_where_it_is(lull: Say, runs: Path) -> None:
    file = runs / "plant.json"
    args = ("calibrate", str(runs / "synthetic"), "--fit", "seeds=1", "--out", str(file), "--json")
    code, out, _ = lull(*args)
    said = json.loads(out)
    assert code == 0
    assert said.pop("file") == str(file)
    written = json.loads(file.read_text())
    del written["sha256"]
    assert said == written
    assert said["fitted_on"]["selection"] == "seeds=1"
    assert said["fitted_on"]["by_hand"] is True
    assert "chosen by hand: --fit 'seeds=1'" in plant_words(load_plant(file))[0]


def test_runs_that_are_not_there_are_named(lull: Say, runs: Path) -> None:
    shutil.rmtree(next((runs / "synthetic").glob("wa_ewma-s1-*")))
    args = ("calibrate", str(runs / "synthetic"), "--out", str(runs / "plant.json"))
    code, _, err = lull(*args)
    assert code == 0
    assert "1 of the study's runs are not there" in err
    assert "wa_ewma seed 1" in err
    made = load_plant(runs / "plant.json")
    assert made.fitted_on is not None
    assert made.fitted_on.by_hand is False
    assert "by hand" not in plant_words(made)[0]


@pytest.mark.slow
def test_a_study_file_is_measured_first(
    lull: Say, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def measured(_: Path, __: Any, ___: Any, study_dir: Path, **options: Any) -> running.Ran:
        asked.append(study_dir)
        return running.Ran(judgement=None, whole=len(asked) == 1, interrupted=None)  # type: ignore[arg-type]

    monkeypatch.setattr(running, "run_live", measured)
    study = str(runs / "study.yaml")
    args = ("calibrate", study, "--runs", str(runs), "--out", str(runs / "plant.json"), "--json")
    code, out, _ = lull(*args)
    assert code == 0
    assert asked == [runs / "synthetic"]
    assert json.loads(out)["fitted_on"]["study"] == "synthetic"
    (runs / "plant.json").unlink()
    code, _, _ = lull(*args)  # a part failed: nothing is fitted to what is left
    assert code == 1
    assert not (runs / "plant.json").exists()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("nowhere",), "does not exist; give the folder that `lull run` printed"),
        ((".",), "is no study run (it has no study.json) and no study file"),
        (("study.yaml", "--fit", "foo"), "'foo' is no selection"),
        (("study.yaml", "--fit", "seeds=9"), "takes no run of the study, which has the seeds 0, 1"),
        (("synthetic", "--fit", "seeds=9"), "has no complete run; none of them merged"),
        (("synthetic", "--fit", f"seeds=9-{10**14}"), "has no complete run; none of them merged"),
        (("synthetic", "--fit", "arms=no_sync-*"), "merge_factor is unknown"),
        (("synthetic", "--fit", "seed 3"), "is no selection"),
        (("synthetic", "--study-dir", "nowhere"), "--study-dir nowhere: is no folder"),
    ],
)
def test_what_cannot_be_fitted_is_one_line_and_exit_2(
    lull: Say, runs: Path, args: tuple[str, ...], expected: str
) -> None:
    folder, *rest = args
    file = runs / "plant.json"
    code, _, err = lull("calibrate", str(runs / folder), *rest, "--out", str(file))
    assert code == 2
    assert expected in err
    assert err.count("\n") == 1
    assert not file.exists()


def test_a_replay_is_no_server_that_was_measured(lull: Say, runs: Path) -> None:
    (runs / "synthetic" / "replay.parquet").touch()
    code, _, err = lull("calibrate", str(runs / "synthetic"), "--out", str(runs / "plant.json"))
    assert (code, err.count("\n")) == (2, 1)
    assert "is a replay; a plant is fitted to a server that was measured" in err


@pytest.mark.parametrize("source", ["synthetic", "study.yaml"])
@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("/proc/none/p.json", "cannot be written"),
        (".", "is a folder; give the file to write in it"),
        ("study.yaml/p.json", "cannot be written"),
        ("p" * 300, "cannot be written (File name too long)"),
    ],
)
def test_an_out_that_cannot_be_written_is_said_before_the_work(
    lull: Say, runs: Path, monkeypatch: pytest.MonkeyPatch, source: str, out: str, why: str
) -> None:
    for name in ("orchestrator.running.run_live", "orchestrator.replay.calibrate.calibrate_runs"):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("the work was begun"))
    code, _, err = lull("calibrate", str(runs / source), "--out", str(runs / out))
    assert code == 2
    assert f"--out {runs / out}: {why}" in err
    assert err.count("\n") == 1


def test_the_folder_of_out_is_made(lull: Say, runs: Path) -> None:
    file = runs / "new" / "folder" / "plant.json"
    assert lull("calibrate", str(runs / "synthetic"), "--out", str(file))[0] == 0
    assert load_plant(file).fitted_on is not None
