"""`lull run` with clock: steps: what cannot be used is one line and exit code 2."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import StudyConfig
from orchestrator.rundir import write_study
from orchestrator.training.command import resumed_study
from tests.cluster.studies import write_study as write_yaml

Say = Callable[..., tuple[int, str, str]]
MakeStudy = Callable[..., StudyConfig]
PROBES = {"gate": {"kind": "pressure_gate", "pressure_threshold": 0.3}}
WALL = "was measured on the wall clock, where an arm that was cut cannot go on in its middle"


def refused(lull: Say, *args: str) -> str:
    code, out, err = lull(*args)
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1, err
    return err


def test_a_folder_is_gone_on_with_only_when_asked(lull: Say, tmp_path: Path) -> None:
    assert "is a folder; give a study YAML, or --resume" in refused(lull, "run", str(tmp_path))


def test_a_folder_that_is_neither_run_nor_study_is_refused(lull: Say, tmp_path: Path) -> None:
    assert "is neither a run nor a study folder" in refused(lull, "run", str(tmp_path), "--resume")


def test_a_study_of_the_wall_clock_cannot_go_on_in_the_middle_of_an_arm(
    lull: Say, make_study_dir: Callable[..., Path]
) -> None:
    folder = make_study_dir(seeds=[0])
    run = next(folder.glob("wa_ewma-s0-*"))
    for place in (folder, run):
        assert WALL in refused(lull, "run", "--resume", str(place))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clock": "steps", "policies": PROBES, "arms": [{"kind": "no_sync"}], "judge": []},
         "policy 'gate', which looks at the serving machine's probes"),
        ({"clock": "steps", "islands__step_interval_s": 0.0}, "step_interval_s=0: a tick"),
        ({"arms": [{"kind": "no_sync"}, {"kind": "data_parallel"}]}, "arms[1] is data_parallel"),
        ({"clock": "steps", "corridor__budget_merges": 9}, "budget_merges=9 does not fit"),
        ({"clock": "steps", "training": {"validate": 1}}, "training.validate"),
    ],
    ids=["probes", "no pace", "yardstick", "budget", "typo"],
)  # fmt: skip
def test_a_study_that_cannot_run_is_refused(
    lull: Say, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    study = write_yaml(tmp_path, **changes)
    out = tmp_path / "runs"
    assert said in refused(lull, "run", str(study), "--out", str(out))
    assert not out.exists()


def test_text_that_is_too_short_is_told_before_an_island_starts(lull: Say, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("too short")
    data = {"source": "folder", "folder": str(text)}
    study = write_yaml(tmp_path, clock="steps", islands__data=data)
    assert "islands.data: " in refused(lull, "run", str(study), "--out", str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    code, _, said = lull("plan", str(study))
    assert (code, "islands.data: " in said) == (2, True)


def test_a_model_that_is_none_is_told_under_its_own_key(lull: Say, tmp_path: Path) -> None:
    model = {"kind": "hf", "path": str(tmp_path)}
    study = write_yaml(tmp_path, clock="steps", islands__model=model)
    code, _, said = lull("plan", str(study))
    assert code == 2
    assert "islands.model.path=" in said
    assert "holds no config.json" in said
    (tmp_path / "config.json").write_text('{"vocab_size": 300}')
    code, _, said = lull("plan", str(study))
    assert code == 2
    assert "holds no weights" in said


@pytest.mark.parametrize("clock", ["steps", "wall"])
def test_files_that_nothing_is_trained_on_are_told(lull: Say, tmp_path: Path, clock: str) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("some text " * 20_000)
    (text / "b.bin").write_bytes(b"\xff\xfe\0")
    data = {"source": "folder", "folder": str(text)}
    code, said, err = lull("plan", str(write_yaml(tmp_path, clock=clock, islands__data=data)))
    assert (code, err) == (0, "")
    assert "islands.data: passed over, for they hold no UTF-8 text: 1 (b.bin)" in said


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"at": "inner_step", "step": 50_000}, "faults[0].step=50000: an island makes"),
        ({"at": "reduce", "round": 99}, "faults[0].round=99: the last merge"),
    ],
)
def test_a_planned_fault_that_cannot_happen_is_refused(
    lull: Say, tmp_path: Path, fault: dict[str, Any], said: str
) -> None:
    fault |= {"island": 0, "do": "kill"}
    study = write_yaml(tmp_path, clock="steps", islands__faults=[fault])
    code, _, err = lull("plan", str(study))
    assert code == 2
    assert said in err


def test_a_claim_that_nothing_could_license_is_refused(lull: Say, tmp_path: Path) -> None:
    study = write_yaml(tmp_path, clock="steps")
    said = refused(lull, "run", str(study), "--require", "pass", "--out", str(tmp_path / "runs"))
    assert "nothing is judged" in said


def test_a_study_that_was_never_begun_cannot_be_resumed(lull: Say, tmp_path: Path) -> None:
    study = write_yaml(tmp_path, clock="steps")
    said = refused(lull, "run", str(study), "--resume", "--out", str(tmp_path / "runs"))
    assert "tiny: holds no study to resume" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["gate", "report"])
def test_what_was_trained_on_the_step_clock_is_not_judged(
    lull: Say, tmp_path: Path, make_study: MakeStudy, command: str
) -> None:
    write_study(tmp_path, make_study(clock="steps"))
    (tmp_path / "every-s0-000000000000").mkdir()
    (tmp_path / "every-s0-000000000000" / "config.json").write_text("{}")
    assert "was trained on the step clock" in refused(lull, command, str(tmp_path))


def test_a_study_or_one_of_its_runs_is_found_by_its_folder(
    tmp_path: Path, make_study: MakeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_dir, source = tmp_path / "runs" / "s", tmp_path / "studies"
    study = make_study(clock="steps")
    write_study(study_dir, study)
    (study_dir / "source.json").write_text(json.dumps({"folder": str(source)}))
    run = study_dir / "every-s0-000000000000"
    run.mkdir()
    (run / "config.json").write_text("{}")
    assert resumed_study(study_dir) == (study, study_dir, source, None)
    assert resumed_study(run) == (study, study_dir, source, run)
    monkeypatch.chdir(run)
    assert resumed_study(Path()) == (study, study_dir, source, run)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "source.json: cannot be read"), ("[]", "does not say where the study's YAML lay")],
)
def test_a_study_whose_source_is_not_known_is_refused(
    lull: Say, tmp_path: Path, make_study: MakeStudy, content: str | None, said: str
) -> None:
    write_study(tmp_path, make_study(clock="steps"))
    if content is not None:
        (tmp_path / "source.json").write_text(content)
    assert said in refused(lull, "run", "--resume", str(tmp_path))
