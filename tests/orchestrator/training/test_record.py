"""The folder of a run on the step clock: nothing logged is lost, nothing torn is believed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from actors.events import ArmFinished, CheckpointFailed, Validated
from orchestrator.record_files import RecordFailed
from orchestrator.training.record import (
    StepWriter,
    go_on,
    read_events,
    read_step_run,
    same_config,
)
from tests.orchestrator.training.made_runs import (
    CONFIG,
    PROVENANCE,
    Script,
    checkpointed,
    folder_of,
    rows,
    started,
    validated,
    write_files,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Killed in the middle of writing an event, after its second checkpoint."""
    folder = tmp_path / "run"
    writer = StepWriter(folder, keep=2)
    writer.begin(config=CONFIG, provenance=PROVENANCE)
    for round_ in (1, 2):
        write_files(folder, round_)
        event = checkpointed(round_, event_id=2 * round_)
        writer.take(
            [validated(2 * round_ - 1), event], {event.event_id: rows(5 * round_ - 4, 5 * round_)}
        )
    writer.take([validated(5, 1.5)], {5: rows(11, 13)})
    writer.close()
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"type": "valida')
    return folder


def test_a_killed_run_reads_as_partial_without_its_torn_line(run: Path) -> None:
    record = read_step_run(run)
    assert (record.status, record.why) == ("partial", "ended from outside")
    assert [e.event_id for e in record.events] == [1, 2, 3, 4, 5]
    assert record.train["step"].to_pylist() == list(range(1, 14))
    assert record.config["run_hash"] == CONFIG["run_hash"]


def test_going_on_cuts_to_the_checkpoint_and_keeps_what_is_cut_off(run: Path) -> None:
    before = {name: (run / name).read_bytes() for name in ("events.jsonl", "train.jsonl.part")}
    resume = go_on(run, warn=pytest.fail)
    assert resume is not None
    assert resume.checkpoint == checkpointed(2, event_id=4)
    assert [e.event_id for e in resume.events] == [1, 2, 3, 4]
    assert read_step_run(run).train["step"].to_pylist() == list(range(1, 11))
    for name, content in before.items():
        aside = (run / f"{name}.superseded").read_bytes()
        assert (run / name).read_bytes() + aside == content
    again = go_on(run, warn=pytest.fail)  # nothing more to cut
    assert again == resume
    assert (run / "events.jsonl.superseded").read_bytes().endswith(b'{"type": "valida')


def test_without_a_whole_checkpoint_a_run_begins_anew(run: Path) -> None:
    for round_ in (1, 2):
        (run / folder_of(round_) / "globals.safetensors").unlink()
    heard: list[str] = []
    assert go_on(run, warn=heard.append) is None
    assert len(heard) == 2
    assert (run / "events.jsonl").read_bytes() == b""
    assert list(run.glob("checkpoint-*")) == []
    assert b'"validated"' in (run / "events.jsonl.superseded").read_bytes()


Damage = Callable[[Path], object]


def swapped(run: Path) -> None:
    """Another event of the same length where the checkpoint stood."""
    path = run / "events.jsonl"
    path.write_text(path.read_text().replace('"tick": 20', '"tick": 21'))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run / "events.jsonl").unlink(), "events.jsonl: is missing"),
        (lambda run: (run / "train.jsonl.part").unlink(), "train.jsonl.part: is missing"),
        (lambda run: (run / "events.jsonl").write_text("{}\n"), "3 bytes, the checkpoint was"),
        (swapped, "does not end with the checkpoint of round 2"),
    ],
    ids=["events", "rows", "cut", "changed"],
)
def test_a_log_that_does_not_fit_its_checkpoint_is_refused(
    run: Path, damage: Damage, said: str
) -> None:
    damage(run)
    with pytest.raises(ValueError, match=said):
        go_on(run, warn=pytest.fail)


def test_a_broken_line_in_the_middle_is_refused_by_number(run: Path) -> None:
    path = run / "events.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"type": "unheard_of"}', *lines[2:]]))
    with pytest.raises(ValueError, match=r"line 2: is no event of this version .*unheard_of"):
        read_events(path)


def test_rows_stand_on_disk_before_the_event_that_they_precede(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StepWriter(run, keep=2, after=5)
    order: list[str] = []
    monkeypatch.setattr(writer, "event", lambda event: order.append(f"event {event.event_id}"))
    monkeypatch.setattr(writer, "train_rows", lambda found: order.append(f"{len(found)} rows"))
    writer.take([validated(6), validated(7)], {7: rows(14, 15)})
    assert order == ["0 rows", "event 6", "2 rows", "event 7"]


def test_a_checkpoint_that_failed_leaves_no_files(run: Path) -> None:
    write_files(run, 3)
    writer = StepWriter(run, keep=2, after=5)
    writer.event(CheckpointFailed(event_id=6, at_s=1.0, round=3, why="disk full"))
    writer.close()
    assert not (run / folder_of(3)).exists()


@pytest.mark.parametrize("status", ["complete", "invalid"])
def test_the_end_is_an_event_after_the_table(tmp_path: Path, status: str) -> None:
    folder = tmp_path / "run"
    writer = StepWriter(folder, keep=1)
    writer.begin(config=CONFIG, provenance=PROVENANCE)
    writer.take([started(1), validated(2)], {2: rows(1, 4)})
    writer.train_rows(rows(5, 6))
    writer.finish(status, None if status == "complete" else "island 1 lost", 60.0)
    record = read_step_run(folder)
    last = record.events[-1]
    assert isinstance(last, ArmFinished)
    assert (last.event_id, record.status, record.why) == (3, status, last.why)
    assert record.train["step"].to_pylist() == [1, 2, 3, 4, 5, 6]
    # An invalid run may go on from a checkpoint, whose rows are needed then.
    assert (folder / "train.jsonl.part").exists() is (status == "invalid")


def test_a_run_that_ended_in_a_fault_goes_on_from_its_checkpoint(run: Path) -> None:
    go_on(run, warn=pytest.fail)
    StepWriter(run, keep=2, after=4).finish("invalid", "island 1 lost", 60.0)
    assert read_step_run(run).status == "invalid"
    resume = go_on(run, warn=pytest.fail)
    assert resume is not None
    assert read_step_run(run).status == "partial"
    assert isinstance(resume.events[0], Validated)


def test_numbers_that_are_none_and_unknown_columns_are_refused(run: Path) -> None:
    writer = StepWriter(run, keep=2)
    with pytest.raises(ValueError, match=r"train\.jsonl\.part"):
        writer.train_rows(rows(1, 1, loss=float("nan")))
    with pytest.raises(ValueError, match=r"unknown \['extra'\]"):
        writer.train_rows([{**rows(1, 1)[0], "extra": 1}])
    with pytest.raises(ValueError, match=r"events\.jsonl: event 9"):
        writer.event(validated(9, float("inf")))


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    writer = StepWriter(tmp_path, keep=1)
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    with pytest.raises(RecordFailed, match=r"events\.jsonl: disk full"):
        writer.event(started(1))


def test_the_same_config_is_told_from_another_run_s(run: Path) -> None:
    config = {**CONFIG, "arm": {"kind": "policy", "policy": "every"}}
    assert not same_config(run, config)
    (run / "config.json").write_text(json.dumps(config))
    assert same_config(run, config)
    for key in ("run_hash", "request_hash", "seed"):
        assert not same_config(run, {**config, key: "other"})


def test_ids_go_on_after_those_of_the_log(tmp_path: Path) -> None:
    script = Script(run=tmp_path / "run")
    script.play(keep=1)
    ids = [e.event_id for e in read_step_run(script.run).events]
    assert ids == list(range(1, 10))
    writer = StepWriter(script.run, keep=1, after=ids[-1])
    assert writer.next_id() == 10
    writer.event(replace(validated(writer.next_id()), loss=1.0))
    assert writer.next_id() == 11
    writer.close()
