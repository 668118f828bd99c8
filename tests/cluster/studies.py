"""A study of seconds on the mock engine, run through the real command line in its own process."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import yaml

ROOT = Path(__file__).parents[2]
PLANTED = ROOT / "experiments" / "gate_check" / "planted.yaml"
MARK = "LULL_TEST_MARK"  # inherited by everything that a test starts
OURS = (
    "actors.serving.guard",
    "actors.serving.mock_server",
    "actors.island.burner",
    "actors.island.replica",
    "ray::",
)


def write_study(folder: Path, **changes: object) -> Path:
    """The planted mock study cut down to a few seconds; ``a__b=v`` sets key b of section a."""
    raw = yaml.safe_load(PLANTED.read_text())
    raw |= {"study": "tiny", "seeds": [0], "horizon_s": 8.0}
    raw["corridor"] = {
        "floor_steps": 20,
        "ceiling_steps": 60,
        "target_steps": 40,
        "budget_merges": 2,
    }
    raw["arms"] = [{"kind": "no_sync"}, {"kind": "policy", "policy": "wa_ewma"}]
    for name, value in changes.items():
        *sections, key = name.split("__")
        target = raw
        for section in sections:
            target = target[section]
        target[key] = value
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


class Lull:
    """`python -m orchestrator ...` as a child process in its own session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        }
        self.env["RAY_ADDRESS"] = "local"  # other tests have their own Ray
        self._children: list[subprocess.Popen[str]] = []

    def start(self, *args: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *args],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._children.append(child)
        return child

    def __call__(self, *args: str, timeout_s: float = 150.0) -> tuple[int, str]:
        child = self.start(*args)
        output, _ = child.communicate(timeout=timeout_s)
        return child.returncode, output

    def close(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


def our_processes(name: str = "") -> list[psutil.Process]:
    """Living processes that descend from this test run, whoever adopted them.

    They inherit the mark in their environment; others on this machine have studies of their own.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if process.environ().get(MARK) != os.environ.get(MARK):
                continue
            if any(ours in line for ours in OURS) and name in line:
                found.append(process)
    return found


def wait_for(condition: Callable[[], bool], *, limit_s: float, what: str) -> None:
    """Poll until the world is as wanted."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {limit_s} s: {what}"
        time.sleep(0.1)
