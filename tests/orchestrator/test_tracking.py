"""The MLflow mirror: nested, idempotent, one writer, and never in the way of the record."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
pytest.importorskip("mlflow")

import pyarrow.parquet as pq
from mlflow import MlflowClient

from orchestrator.record_tables import write_table
from orchestrator.rundir import read_study
from orchestrator.shell import command
from orchestrator.tracking import track_study
from orchestrator.tracking_runs import TrackingFailed, TrackingResult
from orchestrator.tracking_store import one_writer, without_password

ARMS = [
    {"kind": "no_sync"},
    {"kind": "policy", "policy": "wa_ewma"},
    {"kind": "matched_random", "of": "wa_ewma", "draws": 1},
]
LABELS = {"no_sync-start", "no_sync-end", "wa_ewma", "matched_random-of-wa_ewma-d0"}


@pytest.fixture(scope="module")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without content: its schema takes seconds, so it is made once."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(autouse=True)
def _no_tracking_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def study_dir(make_study_dir: Callable[..., Path], fresh_database: Path) -> Path:
    """A study of four arms and two seeds, with an empty database where the default one lies."""
    made = make_study_dir(arms=ARMS, seeds=[0, 1])
    shutil.copy(fresh_database, made.parent / "mlflow.db")
    return made


def runs_of(result: TrackingResult) -> list[Any]:
    client = MlflowClient(tracking_uri=result.uri)
    experiment = client.get_experiment_by_name(result.experiment)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], max_results=1000))


def by_name(result: TrackingResult) -> dict[str, Any]:
    runs = runs_of(result)
    named = {run.info.run_name: run for run in runs}
    assert len(named) == len(runs)
    return named


def test_runs_nest_study_arm_seed(study_dir: Path) -> None:
    result = track_study(study_dir)
    runs = by_name(result)
    assert result.runs == len(runs) == 1 + 4 + 8
    assert result.experiment == "synthetic"
    parent = runs["synthetic"]
    assert parent.info.run_id == result.parent_run_id
    assert "mlflow.parentRunId" not in parent.data.tags
    for label in LABELS:
        assert runs[label].data.tags["mlflow.parentRunId"] == parent.info.run_id
        for seed in (0, 1):
            leaf = runs[f"{label} s{seed}"]
            assert leaf.data.tags["mlflow.parentRunId"] == runs[label].info.run_id
            assert leaf.data.tags["seed"] == str(seed)
            assert leaf.info.status == "FINISHED"


def test_the_default_store_lies_beside_the_study_and_the_command_shows_it(study_dir: Path) -> None:
    result = track_study(study_dir)
    database = study_dir.resolve().parent / "mlflow.db"
    assert result.uri == f"sqlite:///{database}"
    mlflow = command("mlflow")
    assert result.ui_command == f"{mlflow} ui --backend-store-uri sqlite:///{database}"
    artifacts = study_dir.parent / "mlartifacts" / result.parent_run_id / "artifacts"
    for name in ("timeline.png", "envelope.png", "report.html", "verdicts.json", "study.json"):
        assert (artifacts / name).read_bytes() == (study_dir / name).read_bytes()


def test_figures_params_and_gate_tags_are_those_of_the_record(study_dir: Path) -> None:
    runs = by_name(track_study(study_dir))
    verdict = json.loads((study_dir / "verdicts.json").read_text())["verdicts"][0]
    status = {c["name"]: c["status"] for c in verdict["conditions"]}
    for run in (runs["synthetic"], runs["wa_ewma"]):
        assert run.data.tags["gate.verdict"] == verdict["verdict"] == "INCONCLUSIVE"
        assert run.data.tags["claim.tier"] == "none"
        for name in ("effect_transfer", "load_match", "exposure_match", "matched_random"):
            assert run.data.tags[f"gate.{name}"] == status[name]
    assert runs["synthetic"].data.params["slo.e2e_s"] == "0.15"
    assert "Is the gate no constant?" in runs["synthetic"].data.tags["mlflow.note.content"]
    assert runs["wa_ewma"].data.params["policy.half_life_s"] == "2.0"
    for record in read_study(study_dir)[1]:
        figures = json.loads((record.path / "metrics.json").read_text())
        leaf = runs[f"{record.arm.label} s{record.seed}"].data
        assert leaf.metrics["slo/violation_rate"] == figures["violation_rate"]
        assert leaf.metrics["merge/count"] == figures["merge_count"]
        assert ("slo/violations_per_merge" in leaf.metrics) is (figures["merge_count"] > 0)
        assert leaf.tags["engine"] == "mock"
        assert leaf.params["request_hash"] == figures["request_hash"]


def test_series_have_one_point_a_control_tick(study_dir: Path) -> None:
    result = track_study(study_dir)
    run_id = by_name(result)["wa_ewma s1"].info.run_id
    client = MlflowClient(tracking_uri=result.uri)
    for name in ("pressure/serving", "load/in_flight", "train/loss"):
        points = client.get_metric_history(run_id, name)
        steps = [p.step for p in points]
        assert sorted(steps) == sorted(set(steps))
        assert len(steps) >= 60
        gaps = {p.step: p.timestamp for p in points}
        assert gaps[10] - gaps[9] == 1000  # tick_s = 1


def test_arms_of_one_seed_name_the_same_request_file(study_dir: Path) -> None:
    runs = by_name(track_study(study_dir))
    digests = {
        seed: {runs[f"{label} s{seed}"].inputs.dataset_inputs[0].dataset.digest for label in LABELS}
        for seed in (0, 1)
    }
    assert [len(found) for found in digests.values()] == [1, 1]
    assert digests[0] != digests[1]


def test_a_second_call_adds_nothing_and_changes_nothing(study_dir: Path) -> None:
    def state(result: TrackingResult) -> list[Any]:
        return sorted(
            (
                r.info.run_id,
                r.info.status,
                sorted(r.data.metrics.items()),
                sorted(r.data.tags.items()),
            )
            for r in runs_of(result)
        )

    first = track_study(study_dir)
    before = state(first)
    second = track_study(study_dir)
    assert second == first
    assert state(second) == before
    client = MlflowClient(tracking_uri=first.uri)
    leaf = by_name(first)["wa_ewma s0"].info.run_id
    assert len(client.get_metric_history(leaf, "slo/violation_rate")) == 1


def test_an_edited_record_updates_figures_gate_and_report(study_dir: Path) -> None:
    first = by_name(track_study(study_dir))
    report = (study_dir / "report.html").read_bytes()
    record = next(r for r in read_study(study_dir)[1] if (r.arm.label, r.seed) == ("wa_ewma", 0))
    path = record.path / "requests.parquet"
    rows = pq.read_table(path).to_pylist()
    row = next(r for r in rows if r["scheduled_at_s"] > 6 and not r["in_window"])
    row["done_at_s"] += 5.0
    row["e2e_s"] += 5.0
    write_table(path, record.requests.from_pylist(rows, schema=record.requests.schema))
    result = track_study(study_dir)
    again = by_name(result)
    name = "wa_ewma s0"
    assert len(again) == len(first)
    assert again[name].info.run_id == first[name].info.run_id
    more = again[name].data.metrics["slo/violations"] - first[name].data.metrics["slo/violations"]
    assert more == 1
    assert (study_dir / "report.html").read_bytes() != report
    artifacts = study_dir.parent / "mlartifacts" / result.parent_run_id / "artifacts"
    assert (artifacts / "report.html").read_bytes() == (study_dir / "report.html").read_bytes()


def test_a_run_measured_anew_replaces_the_old_one(study_dir: Path) -> None:
    first = by_name(track_study(study_dir))["wa_ewma s0"].info.run_id
    record = next(r for r in read_study(study_dir)[1] if (r.arm.label, r.seed) == ("wa_ewma", 0))
    facts = {**record.provenance, "started_at_utc": "2026-11-29T12:00:00Z"}
    (record.path / "provenance.json").write_text(json.dumps(facts))
    result = track_study(study_dir)
    second = by_name(result)["wa_ewma s0"]
    assert second.info.run_id != first
    assert second.info.start_time == 1_795_953_600_000
    assert second.info.end_time == 1_795_953_600_000 + 60_000
    gone = MlflowClient(tracking_uri=result.uri).get_run(first)
    assert gone.info.lifecycle_stage == "deleted"


def test_a_changed_study_gets_a_new_parent_over_the_same_runs(study_dir: Path) -> None:
    first = track_study(study_dir)
    leaf = by_name(first)["wa_ewma s0"].info.run_id
    config = json.loads((study_dir / "study.json").read_text())
    config["question"] = "And with another question?"
    (study_dir / "study.json").write_text(json.dumps(config))
    second = track_study(study_dir)
    assert second.parent_run_id != first.parent_run_id
    runs = {run.info.run_id: run for run in runs_of(second)}
    assert len(runs) == first.runs + 1
    assert leaf in runs
    old = runs[first.parent_run_id].data.tags
    assert old["lull.superseded_by"] == second.parent_run_id
    arms = [r for r in runs.values() if r.data.tags["lull.level"] == "arm"]
    assert {r.data.tags["mlflow.parentRunId"] for r in arms} == {second.parent_run_id}


def test_an_upload_that_was_cut_off_is_done_again(
    study_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = MlflowClient.log_batch, []

    def dies(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise OSError(28, "No space left on device")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_batch", dies)
    with pytest.raises(TrackingFailed, match="No space left on device"):
        track_study(study_dir)
    monkeypatch.setattr(MlflowClient, "log_batch", real)
    result = track_study(study_dir)
    runs = by_name(result)
    assert len(runs) == result.runs
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for label in LABELS:
        assert "train/loss" in runs[f"{label} s0"].data.metrics


def test_the_environment_names_the_store_and_an_argument_wins(
    study_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("env.db", "arg.db"):
        shutil.copy(study_dir.parent / "mlflow.db", tmp_path / name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'env.db'}")
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)  # of another tool
    assert track_study(study_dir).uri.endswith("env.db")
    assert track_study(study_dir, uri=f"sqlite:///{tmp_path / 'arg.db'}").uri.endswith("arg.db")
    assert os.environ["MLFLOW_RUN_ID"] == "0" * 32


def test_a_refusing_server_is_one_line_and_the_record_is_kept(study_dir: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    before = dict(os.environ)
    began_at_s = time.monotonic()
    with pytest.raises(TrackingFailed) as caught:
        track_study(study_dir, uri=f"http://me:secret@127.0.0.1:{port}")
    assert time.monotonic() - began_at_s < 20
    text = str(caught.value)
    assert f"MLflow at http://***@127.0.0.1:{port}: cannot be reached" in text
    assert "Connection refused" in text
    assert f"the record is kept: run `{command('lull')} track {study_dir.resolve()}` later" in text
    assert "secret" not in text
    assert "\n" not in text
    assert dict(os.environ) == before


@pytest.fixture
def silent_server() -> Iterator[int]:
    """A port that takes connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                held.append(listener.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    for connection in held:
        connection.close()


@pytest.mark.slow
def test_a_silent_server_is_given_up_within_20_seconds(study_dir: Path, silent_server: int) -> None:
    began_at_s = time.monotonic()
    with pytest.raises(TrackingFailed, match=r"cannot be reached \(timed out\)"):
        track_study(study_dir, uri=f"http://127.0.0.1:{silent_server}")
    assert time.monotonic() - began_at_s < 25


def test_the_users_own_time_limit_is_kept(
    study_dir: Path, silent_server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    began_at_s = time.monotonic()
    with pytest.raises(TrackingFailed, match="cannot be reached"):
        track_study(study_dir, uri=f"http://127.0.0.1:{silent_server}")
    assert time.monotonic() - began_at_s < 8


def test_a_store_that_cannot_be_written_is_told_in_one_line(study_dir: Path) -> None:
    with pytest.raises(TrackingFailed, match="the record is kept") as caught:
        track_study(study_dir, uri="sqlite:////proc/no-such-folder/mlflow.db")
    assert "\n" not in str(caught.value)
    with pytest.raises(TrackingFailed, match="unsupported URI"):
        track_study(study_dir, uri="ftp://somewhere")


def test_a_folder_without_runs_is_refused(study_dir: Path) -> None:
    for folder in study_dir.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    with pytest.raises(ValueError, match="holds no run"):
        track_study(study_dir)


def test_a_broken_run_is_shown_as_failed_up_to_the_study(study_dir: Path) -> None:
    record = next(r for r in read_study(study_dir)[1] if (r.arm.label, r.seed) == ("wa_ewma", 0))
    events = (record.path / "events.jsonl").read_bytes().splitlines(keepends=True)
    (record.path / "events.jsonl").write_bytes(b"".join(events[:-1]))
    runs = by_name(track_study(study_dir))
    assert runs["wa_ewma s0"].info.status == "KILLED"
    assert "ended from outside" in runs["wa_ewma s0"].data.tags["mlflow.note.content"]
    assert runs["wa_ewma s1"].info.status == "FINISHED"
    assert runs["wa_ewma"].info.status == "FAILED"
    assert runs["synthetic"].info.status == "FAILED"


def test_a_password_is_never_shown() -> None:
    assert without_password("https://u:p@host:1/x") == "https://***@host:1/x"
    assert without_password("sqlite:////a/b.db") == "sqlite:////a/b.db"
    assert without_password("http://host:5000") == "http://host:5000"


def test_one_writer_waits_for_the_other(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    order: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with one_writer(uri):
            order.append("first in")
            inside.set()
            leave.wait(timeout=10)
            order.append("first out")

    def second() -> None:
        inside.wait(timeout=10)
        with one_writer(uri):
            order.append("second in")

    threads = [threading.Thread(target=f) for f in (first, second)]
    for thread in threads:
        thread.start()
    inside.wait(timeout=10)
    assert order == ["first in"]
    leave.set()
    for thread in threads:
        thread.join(timeout=10)
    assert order == ["first in", "first out", "second in"]


def _track(study_dir: str, answers: Any) -> None:
    answers.put(track_study(Path(study_dir)).runs)


@pytest.fixture
def server(tmp_path: Path, fresh_database: Path) -> Iterator[str]:
    """A real tracking server that keeps the artifacts itself."""
    shutil.copy(fresh_database, tmp_path / "served.db")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{tmp_path / 'served.db'}"]
    store += ["--artifacts-destination", str(tmp_path / "served")]
    where = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", *store, *where],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_real_server_gets_runs_and_artifacts_and_stdout_stays_ours(
    study_dir: Path, server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    until_s = time.monotonic() + 120
    while not _answers(server):
        assert time.monotonic() < until_s, "the tracking server did not start"
        time.sleep(0.2)
    capfd.readouterr()
    result = track_study(study_dir, uri=server)
    assert track_study(study_dir, uri=server) == result
    assert capfd.readouterr().out == ""
    assert len(runs_of(result)) == result.runs == 13
    assert result.ui_command.startswith(f"{server}/#/experiments/")
    sent = list((tmp_path / "served").rglob(f"{result.parent_run_id}/artifacts/timeline.png"))
    assert [path.read_bytes() for path in sent] == [(study_dir / "timeline.png").read_bytes()]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_three_processes_share_a_database_that_does_not_exist_yet(
    make_study_dir: Callable[..., Path],
) -> None:
    """Two of them track the same study: still no run stands twice."""
    small = {"arms": ARMS[:2], "seeds": [0]}
    studies = [make_study_dir(name=f"study-{i}", study=f"study-{i}", **small) for i in range(2)]
    assert not (studies[0].parent / "mlflow.db").exists()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [
        context.Process(target=_track, args=(str(d), answers)) for d in (*studies, studies[0])
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0] * 3
    assert [answers.get(timeout=5) for _ in processes] == [1 + 3 + 3] * 3
    client = MlflowClient(tracking_uri=f"sqlite:///{studies[0].parent / 'mlflow.db'}")
    for i in range(2):
        experiment = client.get_experiment_by_name(f"study-{i}")
        assert experiment is not None
        assert len(client.search_runs([experiment.experiment_id])) == 7
