"""Studies whose mock server is given the merged weights: in the window, proved, or told of."""

import contextlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from actors.serving.exported import read_exported, round_folder
from actors.serving.http import Unreachable, get_json, post_json
from tests.cluster.studies import Lull, wait_for, write_study

pytest.importorskip("ray")
pytest.importorskip("torch")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

HORIZON_S = 7.0  # two merges
POLICY = {"kind": "policy", "policy": "wa_ewma"}
CONTROL = {"kind": "matched_random", "of": "wa_ewma"}
INITIAL = "round-initial"


def started(lull: Lull, *arms: dict[str, str]) -> "subprocess.Popen[str]":
    study = write_study(
        lull.folder,
        arms=list(arms),
        horizon_s=HORIZON_S,
        merge__window_s=1.5,  # for a busy machine: merge, export and refresh take some 0.5 s
        sidecars__refresh={"kind": "in_place"},
    )
    return lull.start("run", str(study), "--no-track")


def runs(lull: Lull) -> dict[str, Path]:
    found = (lull.folder / "runs" / "tiny").glob("*-s0-*")
    return {path.name.rsplit("-s", 1)[0]: path for path in found}


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def first_server(lull: Lull, child: "subprocess.Popen[str]") -> str:
    """URL of the server of the first arm, once that has its first weights."""

    def begun() -> bool:
        assert child.poll() is None, child.communicate()[0]
        return any((run / "config.json").exists() for run in runs(lull).values())

    wait_for(begun, limit_s=90.0, what="first arm")
    (run,) = runs(lull).values()
    url: str = json.loads((run / "provenance.json").read_text())["sidecars"][0]["url"]
    return url


def versions(child: "subprocess.Popen[str]", url: str) -> list[str]:
    """What the server says that it serves, until the study is over; each change once."""
    seen: list[str] = []
    while child.poll() is None:
        with contextlib.suppress(Unreachable):
            version = get_json(f"{url}/weight_info", timeout_s=2.0)["weight_version"]
            if version not in seen[-1:]:
                seen.append(version)
        time.sleep(0.1)
    return seen


def check_refreshes(run: Path) -> None:
    """Each merge's weights are served before its window ends, and it was proved."""
    told = events(run)
    assert told[-1]["status"] == "complete", told[-1]
    merges = {e["event_id"]: e for e in told if e["type"] == "merge_started"}
    finished = [e for e in told if e["type"] == "merge_finished"]
    refreshed = [e for e in told if e["type"] == "sidecar_refreshed"]
    assert [e["round"] for e in refreshed] == [e["round"] for e in finished] == [0, 1]
    for event in refreshed:
        merge = merges[event["cause_id"]]
        assert merge["round"] == event["round"]
        assert (event["kind"], event["sidecar"]) == ("in_place", 0)
        assert merge["planned_start_s"] <= event["started_at_s"]
        assert event["at_s"] <= merge["planned_end_s"]
        assert 0 < event["outage_s"] <= event["at_s"] - event["started_at_s"]
        assert event["error_nats"] <= event["tolerance_nats"]
        assert event["change_nats"] > 0  # other weights than the ones before
    for merge in finished:
        first, second = sorted(merge["parts"], key=lambda part: part["island"])
        assert 0 < first["export_s"] < first["real_s"]  # inside the window, and counted
        assert second["export_s"] == 0
    served = run / "checkpoint" / "served"
    assert {path.name for path in served.iterdir()} == {INITIAL, "round-00000", "round-00001"}
    assert read_exported(round_folder(served, 1)).round == 1


def test_the_server_takes_every_merge_inside_its_window(lull: Lull) -> None:
    child = started(lull, POLICY)
    seen = versions(child, first_server(lull, child))
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0, output
    assert seen == [INITIAL, "round-00000", "round-00001"]
    (run,) = runs(lull).values()
    check_refreshes(run)
    parts = json.loads((run / "metrics.json").read_text())["merge_parts_mean_s"]
    assert parts["export"] > 0


def test_a_refresh_that_fails_ends_its_arm_and_the_next_has_a_new_server(lull: Lull) -> None:
    child = started(lull, POLICY, CONTROL)
    url = first_server(lull, child)
    post_json(f"{url}/mock/fault", {"kind": "reload", "how": "fail"})
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 1, output
    assert "Traceback" not in output
    ended = {run.name: events(run)[-1] for run in runs(lull).values()}
    assert sorted(e["status"] for e in ended.values()) == ["complete", "invalid"], output
    (failed,) = (run for run in runs(lull).values() if ended[run.name]["status"] == "invalid")
    (whole,) = (run for run in runs(lull).values() if run != failed)
    why = ended[failed.name]["why"]
    assert why.startswith("merge 0: sidecar 0: refresh to round-00000 broke off")
    assert "\n" not in why
    assert why in output
    told = events(failed)
    faults = [e for e in told if e["type"] == "faulted"]
    assert [(e["kind"], e["what"]) for e in faults] == [("refresh_failed", why)]
    assert [e["round"] for e in told if e["type"] == "merge_finished"] == [0]
    assert "sidecar_refreshed" not in {e["type"] for e in told}
    check_refreshes(whole)
