"""Planned faults: at their place, once in a run, for one island, and again in the next run."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from actors.config import PlannedFault
from actors.island.planned_faults import PlannedFaults

KILL = PlannedFault(island=1, at="reduce", round=2, do="kill")
FREEZE = PlannedFault(island=1, at="inner_step", step=7, do="freeze", freeze_s=1.5)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What this process would have done to itself."""
    told: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append((pid, number)))
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: told.append(command[-1]))
    return told


def test_only_at_its_place_and_on_its_island(signals: list[Any], tmp_path: Path) -> None:
    faults, others = (PlannedFaults((KILL, FREEZE), island=i) for i in (1, 0))
    for one in (faults, others):
        one.begin(tmp_path)
    others.reached("reduce", round_=2)
    faults.reached("reduce", round_=1)
    faults.reached("commit", round_=2)
    faults.reached("inner_step", step=6)
    assert signals == []
    faults.reached("reduce", round_=2)
    assert signals == [(os.getpid(), signal.SIGKILL)]


def test_who_freezes_is_woken_by_another_process(signals: list[Any], tmp_path: Path) -> None:
    faults = PlannedFaults((KILL, FREEZE), island=1)
    faults.begin(tmp_path)
    faults.reached("inner_step", step=7)
    assert signals == [f"sleep 1.5; kill -CONT {os.getpid()}", (os.getpid(), signal.SIGSTOP)]


def test_once_in_a_run_also_for_a_process_that_was_started_anew(
    signals: list[Any], tmp_path: Path
) -> None:
    for _ in range(2):
        faults = PlannedFaults((KILL,), island=1)
        faults.begin(tmp_path / "run")
        faults.reached("reduce", round_=2)
        faults.reached("reduce", round_=2)
    assert len(signals) == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["planned-fault-0"]


def test_every_run_of_a_process_has_its_faults(signals: list[Any], tmp_path: Path) -> None:
    faults = PlannedFaults((KILL,), island=1)
    for name in ("one", "two"):
        faults.begin(tmp_path / name)
        faults.reached("reduce", round_=2)
    assert len(signals) == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"at": "reduce", "do": "kill"}, "give step exactly for inner_step"),
        ({"at": "reduce", "do": "kill", "round": 1, "step": 1}, "give step exactly"),
        ({"at": "inner_step", "do": "kill", "round": 1}, "give step exactly"),
        ({"at": "reduce", "do": "freeze", "round": 1}, "give freeze_s exactly for freeze"),
        ({"at": "reduce", "do": "kill", "round": 1, "freeze_s": 1.0}, "give freeze_s exactly"),
    ],
)
def test_half_a_plan_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PlannedFault(island=0, **fields)
