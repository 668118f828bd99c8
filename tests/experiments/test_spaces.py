"""Every space under experiments/ fits the study beside it."""

from pathlib import Path

import pytest

from orchestrator.study import load_study
from orchestrator.sweep.config import load_space
from orchestrator.sweep.settings import check_space, grid_values, make_setting

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
SPACES = sorted(EXPERIMENTS.glob("*/space.yaml"))


@pytest.mark.parametrize("path", SPACES, ids=lambda p: p.parent.name)
def test_a_space_fits_its_study_in_every_corner(path: Path) -> None:
    study, space = load_study(path.parent / "study.yaml"), load_space(path)
    check_space(study, space)
    assert not set(study.seeds) & set((*space.tuning.seeds.seeds, *space.judging.seeds.seeds))
    made = [make_setting(study, space, values) for values in grid_values(study, space)]
    assert [m.refused for m in made if m.study is None] == []
    assert len({m.setting for m in made}) == len(made) <= space.settings


def test_there_is_a_space_to_start_from() -> None:
    assert SPACES
