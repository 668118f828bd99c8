"""The run on disk: nothing lost, nothing damaged, nothing believed that is not proved."""

import errno
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from actors.events import ArmFinished, ArmStarted, Faulted, MergeStarted
from actors.load.request import Outcome, Request, RequestRow
from orchestrator.arms import expand_arms
from orchestrator.config import StudyConfig
from orchestrator.record_files import write_atomic
from orchestrator.records import ArmSpec
from orchestrator.rundir import (
    RecordFailed,
    RunWriter,
    existing_run,
    read_run,
    read_study,
    refuse_other_config,
    run_hash,
    run_name,
    write_study,
)
from orchestrator.workload.requests import request_hash
from tests.synthetic import INPUTS, study_runs

MakeStudy = Callable[..., StudyConfig]
MakeDir = Callable[..., Path]
PROVENANCE = {"source": "live", "engine": "mock", "engine_version": "1"}


def _requests(n: int) -> tuple[Request, ...]:
    return tuple(
        Request(
            request_id=i,
            sidecar=0,
            scheduled_at_s=float(i),
            prompt_tokens=8,
            output_tokens=4,
            prompt_seed=100 + i,
        )
        for i in range(n)
    )


def _row(request: Request, **changes: Any) -> RequestRow:
    at_s = request.scheduled_at_s
    fields = {
        "sent_at_s": at_s + 0.01,
        "first_token_at_s": at_s + 0.2,
        "done_at_s": at_s + 0.8,
        "completion_tokens": 4,
        "outcome": Outcome.OK,
        "error": None,
        "itl_s": (0.2, 0.2, 0.2),
        **{name: getattr(request, name) for name in Request.__dataclass_fields__},
    }
    return RequestRow(**{**fields, **changes})


def _arm(study: StudyConfig, label: str) -> ArmSpec:
    return next(a for a in expand_arms(study) if a.label == label)


def _writer(folder: Path, study: StudyConfig, label: str = "wa_ewma") -> RunWriter:
    arm = _arm(study, label)
    config = {
        "study": study.model_dump(mode="json"),
        "arm": {name: getattr(arm, name) for name in ArmSpec.__slots__},
        "seed": 0,
        "request_hash": "0" * 64,
        "run_hash": run_hash(study, arm),
        "corridor": {},
    }
    return RunWriter(folder, config=config, provenance=PROVENANCE)


def _requests_of(study: StudyConfig) -> str:
    return request_hash(next(requests for _, _, requests in study_runs(study)))


def _started(event_id: int = 1) -> ArmStarted:
    return ArmStarted(event_id=event_id, at_s=0.0, arm="wa_ewma", seed=0, islands=(0,))


def _window(start_s: float, end_s: float) -> MergeStarted:
    return MergeStarted(
        event_id=2,
        cause_id=1,
        round=0,
        tick=int(start_s),
        at_s=start_s,
        planned_start_s=start_s,
        planned_end_s=end_s,
        suppressed=False,
        islands=(0,),
    )


# Hash and names


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"study": "other"}, True),
        ({"question": "Other?"}, True),
        ({"seeds": [5, 6, 7]}, True),
        ({"gate": {"alpha": 0.01}}, True),
        ({"on_fault": "stop"}, True),
        ({"resources": {"ready_timeout_s": 5.0, "memory_bytes": 9}}, True),
        ({"sidecars": {"engine": {"kind": "mock", "port": 8123, "start_timeout_s": 9.0}}}, True),
        ({"resources": {"placement": "spread"}}, False),
        ({"slo": {"e2e_s": 0.2}}, False),
        ({"horizon_s": 61.0}, False),
        ({"merge": {"window_s": 3.0}}, False),
        ({"sidecars": {"engine": {"kind": "mock", "merge_slowdown": 2.0}}}, False),
        ({"sidecars": {"refresh": {"kind": "none", "every_merges": 3}}}, True),
        ({"sidecars": {"refresh": {"kind": "in_place"}}}, False),
    ],
)
def test_hash_covers_what_can_change_the_result_and_nothing_else(
    make_study: MakeStudy, changes: dict[str, Any], same: bool
) -> None:
    study, other = make_study(), make_study(**changes)
    arm = _arm(study, "wa_ewma")
    assert (run_hash(study, arm) == run_hash(other, arm)) is same


def test_hash_of_controls_does_not_depend_on_the_policy_but_a_policy_arm_does(
    make_study: MakeStudy,
) -> None:
    study = make_study(aa=True, draws=2)
    tuned = {"wa_ewma": {"kind": "wa_ewma", "half_life_s": 9.0, "mean_half_life_s": 20.0}}
    other = make_study(aa=True, draws=2, policies=tuned)
    changed = {a.label for a in expand_arms(study) if run_hash(study, a) != run_hash(other, a)}
    assert changed == {"wa_ewma", "aa-of-wa_ewma"}
    hashes = [run_hash(study, a) for a in expand_arms(study) if a.kind != "no_sync"]
    assert len(set(hashes)) == len(hashes)


def test_hash_ignores_where_files_lie_but_not_which_they_are(make_study: MakeStudy) -> None:
    def hash_of(path: str, model: str) -> str:
        trace = {
            "kind": "trace",
            "path": path,
            "time_scale": 1.0,
            "slice": {"min_requests": 1, "max_requests": 9, "max_burst_requests": 9},
            "token_scale": 1.0,
            "prompt_tokens_clip": {"low": 1, "high": 9},
            "output_tokens_clip": {"low": 1, "high": 9},
        }
        engine = {"kind": "vllm", "model": model, "max_model_len_tokens": 64, "max_num_seqs": 4}
        base = make_study().model_dump(mode="json")
        raw = {**base, "load": trace, "sidecars": {"count": 1, "engine": engine}}
        study = StudyConfig.model_validate_json(json.dumps(raw))
        return run_hash(study, _arm(study, "wa_ewma"))

    here = hash_of("a/code.csv", "/models/tiny")
    assert here == hash_of("/b/c/code.csv", "../elsewhere/tiny")
    assert here != hash_of("a/chat.csv", "/models/tiny")
    assert hash_of("a/code.csv", "one/tiny") != hash_of("a/code.csv", "two/tiny")


@pytest.mark.parametrize(
    ("data", "same"),
    [
        ({"max_bytes": 64_000_000, "order": "random", "tokenizer": "bytes"}, True),
        ({"cache_dir": "/elsewhere"}, True),
        ({"max_bytes": 63_999_999}, False),
        ({"order": "shuffled"}, False),
        ({"packing": "documents"}, False),
        ({"validation_fraction": 0.1}, False),
        ({"tokenizer": {"kind": "file", "path": "t.json"}}, False),
    ],
)
def test_hash_tells_the_data_but_not_that_its_defaults_were_written_down(
    make_study: MakeStudy, data: dict[str, Any], same: bool
) -> None:
    study, other = make_study(), make_study(islands={"data": {"source": "stdlib", **data}})
    arm = _arm(study, "wa_ewma")
    assert (run_hash(study, arm) == run_hash(other, arm)) is same


def test_hash_of_the_first_sources_and_model_holds_nothing_that_came_later(
    make_study: MakeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[dict[str, Any]] = []
    dumps = json.dumps

    def kept(what: Any, **options: Any) -> str:
        hashed.append(what)
        return dumps(what, **options)

    study = make_study()
    monkeypatch.setattr(json, "dumps", kept)
    run_hash(study, _arm(study, "wa_ewma"))
    (what,) = hashed
    assert what["islands"]["data"] == {"source": "stdlib", "folder": None, "max_bytes": 64_000_000}
    assert "kind" not in what["islands"]["model"]


def test_a_label_that_makes_no_safe_folder_name_is_refused(make_study: MakeStudy) -> None:
    arm = _arm(make_study(), "wa_ewma")
    assert run_name(arm, 3, "0123456789ab") == "wa_ewma-s3-0123456789ab"
    for label in ("../up", "a b", "a/b", ".hidden", ""):
        with pytest.raises(ValueError, match="safe"):
            run_name(replace(arm, label=label), 0, "0123456789ab")


# Reuse and refusal


def test_a_complete_identical_run_is_reused_and_another_config_is_refused(
    make_study_dir: MakeDir, make_study: MakeStudy
) -> None:
    study_dir, study = make_study_dir(seeds=[0]), make_study(seeds=[0])
    arm, asked = _arm(study, "wa_ewma"), _requests_of(study)
    found = existing_run(study_dir, arm, 0, study, request_hash=asked, inputs=INPUTS)
    assert found is not None
    assert found.path.name == run_name(arm, 0, run_hash(study, arm))
    assert existing_run(study_dir, arm, 1, study, request_hash=asked, inputs=INPUTS) is None
    other = make_study(seeds=[0], slo={"e2e_s": 0.3})
    with pytest.raises(ValueError, match="refused") as caught:
        existing_run(study_dir, arm, 0, other, request_hash=asked, inputs=INPUTS)
    for part in (run_hash(study, arm), run_hash(other, arm), "--out"):
        assert part in str(caught.value)


def test_a_complete_run_whose_config_was_edited_is_refused(
    make_study_dir: MakeDir, make_study: MakeStudy
) -> None:
    study_dir, study = make_study_dir(seeds=[0]), make_study(seeds=[0])
    arm, asked = _arm(study, "wa_ewma"), _requests_of(study)
    path = study_dir / run_name(arm, 0, run_hash(study, arm)) / "config.json"
    config = json.loads(path.read_text())
    for change, said in (({"momentum": 0.5}, "edited since"), ({"momentum": 7}, "outer.momentum")):
        config["study"]["islands"]["outer"] |= change
        path.write_text(json.dumps(config))
        with pytest.raises(ValueError, match=said) as caught:
            existing_run(study_dir, arm, 0, study, request_hash=asked, inputs=INPUTS)
        assert str(path) in str(caught.value)


def test_a_run_on_another_trace_of_the_same_name_is_refused(
    make_study_dir: MakeDir, make_study: MakeStudy
) -> None:
    study_dir, study = make_study_dir(seeds=[0]), make_study(seeds=[0])
    arm, other = _arm(study, "wa_ewma"), "f" * 64
    with pytest.raises(ValueError, match="another trace under the same name") as caught:
        existing_run(study_dir, arm, 0, study, request_hash=other, inputs={})
    for part in (_requests_of(study)[:12], other[:12], "--out"):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["training_text", "model_folder"])
def test_a_run_with_another_folder_of_the_same_name_is_refused(
    make_study_dir: MakeDir, make_study: MakeStudy, name: str
) -> None:
    study_dir, study = make_study_dir(seeds=[0]), make_study(seeds=[0])
    arm, asked = _arm(study, "wa_ewma"), _requests_of(study)
    path = study_dir / run_name(arm, 0, run_hash(study, arm)) / "provenance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "inputs": {name: "a" * 64}}))
    same, other = {name: "a" * 64}, {name: "b" * 64}
    assert existing_run(study_dir, arm, 0, study, request_hash=asked, inputs=same) is not None
    with pytest.raises(ValueError, match=f"with {name} aaaaaaaaaaaa, this study's is bbbbbbbbbbbb"):
        existing_run(study_dir, arm, 0, study, request_hash=asked, inputs=other)
    path.write_text(json.dumps(PROVENANCE))  # as older versions wrote it
    assert existing_run(study_dir, arm, 0, study, request_hash=asked, inputs=other) is not None


@pytest.mark.parametrize("status", ["invalid", "partial", "killed", "unborn"])
def test_an_unfinished_identical_run_is_moved_aside_with_all_it_holds(
    tmp_path: Path, make_study: MakeStudy, status: str
) -> None:
    study = make_study()
    arm = _arm(study, "wa_ewma")
    folder = tmp_path / run_name(arm, 0, run_hash(study, arm))
    for n in (1, 2):  # twice: the second must not swallow the first
        if status == "unborn":  # killed between the first checkpoint and config.json
            (folder / "checkpoint").mkdir(parents=True)
        else:
            writer = _writer(folder, study)
            writer.event(_started())
            writer.request_rows([_row(_requests(1)[0])])
            if status != "killed":
                writer.finish(status, "why not", 1.0, _requests(2))
        names = sorted(p.name for p in folder.iterdir())
        assert existing_run(tmp_path, arm, 0, study, request_hash="", inputs={}) is None
        assert not folder.exists()
        aside = folder.with_name(f"{folder.name}.partial-{n}")
        assert sorted(p.name for p in aside.iterdir()) == names
    write_study(tmp_path, study)
    assert read_study(tmp_path)[1] == []


def test_two_arms_whose_labels_look_alike_are_kept_apart(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    study = make_study()
    arm = _arm(study, "wa_ewma")
    lookalike = replace(arm, label="wa_ewma-s0")
    _writer(tmp_path / run_name(lookalike, 1, "0123456789ab"), study)
    assert existing_run(tmp_path, arm, 0, study, request_hash="", inputs={}) is None
    assert existing_run(tmp_path, arm, 1, study, request_hash="", inputs={}) is None


# Writing


def test_every_scheduled_request_has_exactly_one_row(tmp_path: Path, make_study: MakeStudy) -> None:
    requests = _requests(5)
    writer = _writer(tmp_path / "run", make_study())
    writer.event(_started())
    writer.request_rows([_row(requests[2]), _row(requests[0])])
    writer.request_rows([_row(requests[2])])  # the same again
    writer.finish("partial", "interrupted by SIGINT", 3.5, requests)
    record = read_run(tmp_path / "run")
    assert record.requests.column("request_id").to_pylist() == [0, 1, 2, 3, 4]
    assert record.requests.column("outcome").to_pylist() == [
        "ok",
        "client_lost",  # due before the arm ended at 3.5 s
        "ok",
        "client_lost",
        "not_sent",
    ]
    assert record.requests.column("sent_at_s").to_pylist()[1] is None
    assert record.requests.column("error").to_pylist()[4] == "interrupted by SIGINT"
    assert (record.status, record.why) == ("partial", "interrupted by SIGINT")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"done_at_s": 9.0}, "request 0 came back twice, differently"),
        ({"request_id": 77}, "request 77 came back as none that was scheduled"),
        ({"prompt_tokens": 9}, "request 0 came back as none that was scheduled"),
    ],
)
def test_rows_that_are_not_the_request_file_make_a_run_invalid(
    tmp_path: Path, make_study: MakeStudy, change: dict[str, Any], why: str
) -> None:
    requests = _requests(1)
    writer = _writer(tmp_path / "run", make_study())
    writer.event(_started())
    writer.request_rows([_row(requests[0]), _row(requests[0], **change)])
    writer.finish("complete", None, 3.0, requests)
    record = read_run(tmp_path / "run")
    assert (record.status, record.why) == ("invalid", why)
    assert record.requests.num_rows == 1


def test_latencies_count_from_the_scheduled_time_and_overlap_from_the_planned_windows(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    requests = _requests(4)
    writer = _writer(tmp_path / "run", make_study(slo={"e2e_s": 0.5}))
    writer.event(_started())
    writer.event(_window(1.5, 2.5))
    writer.request_rows(
        [
            _row(requests[1], done_at_s=1.75),
            _row(requests[2], done_at_s=4.0, first_token_at_s=2.25, sent_at_s=2.125),
            _row(requests[3], completion_tokens=1),
        ]
    )
    writer.finish("complete", None, 3.5, requests)
    rows = read_run(tmp_path / "run").requests.to_pylist()
    assert [r["overlap_s"] for r in rows] == [0.0, 0.25, 0.5, 0.0]
    assert [r["in_window"] for r in rows] == [False, False, True, False]
    assert rows[0]["e2e_s"] is None  # client_lost: unknown, not 0
    assert rows[2]["e2e_s"] == 2.0
    assert rows[2]["ttft_s"] == 0.25
    assert rows[2]["tpot_s"] == pytest.approx(1.75 / 3)
    assert rows[2]["lateness_s"] == 0.125
    assert rows[3]["tpot_s"] is None  # one token has no time per further token


def test_a_request_that_never_ended_overlaps_up_to_its_limit(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    requests = _requests(2)
    writer = _writer(tmp_path / "run", make_study(slo={"e2e_s": 0.5}))
    writer.event(_window(0.25, 9.0))
    writer.request_rows(
        [_row(requests[0], done_at_s=None, outcome=Outcome.TIMEOUT, first_token_at_s=None)]
    )
    writer.finish("complete", None, 3.5, requests)
    rows = read_run(tmp_path / "run").requests.to_pylist()
    assert [r["overlap_s"] for r in rows] == [0.25, 0.5]


def test_nan_and_infinity_are_refused_where_they_would_be_written(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    requests = _requests(1)
    writer = _writer(tmp_path / "run", make_study())
    with pytest.raises(ValueError, match=r"events\.jsonl: event 7"):
        writer.event(Faulted(event_id=7, at_s=math.nan, kind="x", what="y"))
    with pytest.raises(ValueError, match=r"requests\.jsonl\.part"):
        writer.request_rows([_row(requests[0], done_at_s=math.inf)])
    row = {"island": 0, "round": 0, "step": 0, "at_s": 0.0, "tokens": 4, "step_s": 0.1}
    with pytest.raises(ValueError, match=r"train\.jsonl\.part"):
        writer.train_rows([{**row, "loss": math.nan}])
    with pytest.raises(ValueError, match=r"missing \['loss'\]"):
        writer.train_rows([row])
    with pytest.raises(ValueError, match=r"unknown \['extra'\]"):
        writer.train_rows([{**row, "loss": None, "extra": 1}])
    writer.train_rows([{**row, "loss": None}])
    writer.event(_started())
    writer.finish("complete", None, 1.0, requests)
    record = read_run(tmp_path / "run")
    assert record.train.column("loss").to_pylist() == [None]
    assert len(record.events) == 2


def test_the_end_event_comes_last_with_a_fresh_id_and_spools_are_gone(
    make_study_dir: MakeDir,
) -> None:
    for folder in make_study_dir(seeds=[0]).glob("*-s0-*"):
        assert sorted(p.name for p in folder.iterdir()) == [
            "config.json",
            "events.jsonl",
            "pressure.parquet",
            "provenance.json",
            "requests.parquet",
            "train.parquet",
        ]
        events = read_run(folder).events
        ids = [e.event_id for e in events]
        assert isinstance(events[-1], ArmFinished)
        assert len(set(ids)) == len(ids)


def test_a_run_folder_is_never_overwritten_but_may_hold_a_checkpoint(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    _writer(tmp_path / "run", make_study())
    with pytest.raises(ValueError, match="nothing is overwritten"):
        _writer(tmp_path / "run", make_study())
    with pytest.raises(ValueError, match="provenance lacks source"):
        RunWriter(
            tmp_path / "b",
            config=dict.fromkeys(("study", "arm", "seed", "request_hash", "corridor", "run_hash")),
            provenance={"engine": "mock", "engine_version": "1"},
        )


# A full disk, as /dev/full gives it


@pytest.mark.parametrize("name", ["events.jsonl", "requests.jsonl.part"])
def test_disk_full_in_mid_run_is_one_clear_line(
    tmp_path: Path, make_study: MakeStudy, name: str
) -> None:
    writer = _writer(tmp_path / "run", make_study())
    (tmp_path / "run" / name).symlink_to("/dev/full")
    write = writer.event if name.startswith("events") else writer.request_rows
    what: Any = _started() if name.startswith("events") else [_row(_requests(1)[0])]
    with pytest.raises(RecordFailed, match=rf"{name}: disk full.*free space") as caught:
        write(what)
    assert "\n" not in str(caught.value)
    assert len(caught.value.args) == 1  # crosses a process boundary


@pytest.mark.parametrize("name", ["requests", "train", "pressure"])
def test_disk_full_at_the_end_keeps_all_that_was_written(
    tmp_path: Path, make_study: MakeStudy, name: str
) -> None:
    folder, requests = tmp_path / "run", _requests(3)
    writer = _writer(folder, make_study())
    writer.event(_started())
    writer.request_rows([_row(r) for r in requests[:2]])
    (folder / f"{name}.parquet.tmp").symlink_to("/dev/full")
    with pytest.raises(RecordFailed, match=rf"{name}\.parquet: disk full"):
        writer.finish("complete", None, 9.0, requests)
    assert not (folder / f"{name}.parquet").exists()
    assert not (folder / f"{name}.parquet.tmp").is_symlink()
    assert (folder / "requests.jsonl.part").exists()
    record = read_run(folder)
    assert record.status == "partial"
    assert record.requests.column("outcome").to_pylist()[:2] == ["ok", "ok"]
    writer.finish("complete", None, 9.0, requests)  # after space was freed
    assert read_run(folder).status == "complete"
    assert read_run(folder).requests.num_rows == 3


@pytest.mark.parametrize("name", ["metrics.json", "verdicts.json", "report.html", "timeline.png"])
def test_disk_full_for_what_is_computed_asks_for_no_new_measurement(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / f"{name}.tmp").symlink_to("/dev/full")
    with pytest.raises(RecordFailed, match=f"{name}: disk full.*no record is lost") as caught:
        write_atomic(tmp_path / name, b"x")
    assert "measured anew" not in str(caught.value)


def test_disk_full_elsewhere_speaks_of_no_record(tmp_path: Path) -> None:
    (tmp_path / "plant.json.tmp").symlink_to("/dev/full")
    with pytest.raises(RecordFailed, match=r"plant\.json: disk full.*same command again") as caught:
        write_atomic(tmp_path / "plant.json", b"x")
    assert "record" not in str(caught.value)


def test_a_line_that_did_not_fit_is_taken_back(
    tmp_path: Path, make_study: MakeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    writer = _writer(folder, make_study())
    writer.event(_started())
    before = (folder / "events.jsonl").read_bytes()
    real = os.write
    calls: list[int] = []

    def half(handle: int, data: bytes) -> int:
        if calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        calls.append(1)
        return real(handle, bytes(data)[:10])

    monkeypatch.setattr("orchestrator.record_files.os.write", half)
    with pytest.raises(RecordFailed):
        writer.event(_started(2))
    monkeypatch.undo()
    assert (folder / "events.jsonl").read_bytes() == before
    writer.event(_started(2))
    assert len(read_run(folder).events) == 2


# Reading


def test_a_killed_run_reads_as_partial_with_the_rows_so_far(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    writer = _writer(tmp_path / "run", make_study())
    writer.event(_started())
    writer.request_rows([_row(r) for r in _requests(3)])
    spool = tmp_path / "run" / "requests.jsonl.part"
    spool.write_bytes(spool.read_bytes()[:-25])  # killed in mid-write
    record = read_run(tmp_path / "run")
    assert record.status == "partial"
    assert "no arm_finished" in str(record.why)
    assert record.requests.column("request_id").to_pylist() == [0, 1]
    assert record.train.num_rows == 0


def test_a_log_cut_anywhere_in_its_last_line_reads_as_partial(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    folder, requests = tmp_path / "run", _requests(1)
    writer = _writer(folder, make_study())
    writer.event(_started())
    writer.finish("complete", None, 1.0, requests)
    whole = (folder / "events.jsonl").read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole) - 1):
        (folder / "events.jsonl").write_bytes(whole[:cut])
        record = read_run(folder)
        assert record.status == "partial"
        assert len(record.events) == 1
    (folder / "events.jsonl").write_bytes(whole)
    assert read_run(folder).status == "complete"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, "{broken"),
        (2, '{"type": "who_knows", "event_id": 1}'),
        (2, '{"type": "arm_started", "event_id": 1}'),
        (2, '{"type": "faulted", "event_id": 1, "at_s": NaN, "kind": "a", "what": "b"}'),
        (2, "[]"),
        (1, ""),
    ],
)
def test_a_line_broken_after_the_fact_is_named(
    tmp_path: Path, make_study: MakeStudy, line: int, text: str
) -> None:
    folder = tmp_path / "run"
    writer = _writer(folder, make_study())
    for i in range(1, 5):
        writer.event(_started(i))
    lines = (folder / "events.jsonl").read_text().splitlines()
    lines[line - 1] = text
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=rf"events\.jsonl, line {line}: "):
        read_run(folder)


def test_a_complete_run_without_one_of_its_tables_is_partial(make_study_dir: MakeDir) -> None:
    folder = next(make_study_dir(seeds=[0]).glob("wa_ewma-s0-*"))
    (folder / "pressure.parquet").unlink()
    record = read_run(folder)
    assert (record.status, record.why) == ("partial", "pressure.parquet missing")


def test_damaged_files_are_named(make_study_dir: MakeDir) -> None:
    study_dir = make_study_dir(seeds=[0])
    folder = next(study_dir.glob("wa_ewma-s0-*"))
    table = pq.read_table(folder / "requests.parquet")
    pq.write_table(table.drop_columns(["done_at_s"]), folder / "requests.parquet")
    with pytest.raises(ValueError, match=r"requests\.parquet: has columns"):
        read_run(folder)
    (folder / "requests.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"requests\.parquet: is no readable Parquet"):
        read_run(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: is no strict JSON"):
        read_study(study_dir)
    (study_dir / "study.json").write_text('{"study": "x"}')
    with pytest.raises(ValueError, match=r"study\.json: question: Field required"):
        read_study(study_dir)
    with pytest.raises(ValueError, match=r"study\.json: cannot be read"):
        read_study(study_dir / "nowhere")


def test_a_study_reads_back_equal_and_by_name(
    make_study_dir: MakeDir, make_study: MakeStudy
) -> None:
    study_dir = make_study_dir(seeds=[0, 1])
    (study_dir / "logs").mkdir()
    study, records = read_study(study_dir)
    assert study == make_study(seeds=[0, 1])
    assert [r.path.name for r in records] == sorted(r.path.name for r in records)
    assert len(records) == 2 * len(expand_arms(study))
    assert {r.status for r in records} == {"complete"}


def test_records_in_memory_equal_those_read_from_disk(
    make_study_dir: MakeDir, make_records: Callable[..., Any]
) -> None:
    _, read = read_study(make_study_dir(seeds=[1]))
    _, made = make_records(seeds=[1])
    by_label = {r.arm.label: r for r in made}
    for record in read:
        twin = by_label[record.arm.label]
        assert record.events == twin.events
        assert record.config == twin.config
        for name in ("requests", "train", "pressure"):
            assert getattr(record, name).equals(getattr(twin, name))


def test_a_training_table_of_old_has_rows_without_a_learning_rate(
    make_study_dir: MakeDir,
) -> None:
    path = next(make_study_dir(seeds=[0]).glob("wa_ewma-*/train.parquet"))
    pq.write_table(pq.read_table(path).drop_columns(["lr"]), path)
    train = read_run(path.parent).train
    assert train.column("lr").null_count == train.num_rows > 0


def test_a_run_of_another_config_is_refused_by_seed_and_label(
    make_study_dir: MakeDir, make_study: MakeStudy
) -> None:
    study_dir, study = make_study_dir(seeds=[0]), make_study(seeds=[0])
    arm = _arm(study, "wa_ewma")
    refuse_other_config(study_dir, arm, 0, want=run_hash(study, arm))
    refuse_other_config(study_dir, arm, 1, want="f" * 12)
    with pytest.raises(ValueError, match=r"with config .* this study has ffffffffffff"):
        refuse_other_config(study_dir, arm, 0, want="f" * 12)
