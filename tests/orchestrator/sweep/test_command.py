"""`lull sweep` as a person meets it: what is refused, and a whole small sweep in one process."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from orchestrator import cli
from orchestrator.replay.table import SCHEMA
from tests.cluster.studies import write_study
from tests.fake_sweep import HALF_LIFE, FakeEvaluator

PLANT = {
    "slots": 8,
    "step_base_s": 0.01,
    "step_per_seq_s": 0.0,
    "prefill_per_token_s": 0.0,
    "overhead_s": 0.003,
    "merge_factor": 8.0,
}
SPACE: dict[str, Any] = {
    "policy": "wa_ewma",
    "parameters": {HALF_LIFE: {"values": [0.4, 8.0]}},
    "search": "grid",
    "settings": 2,
    "seed": 0,
    "tuning": {"seeds": {"first": 0, "count": 3}, "draws": 5},
    "judging": {"seeds": {"first": 100, "count": 3}, "draws": 9},
}


def write_inputs(folder: Path, **space: Any) -> list[str]:
    study = write_study(folder, judge=["wa_ewma"])
    (folder / "space.yaml").write_text(yaml.safe_dump({**SPACE, **space}))
    (folder / "plant.json").write_text(json.dumps(PLANT))
    files = ["--space", str(folder / "space.yaml"), "--plant", str(folder / "plant.json")]
    return ["sweep", str(study), *files, "--workers", "1", "--no-track", "--out", str(folder / "o")]


def call(
    args: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["lull", *args])
    code: Any = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    return code or 0, said.out, said.err


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ({"policx": "wa_ewma"}, "space.yaml: policx: unknown key; did you mean 'policy'?"),
        ({"policy": "stopping"}, "'stopping' is none of the study's policies"),
        ({"settings": 1}, "settings=1 is below the grid's 2 = 2"),
        (
            {"judging": {"seeds": {"first": 2, "count": 2}}},
            "tuning.seeds and judging.seeds share 2",
        ),
        ({"parameters": {"corridor.x": {"values": [1]}}}, "corridor.x: unknown key"),
        (
            {"parameters": {HALF_LIFE: {"low": math.nan, "high": 8.0}}},
            f"space.yaml: parameters.{HALF_LIFE}.low: nan cannot be written",
        ),
        (
            {"parameters": {HALF_LIFE: {"values": [1.0, math.inf]}}},
            f"space.yaml: parameters.{HALF_LIFE}.values[1]: inf cannot be written",
        ),
    ],
)
def test_a_bad_space_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    space: dict[str, Any],
    expected: str,
) -> None:
    code, out, err = call(write_inputs(tmp_path, **space), monkeypatch, capsys)
    assert code == 2
    assert out == ""
    assert expected in err
    assert f"error: {tmp_path}/space.yaml: " in err  # the space's own fault, not the study's
    assert "Traceback" not in err
    assert not (tmp_path / "o").exists()


def test_resume_without_a_sweep_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call([*write_inputs(tmp_path), "--resume"], monkeypatch, capsys)
    assert code == 2
    assert "holds no sweep to resume; leave --resume out" in err


def test_the_help_shows_an_example() -> None:
    shown = CliRunner().invoke(cli.app, ["sweep", "--help"]).output
    assert "Example: lull sweep study.yaml" in " ".join(shown.split())


@pytest.mark.slow
def test_a_sweep_whose_settings_are_all_refused_says_why_and_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = write_inputs(tmp_path, parameters={HALF_LIFE: {"values": [-1.0, -2.0]}})
    code, out, err = call(args, monkeypatch, capsys)
    assert code == 2
    assert err.count("\n") == 1
    assert "space.yaml: all 2 settings asked for were refused; the first: setting:" in err
    assert "half_life_s" in err
    assert "2 refused" in out
    assert (tmp_path / "o" / "tiny-sweep" / "sweep.md").exists()


@pytest.mark.slow
def test_a_whole_sweep_is_judged_on_held_out_seeds_and_resumes_to_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = write_inputs(tmp_path)
    code, out, err = call(args, monkeypatch, capsys)
    assert code == 0, err
    folder = tmp_path / "o" / "tiny-sweep"
    assert "Best on 3 tuning seeds" in out
    assert "Held out, load 0, 3 seeds: INCONCLUSIVE (SIMULATED" in out
    assert "SIMULATED: replay, engine=model; tier 0 at most" in out
    for draws in (5, 9):
        assert f"{draws} draws of matched random a seed, fewer than the 99 wanted" in out
    result = json.loads((folder / "result.json").read_text())
    assert result["tuned"]["values"] == {HALF_LIFE: 0.4}
    held = pl.read_parquet(folder / "judging" / "load-0" / "replay.parquet")
    assert set(held["replicate"]) == {100, 101, 102}
    verdicts = json.loads((folder / "judging" / "load-0" / "verdicts.json").read_text())
    assert verdicts["verdicts"][0]["relative_gain"] == result["held_out"][0]["gain"]

    code, again, _ = call([*args, "--resume"], monkeypatch, capsys)
    assert code == 0
    assert "6 blocks are known and not played again" in again
    assert json.loads((folder / "result.json").read_text()) == result
    code, _, err = call(args, monkeypatch, capsys)
    assert code == 2
    assert "holds a sweep; --resume goes on with it" in err
    (tmp_path / "space.yaml").write_text(yaml.safe_dump({**SPACE, "seed": 1}))
    code, _, err = call([*args, "--resume"], monkeypatch, capsys)
    assert code == 2
    assert "holds another sweep (space.seed: " in err
    (tmp_path / "plant.json").write_text(json.dumps({**PLANT, "merge_factor": 4.0}))
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    code, _, err = call([*args, "--resume"], monkeypatch, capsys)
    assert code == 2
    assert "holds another sweep (plant: plant-" in err

    (tmp_path / "plant.json").write_text(json.dumps(PLANT))
    table = folder / "judging" / "load-0" / "replay.parquet"
    whole = table.read_bytes()
    better = pl.read_parquet(table).with_columns(pl.col("violation_rate") * 0.5)
    pq.write_table(better.to_arrow().cast(SCHEMA), table)
    code, _, err = call([*args, "--resume"], monkeypatch, capsys)
    assert code == 0, err
    assert table.read_bytes() == whole  # an edited table is no result: it is replayed again

    code, shown, err = call(["gate", str(folder / "judging" / "load-0")], monkeypatch, capsys)
    assert code == 0, err
    assert "INCONCLUSIVE" in shown


@pytest.mark.slow
def test_tries_and_the_judging_cannot_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.sweep.drive.ReplayEvaluator", lambda **_: FakeEvaluator())
    parameters = {HALF_LIFE: {"values": [8.0, 2.0]}}  # 2 s is the best, 8 s comes first
    args = [
        *write_inputs(tmp_path, parameters=parameters, search="random", settings=1, seed=1),
        "--resume",
    ]
    folder = tmp_path / "o" / "tiny-sweep"
    assert call(args[:-1], monkeypatch, capsys)[0] == 0
    judged = json.loads((folder / "judging.json").read_text())["setting"]
    more = [*args, "--settings", "2"]
    code, out, err = call(more, monkeypatch, capsys)
    assert "3 of them were played again" in out
    assert code == 2, "the best of two is another than the only one before"
    assert f"the judging blocks were used for setting {judged}" in err
    assert not (folder / "sweep.md").exists()  # it spoke of one setting
    (folder / "judging.json").unlink()
    shutil.rmtree(folder / "judging")
    for settings, why in (("1", "2 were asked for already"), ("2", "were used for setting")):
        code, out, err = call([*args, "--settings", settings], monkeypatch, capsys)
        assert code == 2
        assert err.count("\n") == 1
        assert why in err
        assert "PASS" not in out
    lines = (folder / "results.jsonl").read_text()
    first = json.loads(next(x for x in lines.splitlines() if '"violation_rate"' in x))
    rate = f'"violation_rate": {first["violation_rate"]}'
    (folder / "results.jsonl").write_text(lines.replace(rate, '"violation_rate": 0.001', 1))
    code, _, err = call(more, monkeypatch, capsys)
    assert code == 2
    assert "its hash does not fit" in err
