"""Decisions again from the measurements: equal bit for bit, or the tampered tick is named."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.events import (
    Decided,
    Event,
    HistoryTold,
    MergeFailed,
    MergeFinished,
    MergeStarted,
    Ticked,
)
from orchestrator.arms import study_corridor
from orchestrator.config import StudyConfig
from orchestrator.records import RunRecord
from orchestrator.redecide import all_equal, counterfactual, read_records, redecide
from orchestrator.redecide_words import counterfactual_lines, redecision_lines
from policies.observation import Action, Reason

MakeDir = Callable[..., Path]
MakeRecords = Callable[..., tuple[StudyConfig, list[RunRecord]]]
SHORT = {"memory_s": 30.0, "least_data_s": 8.0, "refit_s": 4.0}
POLICIES: dict[str, Any] = {
    "wa_ewma": {"kind": "wa_ewma", "half_life_s": 2.0, "mean_half_life_s": 20.0},
    "stopping": {"kind": "stopping", "bins": 3, **SHORT},
    "ensemble": {
        "kind": "ensemble",
        "members": [
            {"kind": "ewma_threshold", **SHORT},
            {"kind": "season", **SHORT},
            {"kind": "analog", "neighbours": 2, "context_s": 3.0, "bins": 3, **SHORT},
        ],
    },
    "score": {"kind": "wa_score"},
    "gate": {"kind": "pressure_gate", "pressure_threshold": 0.3},
    "every": {"kind": "fixed_h", "h_steps": 100},
    "chance": {"kind": "uniform_random"},
}
ARMS = [
    {"kind": "no_sync"},
    *({"kind": "policy", "policy": name} for name in POLICIES),
    {"kind": "matched_random", "of": "wa_ewma", "draws": 2},
    {"kind": "placebo", "of": "wa_ewma"},
    {"kind": "oracle", "of": "wa_ewma"},
    {"kind": "aa", "of": "wa_ewma"},
]


@pytest.fixture
def study(make_records: MakeRecords) -> tuple[StudyConfig, dict[str, RunRecord]]:
    study, records = make_records(placement="policy", policies=POLICIES, arms=ARMS, seeds=[3])
    return study, {r.arm.label: r for r in records}


@pytest.fixture
def runs(study: tuple[StudyConfig, dict[str, RunRecord]]) -> dict[str, RunRecord]:
    return study[1]


def test_told_history_is_decided_from_again(make_records: MakeRecords) -> None:
    """Without it the policy would not know enough to forecast, and would decide otherwise."""
    learner = {"kind": "stopping", "least_data_s": 60.0, "refit_s": 30.0}
    _, (record,) = make_records(
        placement="policy",
        policies={"learner": learner},
        arms=[{"kind": "policy", "policy": "learner"}],
        judge=["learner"],
        seeds=[3],
        history={"length_s": 240.0, "service_s": 0.1},
    )
    assert redecide(record).mismatches == 0
    reasons = {e.decision.reason for e in record.events if isinstance(e, Decided)}
    assert Reason.TOO_LITTLE_DATA not in reasons
    assert Reason.FORECAST_BEST in reasons
    untold = changed(record, lambda e: None if isinstance(e, HistoryTold) else e)
    assert redecide(untold).mismatches > 0


@pytest.fixture
def study_dir(make_study_dir: MakeDir) -> Path:
    arms = [{"kind": "policy", "policy": "wa_ewma"}]
    return make_study_dir(placement="policy", policies=POLICIES, arms=arms, seeds=[3])


def changed(record: RunRecord, change: Callable[[Event], Event | None]) -> RunRecord:
    events = (change(e) for e in record.events)
    return replace(record, events=tuple(e for e in events if e is not None))


def test_every_arm_of_a_study_decides_the_same_again(runs: dict[str, RunRecord]) -> None:
    again = [redecide(record) for record in runs.values()]
    assert len(again) == 2 + len(POLICIES) + 5
    assert {r.ticks for r in again} == {61}
    assert {r.decisions for r in again} == {60}
    assert [r.run for r in again if r.mismatches] == []
    assert list(redecision_lines(again))[-1] == "equal, bit for bit: 840 decisions of 14 runs"


def test_guard_rails_are_decided_again_too(make_records: MakeRecords) -> None:
    sidecars = {"count": 2, "engine": {"kind": "mock"}}
    guards = {"max_gap_s": 12.5, "max_overlap_share": 0.51}
    _, records = make_records(
        placement="policy",
        policies=POLICIES,
        arms=[{"kind": "policy", "policy": p} for p in ("every", "wa_ewma", "chance")],
        seeds=[3],
        sidecars=sidecars,
        guards=guards,
    )
    assert [redecide(r).mismatches for r in records] == [0, 0, 0]
    reasons = {
        r.arm.label: {e.decision.reason for e in r.events if isinstance(e, Decided)}
        for r in records
    }
    assert Reason.UNFAIR in reasons["every"]
    assert Reason.UNFAIR not in reasons["chance"]  # a control keeps the schedule it drew


def test_a_decision_edited_by_hand_is_found_and_shown_in_full(study_dir: Path) -> None:
    (folder,) = study_dir.glob("wa_ewma-*")
    log = folder / "events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    (decided,) = [e for e in events if e["type"] == "decided" and e["tick"] == 6]
    assert decided["decision"]["action"] == "defer"
    decided["decision"]["action"] = "merge"
    assert all_equal([redecide(r) for r in read_records(study_dir)])
    log.write_text("".join(json.dumps(e) + "\n" for e in events))
    (found,) = [redecide(r) for r in read_records(folder)]
    assert found.mismatches == 1
    assert found.first is not None
    assert found.first.tick == 6
    assert found.first.logged[0]["decision"]["action"] == "merge"
    assert found.first.decided[0]["decision"]["action"] == "defer"
    text = "\n".join(redecision_lines([found]))
    assert "first mismatch at tick 6" in text
    assert '"action": "merge"' in text
    assert "NOT equal: 1 of 1 runs" in text


def with_decision(record: RunRecord, tick: int, **fields: Any) -> RunRecord:
    def change(event: Event) -> Event:
        if isinstance(event, Decided) and event.tick == tick:
            return replace(event, decision=replace(event.decision, **fields))
        return event

    return changed(record, change)


@pytest.mark.parametrize(
    "fields", [{"action": Action.MERGE}, {"reason": Reason.UNKNOWN}, {"score": 1e-17}]
)
def test_every_field_of_a_decision_counts(
    runs: dict[str, RunRecord], fields: dict[str, Any]
) -> None:
    assert redecide(with_decision(runs["wa_ewma"], 6, **fields)).mismatches == 1


def test_one_bit_of_a_term_is_enough(runs: dict[str, RunRecord]) -> None:
    record = runs["stopping"]
    decided = [e for e in record.events if isinstance(e, Decided) and e.decision.score is not None]
    (name, value), *rest = decided[-1].decision.terms
    assert value
    terms = ((name, value * (1 + 2**-52)), *rest)
    assert redecide(with_decision(record, decided[-1].tick, terms=terms)).mismatches == 1


def test_a_difference_names_the_commit_that_decided_first(
    runs: dict[str, RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.redecide.commit", lambda: {"commit": "b" * 40})
    older = replace(runs["wa_ewma"], provenance={"commit": "a" * 40})
    assert redecide(older).note is None  # equal: nothing to explain
    found = redecide(with_decision(older, 6, score=0.123)).note
    assert (
        found == f"decided by commit {'a' * 12}, this is {'b' * 12}: decide it again with that one"
    )
    same = replace(older, provenance={"commit": "b" * 40})
    assert redecide(with_decision(same, 6, score=0.123)).note is None


def test_an_edited_measurement_changes_what_is_decided(runs: dict[str, RunRecord]) -> None:
    def change(event: Event) -> Event:
        if isinstance(event, Ticked) and event.sample.tick == 7:
            return replace(event, sample=replace(event.sample, arrivals=99))
        return event

    found = redecide(changed(runs["wa_ewma"], change))
    assert found.mismatches > 1
    assert found.first is not None
    assert found.first.tick == 7


def test_a_merge_moved_in_the_log_is_found(runs: dict[str, RunRecord]) -> None:
    def change(event: Event) -> Event:
        return replace(event, tick=event.tick + 1) if isinstance(event, MergeStarted) else event

    record = runs["matched_random-of-wa_ewma-d0"]
    merges = [e.tick for e in record.events if isinstance(e, MergeStarted)]
    found = redecide(changed(record, change))
    assert found.mismatches >= len(merges)
    assert found.first is not None
    assert found.first.tick == merges[0]


def test_a_decision_that_was_left_out_is_found(runs: dict[str, RunRecord]) -> None:
    def change(event: Event) -> Event | None:
        return None if isinstance(event, Decided) and event.tick == 20 else event

    found = redecide(changed(runs["no_sync-start"], change))
    assert (found.mismatches, found.first and found.first.tick) == (1, 20)
    assert found.note == "no policy in this arm: every decision is no_sync"


def test_a_run_that_was_cut_off_is_decided_as_far_as_it_goes(study_dir: Path) -> None:
    (folder,) = study_dir.glob("wa_ewma-*")
    log = folder / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    last = next(i for i, line in enumerate(lines) if '"tick": 30,' in line)  # its Ticked
    log.write_text("".join(lines[: last + 1]) + lines[last + 1][:20])
    (found,) = [redecide(r) for r in read_records(folder)]
    assert (found.ticks, found.decisions, found.mismatches) == (31, 30, 0)
    assert found.note is not None
    assert "its last line is cut" in found.note


def test_a_run_without_ticks_shows_nothing(runs: dict[str, RunRecord]) -> None:
    (first, *_, last) = runs["stopping"].events
    found = redecide(replace(runs["stopping"], events=(first, last)))
    assert found.note == "complete: no tick was recorded, nothing to decide"
    assert not all_equal([found])
    assert list(redecision_lines([found]))[-1] == "no decision was recorded: nothing is shown"


def test_an_oracle_without_its_request_file_cannot_be_built(runs: dict[str, RunRecord]) -> None:
    record = runs["oracle-of-wa_ewma"]
    lighter = replace(record, requests=record.requests.slice(1))
    with pytest.raises(ValueError, match="oracle's schedule follows from the request file"):
        redecide(lighter)


def test_its_own_policy_is_no_counterfactual_difference(runs: dict[str, RunRecord]) -> None:
    own = counterfactual(runs["stopping"], "stopping")
    assert own.merges == own.logged_merges
    assert own.reasons == own.logged_reasons
    assert own.first_different_tick is None
    assert "the same merges at every tick" in "\n".join(counterfactual_lines([own]))


@pytest.mark.parametrize("label", ["wa_ewma", "no_sync-end", "placebo-of-wa_ewma"])
def test_another_policy_keeps_the_corridor_on_the_same_measurements(
    study: tuple[StudyConfig, dict[str, RunRecord]], label: str
) -> None:
    found = counterfactual(study[1][label], "every")
    ticks = [m.tick for m in found.merges]
    assert study_corridor(study[0]).contains(ticks)
    assert len(ticks) == study[0].corridor.budget_merges
    assert ticks[0] == 10  # 100 steps of 0.1 s
    assert found.label == "counterfactual"
    different = min({m.tick for m in found.logged_merges} ^ set(ticks))
    assert found.first_different_tick == different
    text = "\n".join(counterfactual_lines([found]))
    assert f"first different merge at tick {different}: hypothetical" in text


def test_a_policy_from_a_file_is_checked(runs: dict[str, RunRecord], tmp_path: Path) -> None:
    record = runs["wa_ewma"]
    file = tmp_path / "p.yaml"
    file.write_text("kind: fixed_h\nh_steps: 100\n")
    assert counterfactual(record, str(file)).merges == counterfactual(record, "every").merges
    file.write_text("kind: fixed_h\nh_step: 100\n")
    with pytest.raises(ValueError, match=r"p.yaml: h_step: unknown key; did you mean 'h_steps'"):
        counterfactual(record, str(file))
    with pytest.raises(ValueError, match=r"--policy nothing: is neither .*wa_ewma, chance"):
        counterfactual(record, "nothing")


def test_a_merge_that_failed_ends_its_window_and_stands_in_no_other_policy_s_way(
    runs: dict[str, RunRecord],
) -> None:
    def failed(event: Event) -> Event:
        if not isinstance(event, MergeFinished):
            return event
        return MergeFailed(
            event_id=event.event_id,
            cause_id=event.cause_id,
            round=event.round,
            at_s=event.at_s,
            why="too few islands",
        )

    record = changed(runs["wa_ewma"], failed)
    assert redecide(record).mismatches == 0
    usual = counterfactual(runs["wa_ewma"], "every")
    assert counterfactual(record, "every").merges == usual.merges
