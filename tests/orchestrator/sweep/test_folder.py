"""The folder of a sweep: which sweep lies there, and that tries are never taken back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.config import StudyConfig
from orchestrator.replay.calibrated import Calibration
from orchestrator.replay.config import PlantConfig
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.folder import begin, drop_words, read_ledger
from orchestrator.sweep.ledger import Ledger

PLANT = PlantConfig(
    slots=8,
    step_base_s=0.01,
    step_per_seq_s=0.0,
    prefill_per_token_s=0.0,
    overhead_s=0.0,
    merge_factor=2.0,
)
Begin = Callable[..., Ledger]


@pytest.fixture
def begin_sweep(
    make_study: Callable[..., StudyConfig],
    make_space: Callable[..., SpaceConfig],
    tmp_path: Path,
) -> Begin:
    """begin_sweep(settings=4, resume=True)"""

    def call(*, settings: int, resume: bool = False, seed: int = 0) -> Ledger:
        return begin(
            tmp_path,
            make_study(),
            make_space(settings=settings, seed=seed),
            calibration=Calibration(plant=PLANT),
            study_dir=tmp_path,
            resume=resume,
        )

    return call


def test_more_settings_may_be_asked_for_and_never_fewer(begin_sweep: Begin, tmp_path: Path) -> None:
    ledger = begin_sweep(settings=4)
    for number in range(4):
        ledger.ask(number, f"setting-{number}")
    assert begin_sweep(settings=12, resume=True).asked == 4
    begin_sweep(settings=4, resume=True)  # twelve were wanted, none of them was asked for
    ledger = begin_sweep(settings=12, resume=True)
    for number in range(4, 12):
        ledger.ask(number, f"setting-{number}")
    for fewer in (4, 11):
        with pytest.raises(ValueError, match=rf"settings={fewer}, and 12 were asked for already"):
            begin_sweep(settings=fewer, resume=True)
    assert read_ledger(tmp_path).asked == 12


def test_lines_of_another_sweep_and_results_without_a_sweep_are_refused(
    begin_sweep: Begin, tmp_path: Path
) -> None:
    begin_sweep(settings=4).ask(0, "first")
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(ValueError, match=r"holds results.jsonl without its sweep.json"):
        begin_sweep(settings=4, seed=1)
    results = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").unlink()
    begin_sweep(settings=4, seed=1)
    (tmp_path / "results.jsonl").write_text(results)
    with pytest.raises(ValueError, match=r"results.jsonl, line 1: its hash does not fit"):
        begin_sweep(settings=4, seed=1, resume=True)


def test_words_on_fewer_settings_do_not_stay(tmp_path: Path) -> None:
    for name in ("result.json", "sweep.md", "results.jsonl"):
        (tmp_path / name).write_text("PASS")
    drop_words(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["results.jsonl"]
