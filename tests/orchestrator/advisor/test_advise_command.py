"""`lull advise`: bad input is one line and exit code 2; a live one answers until it is stopped."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.coordinator.advisor_client import AdvisorClient, Progress

Say = Callable[..., tuple[int, str, str]]
ADVICE = """\
advice:
  name: mine
  learners: 1
  vllm_metrics_url: null
  corridor: {floor_steps: 10, ceiling_steps: 40, target_steps: 20, budget_merges: null}
  policy: {kind: fixed_h, h_steps: 20}
  tick_steps: 5
  step_s: 0.5
  window_s: 4.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "advice.yaml"
    path.write_text(ADVICE)
    return path


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("advice:", "advise:", "advise: unknown key; did you mean 'advice'?"),
        ("tick_steps: 5", "tick_steps: 0", "advice.tick_steps: Input should be greater than"),
        ("tick_steps: 5", "tick_steps: five", "advice.tick_steps: Input should be a valid int"),
        ("h_steps: 20", "h_step: 20", "advice.policy.h_step: unknown key; did you mean 'h_steps'?"),
        ("kind: fixed_h", "kind: fixd_h", "did you mean 'fixed_h'?"),
        ("kind: fixed_h, h_steps: 20", "kind: uniform_random", "is a control and never deployable"),
        ("url: null", "url: localhost", "no http:// or https:// URL"),
        ("name: mine", "name: ../mine", "advice.name: String should match pattern"),
        ("floor_steps: 10", "floor_steps: 50", "floor_steps=50 is above ceiling_steps=40"),
        ("  window_s: 4.0\n", "", "advice.window_s: is missing"),
        ("learners: 1", "learners: 1\n  learners: 2", "key 'learners' stands twice"),
        (ADVICE, "- 1\n", "holds list, not a mapping of the keys of advice"),
    ],
)
def test_an_advice_that_cannot_be_used_is_bad_input(
    lull: Say, file: Path, tmp_path: Path, old: str, new: str, named: str
) -> None:
    assert old in ADVICE
    file.write_text(ADVICE.replace(old, new))
    code, out, err = lull("advise", str(file), "--port", "0", "--out", str(tmp_path / "runs"))
    assert (code, out) == (2, "")
    assert named in err
    assert str(file) in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_a_file_that_is_not_there_is_bad_input(lull: Say, tmp_path: Path) -> None:
    code, _, err = lull("advise", str(tmp_path / "none.yaml"))
    assert code == 2
    assert "none.yaml: cannot be read" in err


@pytest.mark.parametrize("port", ["-1", "70000", "http"])
def test_a_port_that_is_none_is_bad_input(lull: Say, file: Path, port: str) -> None:
    code, _, err = lull("advise", str(file), "--port", port)
    assert code == 2
    assert "'--port'" in err


def test_a_port_that_is_taken_is_bad_input_and_leaves_nothing(
    lull: Say, file: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, before = str(taken.getsockname()[1]), signal.getsignal(signal.SIGTERM)
        code, out, err = lull("advise", str(file), "--port", port, "--out", str(tmp_path / "runs"))
    assert (code, out) == (2, "")
    assert f"--port {port}: cannot listen there" in err
    assert list((tmp_path / "runs").iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_a_host_that_is_none_is_bad_input(lull: Say, file: Path, tmp_path: Path, host: str) -> None:
    out_dir = str(tmp_path / "runs")
    code, _, err = lull("advise", str(file), "--port", "0", "--host", host, "--out", out_dir)
    assert code == 2
    assert f"--host {host} --port 0: cannot listen there" in err
    assert "Traceback" not in err


def test_an_out_that_is_a_file_is_bad_input(lull: Say, file: Path) -> None:
    code, _, err = lull("advise", str(file), "--out", str(file))
    assert code == 2
    assert f"--out {file}: cannot be written" in err


@pytest.mark.slow
def test_it_advises_until_it_is_stopped_and_its_record_can_be_decided_again(
    lull: Say, file: Path, tmp_path: Path, checkout: Path
) -> None:
    command = [sys.executable, "-m", "orchestrator", "advise", str(file), "--port", "0", "--json"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)], cwd=checkout, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
            assert lines[-1], "it ended before it was ready"
        ready = json.loads("".join(lines))
        client = AdvisorClient(ready["url"], own_h_steps=7, timeout_s=20.0)
        merged = [s for s in range(1, 45) if client.ready_to_merge(s, Progress(tokens=s))]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    assert merged == [20, 40]
    assert ready["record"] == str(tmp_path / "mine-advice-0")
    code, out, _ = lull("redecide", ready["record"])
    assert code == 0
    assert "equal, bit for bit" in out
    code, _, err = lull("gate", ready["record"])
    assert code == 2
    assert "is no study run" in err
