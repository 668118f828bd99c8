"""A whole study on Ray with the mock engine: record, verdict, reuse, faults, nothing left."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from actors.serving.http import post_json
from tests.cluster.studies import Lull, our_processes, wait_for, write_study

pytest.importorskip("ray")
pytest.importorskip("torch")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def runs(folder: Path) -> dict[str, Path]:
    return {p.name.rsplit("-s", 1)[0]: p for p in (folder / "runs" / "tiny").glob("*-s0-*")}


def test_a_study_runs_in_two_parts_is_judged_again_and_reused(lull: Lull, tmp_path: Path) -> None:
    study = write_study(tmp_path)
    code, output = lull("run", str(study), "--require", "pass", "--no-track", "--most-runs", "1")
    assert code == 1, output
    assert "2 runs are not measured yet; the same command goes on with them" in output
    assert set(runs(tmp_path)) == {"no_sync-start"}
    assert "--require pass: wa_ewma: INCONCLUSIVE" in output
    code, output = lull("run", str(study))
    assert code == 0, output
    assert "1 complete identical runs reused" in output
    assert "engine=mock" in output
    assert "INCONCLUSIVE" in output
    folder = tmp_path / "runs" / "tiny"
    found = runs(tmp_path)
    assert set(found) == {"no_sync-start", "no_sync-end", "wa_ewma"}
    for run in found.values():
        table = pq.read_table(run / "requests.parquet")
        assert len(set(table["request_id"].to_pylist())) == table.num_rows > 0
        assert events(run)[-1]["status"] == "complete"
    merges = [e for e in events(found["wa_ewma"]) if e["type"] == "merge_finished"]
    assert len(merges) == 2
    for merge in merges:
        assert len({part["parameter_hash"] for part in merge["parts"]}) == 1
        assert len(merge["parts"]) == 2
    for name in ("timeline.png", "envelope.png", "report.html", "verdicts.json"):
        assert (folder / name).stat().st_size > 0

    verdicts = json.loads((folder / "verdicts.json").read_text())
    for path in (folder / "verdicts.json", *folder.glob("*/metrics.json")):
        path.unlink()
    code, output = lull("gate", str(folder), "--json")
    assert code == 0, output
    assert json.loads(output) == verdicts

    code, output = lull("run", str(study), "--no-track", "--resume")
    assert code == 0, output
    assert "3 complete identical runs reused" in output
    changed = write_study(tmp_path, slo__e2e_s=0.3)
    code, output = lull("run", str(changed), "--no-track")
    assert code == 2, output
    assert "--out" in output
    code, output = lull("gate", str(folder), "--json")  # a refusal changes nothing
    assert json.loads(output) == verdicts


def start_and_wait_for_merge(lull: Lull, study: Path) -> "subprocess.Popen[str]":
    """A study whose first arm is the policy, up to its first open merge window."""
    child = lull.start("run", str(study), "--no-track")

    def merging() -> bool:
        assert child.poll() is None, child.communicate()[0]
        logs = (lull.folder / "runs").glob("tiny/*/events.jsonl")
        return any('"merge_started"' in log.read_text() for log in logs)

    wait_for(merging, limit_s=90.0, what="first merge")
    return child


ONE_ARM = [{"kind": "policy", "policy": "wa_ewma"}]
THEN_CONTROL = [*ONE_ARM, {"kind": "matched_random", "of": "wa_ewma"}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_a_marked_partial_record(
    lull: Lull, tmp_path: Path, number: signal.Signals
) -> None:
    child = start_and_wait_for_merge(lull, write_study(tmp_path, arms=ONE_ARM))
    child.send_signal(number)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 1, output
    assert f"interrupted by {number.name}" in output
    assert "Traceback" not in output
    (run,) = runs(tmp_path).values()
    last = events(run)[-1]
    assert (last["type"], last["status"]) == ("arm_finished", "partial")
    table = pq.read_table(run / "requests.parquet")
    assert "not_sent" in table["outcome"].to_pylist()
    scheduled = json.loads((run / "config.json").read_text())
    assert scheduled["arm"]["label"] == "wa_ewma"


def test_sigkill_of_the_driver_leaves_a_partial_record_and_no_process(
    lull: Lull, tmp_path: Path
) -> None:
    child = start_and_wait_for_merge(lull, write_study(tmp_path, arms=ONE_ARM))
    child.kill()
    child.wait()
    (run,) = runs(tmp_path).values()
    assert events(run)[-1]["type"] != "arm_finished"
    code, output = lull("gate", str(tmp_path / "runs" / "tiny"), "--json")
    assert code == 0, output
    assert "partial" in output


@pytest.mark.parametrize(
    ("process", "said"), [("actors.serving.mock_server", "sidecar 0"), ("ray::Island", "island")]
)
def test_a_lost_part_makes_the_run_invalid_and_the_study_goes_on(
    lull: Lull, tmp_path: Path, process: str, said: str
) -> None:
    study = write_study(tmp_path, arms=THEN_CONTROL)
    child = start_and_wait_for_merge(lull, study)
    os.kill(our_processes(process)[0].pid, signal.SIGKILL)
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 1, output
    assert "invalid" in output
    assert said in output
    assert "Traceback" not in output
    status = {label: events(run)[-1]["status"] for label, run in runs(tmp_path).items()}
    assert sorted(status.values()) == ["complete", "invalid"], output
    for run in runs(tmp_path).values():
        *before, last = events(run)
        assert last["at_s"] >= max(e["at_s"] for e in before if e["type"] == "merge_started") > 0.0
        assert all(len(e["what"]) < 300 for e in before if e["type"] == "faulted")
        table = pq.read_table(run / "requests.parquet")
        assert len(set(table["request_id"].to_pylist())) == table.num_rows > 0


def test_a_metric_that_is_renamed_in_mid_run_is_named(lull: Lull, tmp_path: Path) -> None:
    child = start_and_wait_for_merge(lull, write_study(tmp_path, arms=ONE_ARM))
    (run,) = runs(tmp_path).values()
    url = json.loads((run / "provenance.json").read_text())["sidecars"][0]["url"]
    metric = "vllm:num_requests_running"
    fault = {"kind": "rename_metric", "metric": metric, "to": "vllm:requests_now"}
    post_json(f"{url}/mock/fault", fault)
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 1, output
    why = events(run)[-1]["why"]
    assert "telemetry blind at" in why
    assert f"metric {metric} is not in /metrics" in why
    assert "MetricMissing" not in output


def test_on_fault_stop_ends_the_study(lull: Lull, tmp_path: Path) -> None:
    study = write_study(tmp_path, arms=THEN_CONTROL, on_fault="stop")
    child = start_and_wait_for_merge(lull, study)
    os.kill(our_processes("actors.serving.mock_server")[0].pid, signal.SIGKILL)
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 1, output
    assert len(runs(tmp_path)) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"corridor__budget_merges": 9}, "budget"),
        ({"islands__num_cpus": 64.0}, "CPU: 128.5 needed"),
        ({"islands__num_gpus": 8.0}, "GPU: 16 needed, 0 present"),
        ({"warmup_s": 5.0}, "warmup_s=5 is above the first possible merge"),
        ({"sidecars__engine__max_model_len_tokens": 20}, "20"),
        ({"islands__data": {"source": "folder", "folder": "no/such/folder"}}, "no/such/folder"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    lull: Lull, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    code, output = lull("run", str(write_study(tmp_path, **change)))
    assert code == 2, output
    assert said in output
    assert "Traceback" not in output
    assert not (tmp_path / "runs").exists()
