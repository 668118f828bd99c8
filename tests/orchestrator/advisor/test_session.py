"""An advice from its first report to its record, and the record decided again."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from actors.clock import VirtualClock
from actors.coordinator.advice import AdviceRefused, Learner, MergeDecision, Progress, Report
from actors.coordinator.advisor import Readings
from actors.events import Decided, MergeFinished, MergeStarted, Ticked
from actors.telemetry.server_counts import ServerCounts
from actors.telemetry.snapshot import nothing_known
from orchestrator.advisor.record import AdviceWriter, new_folder
from orchestrator.advisor.session import AdviceSession
from orchestrator.record_files import RecordFailed
from orchestrator.redecide import all_equal, counterfactual, read_records, redecide
from policies.observation import Reason
from tests.advising import SERVER, advice, train


class Busy:
    """A server whose pressure is ``load(now)``; a row is kept for each look."""

    def __init__(self, clock: VirtualClock, load: Callable[[float], float]) -> None:
        self._clock, self._load = clock, load
        self._rows: list[dict[str, Any]] = []
        self.stopped = False

    def read(self) -> Readings:
        now_s = self._clock.now_s()
        pressure = self._load(now_s)
        self._rows.append(
            {
                "at_s": now_s,
                "running": 1,
                "waiting": 0,
                "kv_usage": 0.1,
                "serving": pressure,
                "network": None,
                "checkpoint": None,
                "network_bytes_per_s": None,
                "checkpoint_bytes_per_s": None,
                "blind": False,
            }
        )
        snapshot = replace(nothing_known(now_s), serving=pressure, serving_at_monotonic_s=now_s)
        counts = ServerCounts(scheduled_so_far=int(now_s), in_flight=int(10 * pressure))
        return Readings(load=counts, telemetry=snapshot)

    def drain_rows(self) -> list[dict[str, Any]]:
        rows, self._rows = self._rows, []
        return rows

    def stop(self) -> None:
        self.stopped = True


def wave(now_s: float) -> float:
    """Busy for ten seconds, idle for ten."""
    return 0.8 if now_s % 20 < 10 else 0.0


GATE = {"kind": "pressure_gate", "pressure_threshold": 0.2}
STOPPING = {
    "kind": "stopping",
    "bins": 3,
    "memory_s": 200.0,
    "least_data_s": 20.0,
    "refit_s": 10.0,
}


@pytest.mark.parametrize("policy", [GATE, STOPPING])
def test_a_record_is_decided_again_bit_for_bit(tmp_path: Path, policy: dict[str, Any]) -> None:
    clock, folder = VirtualClock(now_s=100.0), tmp_path / "mine-advice-0"
    session = AdviceSession(
        advice(policy=policy, **SERVER), folder=folder, clock=clock, telemetry=Busy(clock, wave)
    )
    merges = train(session, clock, step_s=[0.5, 0.7], steps=300)
    session.finish()
    session.finish()
    assert merges[0] == merges[1]
    (record,) = read_records(folder)
    assert (record.status, record.arm.label, record.provenance["source"]) == (
        "complete",
        "mine",
        "advice",
    )
    started = [e for e in record.events if isinstance(e, MergeStarted)]
    assert len(started) == len(merges[0]) > 5
    assert len([e for e in record.events if isinstance(e, MergeFinished)]) == len(started)
    assert record.pressure.num_rows > 0
    again = redecide(record)
    assert all_equal([again])
    assert again.decisions > 50
    assert (again.arm, again.note) == ("mine", None)
    reasons = {e.decision.reason for e in record.events if isinstance(e, Decided)}
    assert Reason.BLIND not in reasons
    own = counterfactual(record, str(policy["kind"]))
    assert own.first_different_tick is None


def test_another_policy_on_the_measurements_of_an_advice(tmp_path: Path) -> None:
    clock, folder = VirtualClock(), tmp_path / "a"
    session = AdviceSession(
        advice(policy=GATE, **SERVER), folder=folder, clock=clock, telemetry=Busy(clock, wave)
    )
    train(session, clock, step_s=[0.5], steps=200)
    session.finish()
    (record,) = read_records(folder)
    file = tmp_path / "p.yaml"
    file.write_text("kind: fixed_h\nh_steps: 40\n")
    ticks = [m.tick for m in counterfactual(record, str(file)).merges]
    assert ticks[0] == 8  # 40 steps
    assert all(b - a >= 8 + 2 for a, b in pairwise(ticks))  # a window of 4 s is 2 ticks
    with pytest.raises(ValueError, match=r"neither a policy of the advice \(pressure_gate\)"):
        counterfactual(record, "stopping")


def test_an_edited_decision_of_an_advice_is_found(tmp_path: Path) -> None:
    clock, folder = VirtualClock(), tmp_path / "a"
    session = AdviceSession(advice(), folder=folder, clock=clock)
    train(session, clock, step_s=[0.5], steps=100)
    session.finish()
    log = folder / "events.jsonl"
    log.write_text(log.read_text().replace('"not_scheduled"', '"scheduled"', 1))
    (record,) = read_records(folder)
    assert redecide(record).mismatches == 1


def test_one_that_was_killed_is_partial_and_equal_as_far_as_it_goes(tmp_path: Path) -> None:
    clock, folder = VirtualClock(), tmp_path / "a"
    train(AdviceSession(advice(), folder=folder, clock=clock), clock, step_s=[0.5], steps=60)
    (record,) = read_records(folder)
    assert record.status == "partial"
    assert redecide(record).mismatches == 0


def test_one_that_was_killed_between_a_decision_and_its_merge_is_equal_as_far_as_it_goes(
    tmp_path: Path,
) -> None:
    clock, folder = VirtualClock(), tmp_path / "a"
    train(AdviceSession(advice(), folder=folder, clock=clock), clock, step_s=[0.5], steps=20)
    log = folder / "events.jsonl"
    whole = log.read_text()
    at = whole.rindex('{"type": "merge_started"')
    log.write_text(whole[: at + 20])  # torn in the middle of that line
    (record,) = read_records(folder)
    assert isinstance(record.events[-1], Decided)
    assert record.status == "partial"
    assert redecide(record).mismatches == 0
    edited = whole[:at].rpartition('"scheduled"')
    log.write_text(edited[0] + '"budget"' + edited[2])
    assert redecide(read_records(folder)[0]).mismatches == 1


def test_the_pace_is_measured_before_the_first_merge_can_be_due(tmp_path: Path) -> None:
    """The first step compiles and takes long; the record says what was taken for the pace."""
    clock, folder = VirtualClock(), tmp_path / "a"
    session = AdviceSession(advice(step_s=None), folder=folder, clock=clock)
    learner = Learner(session, learner=0, own_h_steps=99)
    clock.advance(60.0)
    merged = []
    for step in range(1, 61):
        clock.advance(30.0 if step == 2 else 0.25)
        decision = learner.ready_to_merge(step, Progress(tokens=step))
        if step < 9:
            assert decision.reason == "measuring_pace"
        if decision:
            merged.append(step)
    session.finish()
    assert merged == [20, 40, 60]  # fixed_h, 20 steps
    config = json.loads((folder / "config.json").read_text())
    assert (config["step_s"], config["step_s_measured"], config["tick_s"]) == (0.25, True, 1.25)
    assert config["start_step"] == 0
    assert config["corridor"]["width_ticks"] == 4
    (record,) = read_records(folder)
    first = next(e.sample for e in record.events if isinstance(e, Ticked))
    assert first.now_s < 5.0  # the run clock begins with the advice, not with the process
    assert redecide(record).mismatches == 0


def test_training_that_goes_on_from_a_checkpoint_counts_from_there() -> None:
    clock = VirtualClock()
    session = AdviceSession(advice(), folder=None, clock=clock)
    learner = Learner(session, learner=0, own_h_steps=99)
    merged = [s for s in range(1001, 1050) if learner.ready_to_merge(s, Progress(tokens=8 * s))]
    assert merged == [1020, 1040]


def test_without_a_server_a_policy_that_looks_at_it_merges_when_forced(tmp_path: Path) -> None:
    clock, folder = VirtualClock(), tmp_path / "a"
    session = AdviceSession(advice(policy=GATE), folder=folder, clock=clock)
    assert train(session, clock, step_s=[0.5], steps=100) == [[40, 80]]
    assert session.standing().blind is True
    session.finish()
    (record,) = read_records(folder)
    reasons = [e.decision.reason for e in record.events if isinstance(e, Decided)]
    assert set(reasons) == {Reason.BELOW_FLOOR, Reason.BLIND, Reason.AT_CEILING}


def test_a_budget_is_met_exactly(tmp_path: Path) -> None:
    clock = VirtualClock()
    config = advice(policy=GATE, corridor={"budget_merges": 9}, horizon_steps=200, **SERVER)
    session = AdviceSession(config, folder=None, clock=clock, telemetry=Busy(clock, wave))
    merges = train(session, clock, step_s=[0.5, 0.6, 1.4], steps=260)
    assert [len(own) for own in merges] == [9, 9, 9]
    assert merges[0] == merges[1] == merges[2]
    assert merges[0][-1] <= 200


def test_a_record_that_cannot_be_written_does_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: AdviceWriter, events: Any) -> None:
        raise RecordFailed("disk full")

    monkeypatch.setattr(AdviceWriter, "events", full)
    clock = VirtualClock()
    session = AdviceSession(advice(), folder=tmp_path / "a", clock=clock)
    assert train(session, clock, step_s=[0.5], steps=60) == [[20, 40, 60]]
    assert session.standing().problem == "the record ends here: disk full"
    session.finish()


def test_why_nothing_is_known_of_the_server_is_said() -> None:
    class Unread(Busy):
        def read(self) -> Readings:
            snapshot = nothing_known(self._clock.now_s())
            return Readings(load=None, telemetry=replace(snapshot, error="lacks vllm:waiting"))

    clock = VirtualClock()
    session = AdviceSession(
        advice(policy=GATE, **SERVER), folder=None, clock=clock, telemetry=Unread(clock, wave)
    )
    said = "blind, nothing is known of the server: lacks vllm:waiting"
    assert session.standing().problem == said  # before any learner has come
    train(session, clock, step_s=[0.5], steps=60)
    assert session.standing().problem == said


def test_one_that_is_started_again_goes_on_from_the_last_merge_and_refuses_nobody() -> None:
    """The fast one is heard first; the slow one stands steps behind, and not before the merge."""
    session = AdviceSession(advice(), folder=None, clock=VirtualClock())

    def ask(learner: int, step: int) -> MergeDecision:
        return session.ask(
            Report(learner=learner, step=step, tokens=1, merges=2, last_merge_step=40)
        )

    assert [(ask(i, s).merge, ask(i, s).ask_at_step) for i, s in ((0, 53), (1, 43))] == [
        (False, 55),
        (False, 55),
    ]
    assert ask(0, 60).merge_at_step == 60  # fixed_h, 20 steps from that merge
    assert ask(1, 60).merge


def test_one_that_comes_up_late_refuses_nobody_either() -> None:
    session = AdviceSession(advice(), folder=None, clock=VirtualClock())
    assert not session.ask(Report(learner=0, step=53, tokens=1)).merge
    assert not session.ask(Report(learner=1, step=3, tokens=1)).merge
    given = AdviceSession(advice(start_step=50), folder=None, clock=VirtualClock())
    given.ask(Report(learner=0, step=53, tokens=1))
    with pytest.raises(AdviceRefused, match=r"learner 1 reports step 3, .* at step 50"):
        given.ask(Report(learner=1, step=3, tokens=1))


def test_a_folder_that_holds_an_advice_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds a run already"):
        AdviceSession(advice(), folder=tmp_path)


def test_a_row_that_is_no_json_ends_the_record_and_not_the_training(tmp_path: Path) -> None:
    class Odd(Busy):
        def drain_rows(self) -> list[dict[str, Any]]:
            return [{"at_s": 1.0, "kv_usage": math.nan}]

    clock = VirtualClock()
    session = AdviceSession(
        advice(**SERVER), folder=tmp_path / "a", clock=clock, telemetry=Odd(clock, wave)
    )
    assert train(session, clock, step_s=[0.5], steps=60) == [[20, 40, 60]]
    assert "cannot be written as strict JSON" in str(session.standing().problem)


def test_notes_tell_who_joined_and_what_a_merge_took(tmp_path: Path) -> None:
    clock, folder = VirtualClock(), tmp_path / "a"
    session = AdviceSession(advice(), folder=folder, clock=clock)
    train(session, clock, step_s=[0.5, 0.5], steps=20, merge_s=6.0)
    session.finish()
    notes = [json.loads(line) for line in (folder / "notes.jsonl").read_text().splitlines()]
    assert [(n["kind"], n["learner"], n["step"], n["seconds"]) for n in notes] == [
        ("joined", 0, 1, None),
        ("joined", 1, 1, None),
        ("merged", 0, 20, 6.0),
        ("merged", 1, 20, 6.0),
    ]
    (record,) = read_records(folder)
    assert [e.overran for e in record.events if isinstance(e, MergeFinished)] == [True]


def test_every_advice_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert [new_folder(tmp_path / "runs", "x").name for _ in range(2)] == [
        "x-advice-0",
        "x-advice-1",
    ]


def test_what_an_advice_does_not_hold_is_told_by_name(tmp_path: Path) -> None:
    clock, folder = VirtualClock(), tmp_path / "a"
    session = AdviceSession(advice(), folder=folder, clock=clock)
    train(session, clock, step_s=[0.5], steps=30)
    session.finish()
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "step_s": None}))
    with pytest.raises(ValueError, match="holds no advice and its pace"):
        redecide(read_records(folder)[0])
    broken = {**config["advice"], "tick_steps": 0}
    path.write_text(json.dumps({**config, "advice": broken}))
    with pytest.raises(ValueError, match=r"config.json: advice: tick_steps: .*greater than or eq"):
        redecide(read_records(folder)[0])
