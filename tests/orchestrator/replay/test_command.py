"""`lull replay` in this process: files, labels, one clear line for what cannot be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.replay.table import read_rows
from tests.replaying import ARMS, PLANT, replay_study

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a folder of its own, on no cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """study.yaml with a plant.json beside it."""
    raw = replay_study(
        horizon_s=40.0, corridor={"budget_merges": 3}, arms=ARMS[:2] + ARMS[3:5]
    ).model_dump(mode="json")
    (tmp_path / "plant.json").write_text(PLANT.model_dump_json())
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(raw | {"replay": {"plant": "plant.json", "draws": 4}}))
    return path


def test_a_replay_leaves_a_table_and_says_that_it_is_simulated(lull: Say, study: Path) -> None:
    code, out, err = lull("replay", str(study), "--replicates", "3")
    assert (code, err) == (0, "")
    assert "SIMULATED: source: replay, engine: model" in out
    assert "matched_random-of-wa_ewma" in out
    folder = study.parent / "runs" / "synthetic-replay"
    (rows,) = read_rows(folder / "replay.parquet")
    assert [r.replicate for r in rows] == [0] * 8 + [1] * 8 + [2] * 8
    assert {r.draw for r in rows if r.kind == "matched_random"} == {0, 1, 2, 3}
    assert (folder / "plant.json").read_bytes() == (study.parent / "plant.json").read_bytes()


def test_a_study_that_serves_nothing_is_refused(lull: Say, study: Path) -> None:
    raw = json.loads(study.read_text())
    raw |= {"clock": "steps", "judge": [], "training": {}}
    raw["policies"] = {"wa_ewma": raw["policies"]["wa_ewma"]}
    study.write_text(json.dumps(raw))
    code, out, err = lull("replay", str(study), "--workers", "1")
    assert (code, out) == (2, "")
    assert "clock: is 'steps': such a study trains and serves nothing" in err
    assert not (study.parent / "runs" / "synthetic-replay" / "replay.parquet").exists()


def test_json_is_one_object_whose_figures_follow_from_the_rows(lull: Say, study: Path) -> None:
    args = ("replay", str(study), "--plant", str(study.parent / "plant.json"), "--json")
    code, out, _ = lull(*args, "--draws", "2", "--workers", "1")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    assert (found["source"], found["engine"], found["seeds"]) == ("replay", "model", 2)
    rows = [row for group in read_rows(Path(found["table"])) for row in group]
    arms = {arm["arm"]: arm for arm in found["arms"]}

    def rate(kind: str, seed: int) -> float:
        rates = [r.violation_rate for r in rows if (r.kind, r.replicate) == (kind, seed)]
        known = [value for value in rates if value is not None]
        return sum(known) / len(known)

    policy, control = (
        sum(rate(kind, seed) for seed in (0, 1)) for kind in ("policy", "matched_random")
    )
    assert arms["wa_ewma"]["gain"] == pytest.approx(1.0 - policy / control)
    assert arms["wa_ewma"]["gain_seeds"] == 2
    assert arms["matched_random-of-wa_ewma"]["runs"] == 4
    assert arms["no_sync-start"]["gain"] is None


def test_what_cannot_be_is_one_line_and_exit_code_two(lull: Say, study: Path) -> None:
    plant = str(study.parent / "plant.json")
    bad = study.parent / "bad.json"
    bad.write_text(json.dumps({**PLANT.model_dump(), "slots": 0}))
    without = study.parent / "without.yaml"
    without.write_text(json.dumps(replay_study().model_dump(mode="json")))
    early = study.parent / "early.yaml"
    raw = replay_study(warmup_s=6.0).model_dump(mode="json")
    early.write_text(json.dumps(raw))
    for args, why in (
        ((str(early), "--plant", plant), "warmup_s=6 is above the first possible merge at 5 s"),
        ((str(without),), "no plant to replay on; give --plant"),
        ((str(study), "--plant", str(bad)), "slots"),
        ((str(study), "--plant", "nowhere.json"), "nowhere.json: cannot be read"),
        ((str(study), "--arms", "wa_emwa"), "wa_emwa asked for; the study has"),
        (
            (str(study), "--arms", "wa_emwa", "--arms", "wa_ewma"),
            "wa_emwa asked for",
        ),  # each counts
        ((str(study.parent / "none.yaml"), "--plant", plant), "cannot be read"),
        ((str(study), "--replicates", str(10**14)), f"--replicates {10**14}: is above 1000000"),
        ((str(study), "--draws", str(10**14)), f"--draws {10**14}: is above 10000"),
        ((str(study), "--workers", str(10**14)), f"--workers {10**14}: is above 10000"),
    ):
        code, _, err = lull("replay", *args)
        assert code == 2
        assert why in err
        assert err.count("\n") == 1
    assert lull("replay", str(study))[0] == 0
    code, _, err = lull("replay", str(study), "--draws", "7")
    assert code == 2
    assert "holds another replay (draws: 4 there, 7 asked); give another --out" in err
