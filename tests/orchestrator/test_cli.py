"""The command line on a synthetic record: exit codes, JSON, one clear line, no traceback."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.study import MOST_FINDINGS, load_study
from policies.plugins import installed

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
Say = Callable[..., tuple[int, str, str]]


COMMANDS = [
    "plan",
    "run",
    "advise",
    "replay",
    "sweep",
    "calibrate",
    "gate",
    "redecide",
    "report",
    "track",
    "trace",
    "doctor",
    "schema",
]


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


def test_redecide_says_equal_or_which_tick_is_not(
    lull: Say, make_study_dir: Callable[..., Path]
) -> None:
    folder = make_study_dir(placement="policy", seeds=[0])
    code, out, _ = lull("redecide", str(folder))
    assert code == 0
    assert "equal, bit for bit: 300 decisions of 5 runs" in out
    (run,) = folder.glob("wa_ewma-s0-*")
    code, out, _ = lull("redecide", str(run), "--policy", "wa_ewma", "--json")
    assert code == 0
    assert json.loads(out)["label"] == "counterfactual"
    assert json.loads(out)["runs"][0]["first_different_tick"] is None
    log = run / "events.jsonl"
    log.write_text(log.read_text().replace("forecast_later", "forecast_best", 1))
    code, out, _ = lull("redecide", str(folder), "--json")
    assert code == 1
    assert json.loads(out)["equal"] is False
    code, _, err = lull("redecide", str(folder), "--policy", "other")
    assert code == 2
    assert "is neither a policy of the study (wa_ewma) nor a file" in err


@pytest.mark.parametrize("command", ["gate", "report", "track"])
def test_a_folder_that_is_no_study_run_is_bad_input(
    lull: Say, tmp_path: Path, command: str
) -> None:
    code, _, err = lull(command, str(tmp_path))
    assert code == 2
    assert "is no study run" in err
    assert "Traceback" not in err


def test_a_study_that_is_not_there_cannot_be_resumed(lull: Say, tmp_path: Path) -> None:
    study = EXPERIMENTS / "gate_check" / "planted.yaml"
    code, _, err = lull("run", str(study), "--resume", "--out", str(tmp_path / "runs"))
    assert code == 2
    assert "gate_check_planted: holds no study to resume" in err
    assert not (tmp_path / "runs").exists()


def test_a_misspelt_study_is_bad_input(lull: Say, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("sstudy: x\n")
    code, _, err = lull("plan", str(path))
    assert code == 2
    assert "did you mean 'study'?" in err
    assert "more; is this the file that you meant?" in err
    assert err.count("\n") == MOST_FINDINGS + 1


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["plan", "replay"])
def test_a_signal_is_one_line_and_exit_code_one(
    lull: Say, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, command: str
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("orchestrator.study.load_study", lambda _: os.kill(os.getpid(), number))
    code, _, err = lull(command, "any.yaml")
    assert code == 1
    assert err == "lull: interrupted; what was recorded is kept\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["sweep", "s.yaml", "--space", "x", "--settings", "0"], "'--settings'"),
        (["sweep", "s.yaml", "--space", "x", "--workers", "0"], "'--workers'"),
        (["sweep", "s.yaml"], "'--space'"),
        (["replay", "s.yaml", "--draws", "0"], "'--draws'"),
        (["replay", "s.yaml", "--replicates", "0"], "'--replicates'"),
        (["replay", "s.yaml", "--workers", "two"], "'--workers'"),
        (["run", "s.yaml", "--most-runs", "-1"], "'--most-runs'"),
        (["calibrate", "runs/x", "--seed", "-1"], "'--seed'"),
        (["gate", "runs/x", "--require", "fail"], "'--require'"),
        (["plan", "s.yaml", "--gian", "1"], "--gain"),
        (["plam"], "'plam'"),
    ],
)
def test_an_option_that_cannot_be_used_is_one_line_and_exit_code_two(
    lull: Say, args: list[str], named: str
) -> None:
    code, out, err = lull(*args)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert named in err
    assert "--help`" in err


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


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example policy as a package of its own; the path of its module."""
    example = Path(__file__).parents[1] / "policies" / "example_policy.py"
    module = tmp_path / "a_users_policy.py"
    module.write_text(example.read_text())
    info = tmp_path / "a_users_policy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a_users_policy\nVersion: 1.0\n")
    line = "few_in_flight = a_users_policy:FewInFlightConfig"
    (info / "entry_points.txt").write_text(f"[lull.policies]\n{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    yield module
    installed.cache_clear()
    sys.modules.pop("a_users_policy", None)


def test_a_users_policy_stands_in_a_study_and_in_the_schema(
    lull: Say, plugin: Path, tmp_path: Path
) -> None:
    code, out, _ = lull("schema")
    assert code == 0
    made = json.loads(out)
    assert "FewInFlightConfig" in made["$defs"]
    assert '"few_in_flight": "#/$defs/FewInFlightConfig"' in json.dumps(
        made["properties"]["policies"]
    )
    quickstart = Path(__file__).parents[2] / "experiments" / "quickstart" / "study.yaml"
    text = quickstart.read_text()
    line = "policies:\n"
    study = tmp_path / "study.yaml"
    study.write_text(text.replace(line, f"{line}  mine: {{kind: few_in_flight, most: 3}}\n"))
    code, _, err = lull("plan", str(study))
    assert code == 2
    assert "policies.mine.most: unknown key; known keys: kind, most_in_flight" in err
    study.write_text(
        text.replace(line, f"{line}  mine: {{kind: few_in_flight, most_in_flight: 3}}\n")
    )
    assert load_study(study).policies["mine"].model_dump()["most_in_flight"] == 3


def test_a_plugin_that_breaks_is_one_line(lull: Say, plugin: Path) -> None:
    plugin.write_text("import no_such_module_of_the_user\n")
    code, _, err = lull("schema")
    assert code == 2
    assert "(a_users_policy:FewInFlightConfig of a_users_policy 1.0) cannot be imported" in err
    assert "Traceback" not in err
