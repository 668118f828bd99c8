"""The command line on a synthetic record: exit codes, JSON, one clear line, no traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli import main

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lull(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run one command in this process: exit code, stdout, stderr."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["lull", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    return run


COMMANDS = ["plan", "run", "gate", "report", "track", "trace", "doctor", "schema"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(lull: Say, command: str) -> None:
    code, out, _ = lull(command, "--help")
    assert code == 0
    assert f"lull {command}" in out
    assert "Example:" in out


def test_gate_recomputes_the_same_verdicts(lull: Say, make_study_dir: Callable[..., Path]) -> None:
    folder = make_study_dir()
    code, first, _ = lull("gate", str(folder), "--json")
    assert code == 0
    for path in (folder / "verdicts.json", *folder.glob("*/metrics.json")):
        path.unlink()
    code, again, _ = lull("gate", str(folder), "--json")
    assert code == 0
    assert json.loads(first) == json.loads(again)
    assert json.loads(again)["verdicts"]


def test_require_pass_is_exit_code_one(lull: Say, make_study_dir: Callable[..., Path]) -> None:
    code, _, err = lull("gate", str(make_study_dir()), "--require", "pass")
    assert code == 1
    assert "--require pass" in err


@pytest.mark.parametrize("command", ["gate", "report", "track"])
def test_a_folder_that_is_no_study_run_is_bad_input(
    lull: Say, tmp_path: Path, command: str
) -> None:
    code, _, err = lull(command, str(tmp_path))
    assert code == 2
    assert "is no study run" in err
    assert "Traceback" not in err


def test_a_misspelt_study_is_bad_input(lull: Say, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("sstudy: x\n")
    code, _, err = lull("plan", str(path))
    assert code == 2
    assert "did you mean 'study'?" in err


def test_an_unknown_option_is_bad_input(lull: Say) -> None:
    code, _, err = lull("plan", "--no-such-option")
    assert code == 2
    assert "no-such-option" in err


def test_a_broken_event_line_is_named(lull: Say, make_study_dir: Callable[..., Path]) -> None:
    folder = make_study_dir()
    log = next(iter(sorted(folder.glob("*/events.jsonl"))))
    lines = log.read_text().splitlines()
    lines[1] = "{broken"
    log.write_text("\n".join(lines) + "\n")
    code, _, err = lull("gate", str(folder))
    assert code == 2
    assert "events.jsonl" in err
    assert "2" in err


def test_schema_is_json(lull: Say) -> None:
    code, out, _ = lull("schema")
    assert code == 0
    assert "horizon_s" in json.loads(out)["properties"]


def test_doctor_speaks_json(lull: Say, tmp_path: Path) -> None:
    code, out, _ = lull("doctor", "--json", "--out", str(tmp_path))
    findings = json.loads(out)["findings"]
    assert {f["status"] for f in findings} <= {"ok", "warn", "bad"}
    assert code == (1 if any(f["status"] == "bad" for f in findings) else 0)


def test_ctrl_c_is_one_line_and_exit_code_one(lull: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.study.load_study", interrupt)
    code, _, err = lull("plan", "any.yaml")
    assert code == 1
    assert "interrupted" in err
    assert "Traceback" not in err


def test_a_renamed_run_folder_is_refused(lull: Say, make_study_dir: Callable[..., Path]) -> None:
    folder = make_study_dir()
    run = next(iter(sorted(folder.glob("*-s0-*"))))
    run.rename(run.with_name(run.name.replace("-s0-", "-s77-")))
    code, _, err = lull("gate", str(folder))
    assert code == 2
    assert "give the folder its name back" in err


def test_a_folder_that_cannot_be_written_is_one_line(
    lull: Say, make_study_dir: Callable[..., Path]
) -> None:
    folder = make_study_dir()
    (folder / "verdicts.json").unlink(missing_ok=True)
    (folder / "verdicts.json").mkdir()
    code, _, err = lull("gate", str(folder))
    assert code == 1
    assert "verdicts.json" in err
    assert "Traceback" not in err


def test_a_dead_ray_address_is_told_at_once(
    lull: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    study = Path(__file__).parents[2] / "experiments" / "gate_check" / "planted.yaml"
    code, _, err = lull("plan", str(study))
    assert code == 1
    assert "no Ray cluster answers there" in err
