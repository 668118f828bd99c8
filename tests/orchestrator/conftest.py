"""Whole synthetic studies as fixtures: on disk, or in memory."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.config import StudyConfig
from orchestrator.records import RunRecord
from orchestrator.rundir import write_study
from tests.synthetic import (
    split_world,
    study_runs,
    synthetic_records,
    synthetic_study,
    write_arm,
)


@pytest.fixture(scope="session")
def make_study() -> Callable[..., StudyConfig]:
    """make_study(seeds=[0, 1], gate={"alpha": 0.1}, aa=True, draws=2, **study keys)"""

    return synthetic_study


@pytest.fixture(scope="session")
def _templates(
    tmp_path_factory: pytest.TempPathFactory, make_study: Callable[..., StudyConfig]
) -> Callable[..., Path]:
    """Each study folder that is asked for, written once."""

    @cache
    def written(key: str) -> Path:
        study_dir = tmp_path_factory.mktemp("study")
        changes = json.loads(key)
        world = split_world(changes)
        study = make_study(**changes)
        write_study(study_dir, study)
        for seed, arm, requests in study_runs(study):
            write_arm(study_dir, study, arm, seed, requests, world)
        return study_dir

    return lambda changes: written(json.dumps(changes, sort_keys=True))


@pytest.fixture
def make_study_dir(tmp_path: Path, _templates: Callable[..., Path]) -> Callable[..., Path]:
    """A full study folder on disk, as ``lull run`` leaves it, but without plots and reports.

    make_study_dir(name="a", effect=4.0, placement="dodge", real_s=0.5, **as make_study) -> Path
    """

    def make(*, name: str = "synthetic", **changes: Any) -> Path:
        return Path(shutil.copytree(_templates(changes), tmp_path / "runs" / name))

    return make


@pytest.fixture(scope="session")
def make_records(
    make_study: Callable[..., StudyConfig],
) -> Callable[..., tuple[StudyConfig, list[RunRecord]]]:
    """The same study in memory: faster, for many seeds. Arguments as for make_study_dir."""

    @cache
    def made(key: str) -> tuple[StudyConfig, tuple[RunRecord, ...]]:
        changes = json.loads(key)
        world = split_world(changes)
        study = make_study(**changes)
        return study, tuple(synthetic_records(world, study))

    def make(**changes: Any) -> tuple[StudyConfig, list[RunRecord]]:
        study, records = made(json.dumps(changes, sort_keys=True))
        return study, list(records)

    return make


@pytest.fixture
def lull(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run one command in this process: exit code, stdout, stderr."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["lull", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    return run
