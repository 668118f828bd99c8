"""Gate, redecide and report read the folders of a replay like those of a live run."""

from pathlib import Path

import pytest

from orchestrator.calibration.verdict import Status
from orchestrator.finish import write_outputs
from orchestrator.judge import judge_study
from orchestrator.redecide import redecide
from orchestrator.replay.folders import write_folders
from orchestrator.replay.scale import ReplayJob
from orchestrator.rundir import read_study, write_study
from tests.replaying import PLANT, replay_study

STUDY = replay_study(
    horizon_s=40.0,
    corridor={"budget_merges": 3},
    seeds=[0, 1],
    judge=["wa_ewma"],
    gate={"max_no_sync_violation_fraction": 0.2},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs") / "synthetic-replay"
    write_study(made, STUDY)
    written = write_folders(ReplayJob(study=STUDY, plant=PLANT, study_dir=Path(), arms=None), made)
    assert written == 18
    return made


@pytest.mark.slow
def test_the_gate_judges_replayed_folders_and_makes_no_claim(folder: Path) -> None:
    judgement = judge_study(folder)
    assert (judgement.source, judgement.engine) == ("replay", "model")
    for verdict in judgement.verdicts:
        by_name = {c.name: c for c in verdict.conditions}
        assert by_name["run_validity"].status is Status.MET, by_name["run_validity"].why
        assert by_name["exposure_match"].status is Status.MET, by_name["exposure_match"].why
        assert by_name["load_match"].status is Status.NOT_ASSESSABLE  # two seeds
        assert verdict.tier is None


@pytest.mark.slow
def test_every_decision_of_a_replay_is_decided_again_bit_for_bit(folder: Path) -> None:
    _, records = read_study(folder)
    checked = [redecide(record) for record in records]
    assert len(checked) == 18
    assert [c.mismatches for c in checked] == [0] * 18
    assert all(c.decisions == 40 for c in checked)


@pytest.mark.slow
def test_a_replay_is_reported_as_simulated(folder: Path) -> None:
    _, paths = write_outputs(folder)
    assert all(path.stat().st_size > 0 for path in paths)
    assert "replay" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_complete_folders_stay_and_another_study_is_refused(folder: Path) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("*/events.jsonl")}
    job = ReplayJob(study=STUDY, plant=PLANT, study_dir=Path(), arms=None)
    write_folders(job, folder)
    assert stamps == {path: path.stat().st_mtime_ns for path in folder.glob("*/events.jsonl")}
    longer = STUDY.model_copy(update={"warmup_s": 4.0})
    with pytest.raises(ValueError, match="refused"):
        write_folders(ReplayJob(study=longer, plant=PLANT, study_dir=Path(), arms=None), folder)
