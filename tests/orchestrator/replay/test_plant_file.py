"""plant.json: what was written comes back; what was edited, cut or mistyped is refused."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.replay.calibrated import (
    Calibration,
    FigureError,
    Fit,
    FittedOn,
    RunKey,
    load_plant,
    write_plant,
)
from tests.orchestrator.replay.plant_world import TRUTH

KEY = RunKey(name="a-s0-1", arm="a", seed=0, request_hash="r", content_sha256="0" * 64)
FIGURE = FigureError(
    figure="e2e_p95_s",
    group="no_sync",
    measured=1.0,
    predicted=1.1,
    error=0.1,
    interval=None,
    seeds=1,
    aim=0.15,
    within=True,
)
FITTED = Calibration(
    plant=TRUTH,
    fitted_on=FittedOn(
        study="s",
        regime="r",
        selection="seeds=0",
        runs=(KEY,),
        seeds=(0,),
        source="live",
        engine="vllm",
        engine_version="1",
        host={"cores": 2},
        window_s=4.0,
        fill={"kind": "none"},
    ),
    fit=Fit(
        objective=0.01,
        evaluations=9,
        starts=1,
        seed=0,
        requests=100,
        figures=(FIGURE,),
        by_seed=(),
    ),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_plant(tmp_path / "plant.json", FITTED)
    return tmp_path / "plant.json"


def edited(file: Path, change: Any) -> None:
    raw = json.loads(file.read_text())
    change(raw)
    file.write_text(json.dumps(raw))


def test_what_was_written_comes_back_and_names_the_runs_that_took_part(file: Path) -> None:
    assert load_plant(file) == FITTED
    assert load_plant(file).took_part == {"0" * 64}


def test_a_bare_plant_is_read_as_one_that_was_never_fitted(file: Path) -> None:
    file.write_text(TRUTH.model_dump_json())
    assert load_plant(file) == Calibration(plant=TRUTH)
    file.write_text(json.dumps({"plant": TRUTH.model_dump()}))
    assert load_plant(file).fitted_on is None


def test_a_file_from_before_the_server_was_kept_is_read_and_its_server_unknown(file: Path) -> None:
    raw = json.loads(file.read_text())
    for key in ("server", "sidecars", "islands"):
        del raw["fitted_on"][key]
    body = {key: value for key, value in raw.items() if key != "sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    file.write_text(json.dumps({**body, "sha256": hashlib.sha256(text.encode()).hexdigest()}))
    assert load_plant(file) == FITTED


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["plant"].update(merge_factor=1.01),
        lambda raw: raw["fit"]["figures"][0].update(error=0.01, predicted=1.01),
        lambda raw: raw["fitted_on"].update(engine_version="2"),
        lambda raw: raw.pop("sha256"),
        lambda raw: raw.update(transfer=None, extra=1),
    ],
)
def test_an_edited_file_is_refused_in_one_line(file: Path, change: Any) -> None:
    edited(file, change)
    with pytest.raises(ValueError, match=r"plant.json: sha256=.* it was edited after") as error:
        load_plant(file)
    assert "\n" not in str(error.value)
    assert "calibrate again" in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is no strict JSON"),
        ("[1]", "holds list, not a plant"),
        ('{"slots": NaN}', "is no strict JSON"),
        ('{"slots": 16}', "step_base_s: is missing"),
        ('{"plant": {"slots": 0}}', "plant.slots: Input should be greater than or equal to 1"),
        ('{"slot": 16}', "slot"),
        ('{"plant": 3}', "plant"),
    ],
)
def test_what_is_no_plant_is_refused_in_one_line(file: Path, text: str, expected: str) -> None:
    file.write_text(text)
    with pytest.raises(ValueError, match=r"plant.json: ") as error:
        load_plant(file)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none.json: cannot be read .*lull calibrate"):
        load_plant(tmp_path / "none.json")


@pytest.mark.parametrize("change", [{"within": None}, {"aim": 0.5}, {"error": 0.2}])
def test_a_figure_cannot_say_other_than_its_numbers(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="e2e_p95_s: "):
        FigureError.model_validate({**FIGURE.model_dump(), **change})


def test_errors_without_runs_and_runs_without_errors_are_refused() -> None:
    with pytest.raises(ValueError, match="belong together"):
        Calibration(plant=TRUTH, fitted_on=FITTED.fitted_on)
    with pytest.raises(ValueError, match="belong together"):
        Calibration(plant=TRUTH, fit=FITTED.fit)
