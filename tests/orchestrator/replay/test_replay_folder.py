"""A folder of replayed runs on the command line: judged from its table, told of what is wrong."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from orchestrator.calibration.gate import gate_hash
from orchestrator.config import StudyConfig
from orchestrator.record_files import write_json
from orchestrator.replay.calibrated import write_plant
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.standing import plant_version
from orchestrator.replay.summary import summarise, summary_table
from orchestrator.replay.table import NAME, PARTS, table_sha256, to_table
from orchestrator.replay.tracked import replay_tree
from orchestrator.rundir import write_study
from tests.replayed import PLANT, fitted_plant, replay_rows, replay_study

Lull = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made() -> tuple[StudyConfig, list[ReplayFigures]]:
    study = replay_study(seeds=list(range(8)), draws=2)
    return study, list(replay_rows(study))


@pytest.fixture
def folder(tmp_path: Path, made: tuple[StudyConfig, list[ReplayFigures]]) -> Path:
    """As `lull replay` leaves one."""
    study, rows = made
    path = tmp_path / "synthetic-replay"
    write_study(path, study)
    write_plant(path / "plant.json", fitted_plant())
    facts = {"source": "replay", "engine": "model", "engine_version": plant_version(PLANT)}
    pq.write_table(to_table(rows), path / NAME)
    seal = {"gate_hash": gate_hash(study), "table_sha256": table_sha256(path / NAME)}
    write_json(path / "provenance.json", {**facts, **seal})
    return path


def test_gate_judges_the_table_alone_and_writes_the_verdicts(lull: Lull, folder: Path) -> None:
    code, out, _ = lull("gate", str(folder), "--json", "--require", "pass")
    assert code == 0
    said = json.loads(out)
    assert (said["source"], said["engine"]) == ("replay", "model")
    assert said["verdicts"][0]["verdict"] == "PASS"
    assert said["verdicts"][0]["tier"] == 0
    assert json.loads((folder / "verdicts.json").read_text()) == said
    (folder / "verdicts.json").unlink()
    assert lull("gate", str(folder), "--json")[1] == out


def test_the_table_of_the_replay_has_the_gates_own_gain_and_interval(
    lull: Lull, folder: Path, made: tuple[StudyConfig, list[ReplayFigures]]
) -> None:
    verdict = json.loads(lull("gate", str(folder), "--json")[1])["verdicts"][0]
    (asked,) = [c for c in verdict["conditions"] if c["name"] == "matched_random"]
    low, high = asked["interval"]
    gate = made[0].gate
    few = gate.model_copy(update={"min_seeds_for_interval": 9})
    (mine,), (other,) = (
        [a for a in summarise(folder / NAME, gate=g) if a.arm == "wa_ewma"] for g in (gate, few)
    )
    assert (mine.gain, mine.gain_interval) == (verdict["relative_gain"], (low, high))
    assert (other.gain_interval, other.gain_seeds) == (None, 8)
    shown = StringIO()
    Console(width=80, file=shown).print(summary_table([mine, other], engine_version="plant-1"))
    rows = [line for line in shown.getvalue().splitlines() if line.startswith(" wa_ewma")]
    gain = f"{100 * verdict['relative_gain']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    assert [gain in row for row in rows] == [True, False]
    assert [row.split()[-1] for row in rows] == ["8", "8"]


def test_gate_prints_source_and_engine_beside_the_conditions(lull: Lull, folder: Path) -> None:
    code, out, _ = lull("gate", str(folder))
    assert code == 0
    assert "source: replay, engine: model" in out
    assert "SIMULATED: replay, engine=model plant-" in out
    assert "PASS (tier 0, replay: evidence of a calibrated replay only)" in out
    assert "matched_random-of-wa_ewma (2 draws)" in out


def test_require_pass_fails_on_a_plant_that_is_fitted_to_nothing(lull: Lull, folder: Path) -> None:
    (folder / "plant.json").write_text(PLANT.model_dump_json())
    code, _, err = lull("gate", str(folder), "--require", "pass")
    assert code == 1
    assert "wa_ewma: INCONCLUSIVE" in err


def test_a_threshold_changed_after_the_replay_makes_it_invalid(lull: Lull, folder: Path) -> None:
    study = json.loads((folder / "study.json").read_text())
    study["gate"]["alpha"] = 0.2
    (folder / "study.json").write_text(json.dumps(study))
    _, out, _ = lull("gate", str(folder), "--json")
    verdict = json.loads(out)["verdicts"][0]
    assert verdict["verdict"] == "INCONCLUSIVE"
    assert "changed after the replay" in verdict["reason"]


def _truncate(path: Path) -> None:
    data = (path / NAME).read_bytes()
    (path / NAME).write_bytes(data[: len(data) // 2])


def _edit(path: Path) -> None:
    table = pq.read_table(path / NAME)
    at = table.schema.get_field_index("violations")
    changed = [0 if v else v for v in table.column("violations").to_pylist()]
    pq.write_table(table.set_column(at, table.schema.field(at), [changed]), path / NAME)


def _edit_with_care(path: Path) -> None:
    table = pq.read_table(path / NAME)
    at = table.schema.get_field_index("e2e_p50_s")
    changed = [0.01] * table.num_rows
    pq.write_table(table.set_column(at, table.schema.field(at), [changed]), path / NAME)


def _other_columns(path: Path) -> None:
    pq.write_table(pq.read_table(path / NAME).drop_columns(["overlap"]), path / NAME)


def _other_plant(path: Path) -> None:
    plant = PLANT.model_copy(update={"merge_factor": 2.0})
    write_plant(path / "plant.json", fitted_plant(plant=plant))


def _no_plant(path: Path) -> None:
    (path / "plant.json").unlink()


def _other_seeds(path: Path) -> None:
    study = json.loads((path / "study.json").read_text())
    study["seeds"] = study["seeds"][:-1]
    (path / "study.json").write_text(json.dumps(study))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (_truncate, "replay.parquet: is no table of a replay"),
        (_edit, "do not add up"),
        (_edit_with_care, "is not the table that the replay wrote"),
        (_other_columns, "not those of a replay"),
        (_other_plant, "the table was replayed on plant-"),
        (_no_plant, "plant.json: cannot be read"),
        (_other_seeds, "is none of the study's runs"),
    ],
)
def test_a_damaged_or_edited_replay_is_one_line_and_exit_2(
    lull: Lull, folder: Path, harm: Callable[[Path], None], why: str
) -> None:
    harm(folder)
    code, out, err = lull("gate", str(folder))
    assert code == 2
    assert why in err
    assert (len(err.strip().splitlines()), out) == (1, "")


def test_report_draws_gains_and_a_page_that_says_what_it_is(lull: Lull, folder: Path) -> None:
    code, out, _ = lull("report", str(folder), "--json")
    assert code == 0
    assert [Path(f).name for f in json.loads(out)["files"]] == ["gains.png", "report.html"]
    page = (folder / "report.html").read_text()
    assert "SIMULATED: replay, engine=model" in page
    assert "No statement about a real server" in page
    assert "wa_ewma: PASS" in page


def test_mlflow_is_shown_a_parent_an_arm_and_the_seeds(folder: Path) -> None:
    tree = replay_tree(folder)
    keys = [node.key for node in tree.nodes]
    assert len(set(keys)) == len(keys)
    assert all(n.parent is None or n.parent in keys[:i] for i, n in enumerate(tree.nodes))
    levels = [n.tags["lull.level"] for n in tree.nodes]
    assert [levels.count(level) for level in ("study", "arm", "seed")] == [1, 6, 8 * 5]
    assert tree.nodes[0].tags["claim.tier"] == "0"
    assert NAME in tree.nodes[0].files
    seeds = [n for n in tree.nodes if n.name == "wa_ewma s3"]
    assert seeds[0].metrics["merge/count"] == 4.0


@pytest.mark.slow
def test_a_plant_is_put_beside_live_runs_and_told(
    lull: Lull, make_study_dir: Callable[..., Path], tmp_path: Path
) -> None:
    runs = make_study_dir()
    write_plant(tmp_path / "mine.json", fitted_plant())
    code, out, _ = lull("gate", str(runs), "--plant", str(tmp_path / "mine.json"), "--json")
    assert code == 0
    assert (runs / "plant.json").read_bytes() == (tmp_path / "mine.json").read_bytes()
    found = json.loads(out)["verdicts"][0]["conditions"][-1]
    assert (found["name"], found["status"], found["n"]) == ("replay", "not_met", 2)
    assert "fitted to vllm 0.1, the study ran on mock mock-1" in found["why"]
    assert lull("gate", str(runs), "--json")[1] == out
    text = (runs / "plant.json").read_text()
    (runs / "plant.json").write_text(text.replace('"merge_factor": 4.0', '"merge_factor": 3.0'))
    code, _, err = lull("gate", str(runs))
    assert code == 2
    assert "it was edited after the fit" in err


def test_a_plant_that_is_none_is_refused_and_not_put_there(
    lull: Lull, make_study_dir: Callable[..., Path], tmp_path: Path
) -> None:
    runs = make_study_dir()
    (tmp_path / "no.json").write_text("[]")
    code, _, err = lull("gate", str(runs), "--plant", str(tmp_path / "no.json"))
    assert code == 2
    assert "holds list, not a plant" in err
    assert not (runs / "plant.json").exists()


def _stopped_early(path: Path) -> None:
    """Nothing but what stands before the first batch."""
    (path / NAME).unlink()
    _unseal(path)


def _stopped_between_batches(path: Path) -> None:
    (path / NAME).unlink()
    _unseal(path)
    (path / PARTS).mkdir()


def _unseal(path: Path) -> None:
    made = json.loads((path / "provenance.json").read_text())
    del made["table_sha256"]
    (path / "provenance.json").write_text(json.dumps(made))


@pytest.mark.parametrize("command", ["gate", "report", "track"])
@pytest.mark.parametrize("stop", [_stopped_early, _stopped_between_batches, _unseal])
def test_an_unfinished_replay_is_to_be_gone_on_with(
    lull: Lull, folder: Path, stop: Callable[[Path], None], command: str
) -> None:
    stop(folder)
    code, out, err = lull(command, str(folder))
    assert (code, out) == (2, "")
    assert "the replay is unfinished: run the same `lull replay` command again" in err
    assert len(err.strip().splitlines()) == 1


def test_free_cadence_prints_rates_and_no_conditions(lull: Lull, tmp_path: Path) -> None:
    free = replay_study(
        seeds=[0],
        horizon_s=30.0,
        arms=[{"kind": "no_sync"}, {"kind": "policy", "policy": "wa_ewma"}],
        judge=[],
        aa=False,
        corridor={"budget_merges": None},
    )
    (tmp_path / "study.yaml").write_text(free.model_dump_json())
    (tmp_path / "plant.json").write_text(PLANT.model_dump_json())
    out_dir = tmp_path / "runs"
    told = ("--plant", str(tmp_path / "plant.json"), "--out", str(out_dir), "--workers", "1")
    assert lull("replay", str(tmp_path / "study.yaml"), *told)[0] == 0
    path = out_dir / "synthetic-replay"
    code, out, _ = lull("gate", str(path))
    assert code == 0
    assert "rate effects (no placement claim)" in out
    assert "free cadence: rate effects only" in out
    assert lull("report", str(path))[0] == 0
    assert "Free cadence: each policy merged as often" in (path / "report.html").read_text()
