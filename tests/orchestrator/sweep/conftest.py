"""A small sweep over the synthetic study, played by a stand-in for the replay."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import StudyConfig
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.drive import proposer
from orchestrator.sweep.here import play_here
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.progress import Progress
from tests.fake_sweep import HALF_LIFE, PlaySweep, plan_of

SPACE: dict[str, Any] = {
    "policy": "wa_ewma",
    "parameters": {HALF_LIFE: {"low": 0.5, "high": 32.0, "scale": "log"}},
    "search": "random",
    "settings": 10,
    "seed": 0,
    "ask_at_once": 3,
    "tuning": {"seeds": {"first": 0, "count": 6}, "draws": 4, "seeds_at_once": 2},
    "judging": {"seeds": {"first": 100, "count": 5}},
}
MakeSpace = Callable[..., SpaceConfig]


@pytest.fixture(scope="session")
def make_space() -> MakeSpace:
    """make_space(settings=4, tuning={"draws": 2}): the space with keys replaced."""

    def make(**changes: Any) -> SpaceConfig:
        raw = dict(SPACE)
        for key, value in changes.items():
            merged = isinstance(value, dict) and isinstance(raw.get(key), dict)
            raw[key] = {**raw[key], **value} if merged and key != "parameters" else value
        return SpaceConfig.model_validate_json(json.dumps(raw))

    return make


@pytest.fixture
def play_sweep(tmp_path: Path) -> PlaySweep:
    """play_sweep(study, space, name="a", **as FakeEvaluator): played here, with its ledger."""

    def play(
        study: StudyConfig, space: SpaceConfig, *, name: str = "results", **fake: Any
    ) -> tuple[Progress, Ledger]:
        ledger = Ledger(tmp_path / f"{name}.jsonl", identity="test")
        progress = Progress(study, space, ledger=ledger, proposer=proposer(study, space))
        play_here(progress, plan=plan_of(study, space, ledger, **fake), say=lambda _line: None)
        ledger.close()
        return progress, ledger

    return play
