"""Metrics: failures stay in the denominator, unknown is None, the record alone decides."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from actors.events import Event, Faulted, MergeFinished, MergeStarted, Ticked
from orchestrator.config import StudyConfig
from orchestrator.metrics import run_metrics
from orchestrator.record_tables import plain_table, planned_windows, requests_table
from orchestrator.records import RunMetrics, RunRecord

Made = tuple[StudyConfig, list[RunRecord]]


@pytest.fixture(scope="module")
def made(make_records: Callable[..., Made]) -> Made:
    return make_records(seeds=[0])


def _record(made: Made, label: str) -> RunRecord:
    return next(r for r in made[1] if r.arm.label == label)


@pytest.fixture
def treated(made: Made) -> RunRecord:
    return _record(made, "matched_random-of-wa_ewma-d0")


def _edited(record: RunRecord, edit: Callable[[int, dict[str, Any]], None]) -> RunRecord:
    """The record with its request rows edited, derived columns made again."""
    rows = record.requests.to_pylist()
    for i, row in enumerate(rows):
        edit(i, row)
    windows = planned_windows(record.events)
    return replace(record, requests=requests_table(rows, windows=windows, e2e_limit_s=0.15))


def _column(record: RunRecord, name: str, change: Callable[[list[Any]], list[Any]]) -> RunRecord:
    """The record with one column of its table overwritten, as an editor of the file would."""
    table = record.requests
    index = table.column_names.index(name)
    field = table.schema.field(name)
    values = pa.array(change(table.column(name).to_pylist()), type=field.type)
    return replace(record, requests=table.set_column(index, field, values))


def _fail(row: dict[str, Any], outcome: str = "http_error") -> None:
    row.update(outcome=outcome, first_token_at_s=None, completion_tokens=None, error="503")


def _counted(record: RunRecord) -> int:
    at_s = np.array(record.requests.column("scheduled_at_s").to_pylist())
    return int(((at_s >= 5.0) & (at_s < 60.0)).sum())


def test_requests_before_the_warmup_are_sent_and_not_counted(treated: RunRecord) -> None:
    m = run_metrics(treated)
    assert m.requests_scheduled_all == treated.requests.num_rows
    assert 0 < m.requests_scheduled == _counted(treated) < m.requests_scheduled_all
    assert m.requests_sent == m.requests_ok == m.requests_scheduled


def test_failures_count_in_the_denominator_and_not_in_percentiles(treated: RunRecord) -> None:
    whole = run_metrics(treated)

    def fail_every_fifth(i: int, row: dict[str, Any]) -> None:
        if i % 5 == 0:
            _fail(row, "timeout" if i % 2 else "http_error")

    m = run_metrics(_edited(treated, fail_every_fifth))
    assert m.requests_scheduled == whole.requests_scheduled
    assert m.requests_failed == sum(n for o, n in m.outcomes.items() if o != "ok") > 0
    assert m.requests_ok + m.requests_failed == m.requests_scheduled
    assert m.violations > whole.violations
    assert m.violation_rate == m.violations / m.requests_scheduled
    assert set(m.outcomes) == {"ok", "timeout", "http_error"}


def test_all_failed_gives_none_and_a_rate_of_one(treated: RunRecord) -> None:
    m = run_metrics(_edited(treated, lambda i, row: _fail(row)))
    assert (m.violation_rate, m.goodput_rps, m.requests_ok) == (1.0, 0.0, 0)
    for name in ("e2e_p50_s", "e2e_p95_s", "e2e_p99_s", "ttft_p95_s", "tpot_p95_s", "itl_p95_s"):
        assert getattr(m, name) is None


def test_percentiles_need_twenty_requests(treated: RunRecord) -> None:
    def keep(n: int) -> RunMetrics:
        seen = 0

        def edit(i: int, row: dict[str, Any]) -> None:
            nonlocal seen
            seen += row["scheduled_at_s"] >= 5.0
            if row["scheduled_at_s"] >= 5.0 and seen > n:
                _fail(row)

        return run_metrics(_edited(treated, edit))

    assert keep(19).e2e_p95_s is None
    known = keep(20)
    assert known.requests_ok == 20
    assert known.e2e_p95_s is not None
    assert known.itl_p95_s is not None


def test_percentiles_are_linear_interpolations_of_the_successful(treated: RunRecord) -> None:
    def edit(i: int, row: dict[str, Any]) -> None:
        row["done_at_s"] = row["scheduled_at_s"] + (i % 100) * 0.01

    record = _edited(treated, edit)
    at_s = np.array(record.requests.column("scheduled_at_s").to_pylist())
    e2e_s = np.array(record.requests.column("e2e_s").to_pylist())[(at_s >= 5.0) & (at_s < 60.0)]
    m = run_metrics(record)
    assert m.e2e_p50_s == pytest.approx(float(np.quantile(e2e_s, 0.5)))
    assert m.e2e_p99_s == pytest.approx(float(np.quantile(e2e_s, 0.99)))


@pytest.mark.parametrize("column", ["e2e_s", "done_at_s"])
def test_editing_one_latency_changes_the_figures_and_is_noticed(
    treated: RunRecord, column: str
) -> None:
    before = run_metrics(treated)
    fine = next(
        i
        for i, row in enumerate(treated.requests.to_pylist())
        if row["scheduled_at_s"] > 5.0 and row["e2e_s"] < 0.1
    )

    def slower(values: list[Any]) -> list[Any]:
        return [v + 0.3 if i == fine else v for i, v in enumerate(values)]

    after = run_metrics(_column(treated, column, slower))
    assert after.violations == before.violations + 1
    assert after.e2e_p99_s != before.e2e_p99_s
    assert before.faults == ()
    assert f"first request {fine}" in after.faults[0]


def test_flattering_one_column_alone_flatters_nothing(treated: RunRecord) -> None:
    before = run_metrics(treated)
    after = run_metrics(_column(treated, "e2e_s", lambda values: [0.01] * len(values)))
    assert after.violations == before.violations > 0
    assert after.e2e_p95_s == before.e2e_p95_s
    assert after.faults[0].startswith("record_contradicts: ")


@pytest.mark.parametrize(
    ("column", "value", "changes"),
    [
        ("request_id", 10_000, True),
        ("prompt_tokens", 17, True),
        ("scheduled_at_s", 59.9, True),
        ("done_at_s", 60.0, False),
    ],
)
def test_the_request_hash_is_that_of_the_table(
    treated: RunRecord, column: str, value: Any, changes: bool
) -> None:
    edited = _column(treated, column, lambda values: [*values[:-1], value])
    assert run_metrics(treated).request_hash == treated.config["request_hash"]
    assert (run_metrics(edited).request_hash != treated.config["request_hash"]) is changes


def test_ttft_and_tpot_limits_violate_when_the_slo_has_them(treated: RunRecord) -> None:
    def with_slo(**slo: float | None) -> int:
        config = {**treated.config, "study": {**treated.config["study"]}}
        config["study"]["slo"] = {"e2e_s": 9.0, "ttft_s": None, "tpot_s": None, **slo}
        return run_metrics(replace(treated, config=config)).violations

    assert with_slo() == 0
    assert 0 < with_slo(ttft_s=0.05) < with_slo(ttft_s=0.01)
    assert 0 < with_slo(tpot_s=0.01) < with_slo(tpot_s=0.002)


def test_violations_of_requests_in_flight_at_a_window_start_are_told_apart(
    treated: RunRecord,
) -> None:
    starts_s = [a for a, _ in planned_windows(treated.events)]

    def edit(i: int, row: dict[str, Any]) -> None:
        """Everything fast, but what arrives in the last 0.8 s before a window takes 1 s."""
        before = any(start - 0.8 <= row["scheduled_at_s"] < start for start in starts_s)
        row["done_at_s"] = row["scheduled_at_s"] + (1.0 if before else 0.05)

    m = run_metrics(_edited(treated, edit))
    assert m.violations > 0
    assert m.violations_not_yet_arrived == 0
    assert m.violations_in_windows == 0


def test_windows_come_from_the_events_and_marked_ones_count(made: Made) -> None:
    placebo = run_metrics(_record(made, "placebo-of-wa_ewma"))
    assert (placebo.merge_count, placebo.marked_windows) == (0, 4)
    assert placebo.merge_planned_s == 16.0
    assert placebo.merge_real_s == 0.0
    assert placebo.merge_emulated_share is None
    assert placebo.requests_in_windows > 0
    assert placebo.violations_not_yet_arrived is not None
    quiet = run_metrics(_record(made, "no_sync-start"))
    assert (quiet.marked_windows, quiet.requests_in_windows) == (0, 0)
    assert quiet.violations_not_yet_arrived is None
    assert quiet.violations_per_merge is None
    assert quiet.hashes_equal is None
    assert quiet.forced_share is None


def test_a_merge_is_as_long_as_its_slowest_island(treated: RunRecord) -> None:
    m = run_metrics(treated)
    assert m.merge_count == m.marked_windows == 4
    assert m.merge_real_s == pytest.approx(4 * 0.5)
    assert m.merge_emulated_s == pytest.approx(4 * 3.5)
    assert m.merge_emulated_share == pytest.approx(3.5 / 4)
    assert m.merge_parts_mean_s["real"] == pytest.approx(0.475)
    assert m.merge_parts_mean_s["checkpoint"] == pytest.approx(0.04)
    assert m.violations_per_merge == m.violations / 4
    assert m.hashes_equal is True


def _with_events(record: RunRecord, change: Callable[[Event], Event | None]) -> RunRecord:
    changed = (change(e) for e in record.events)
    return replace(record, events=tuple(e for e in changed if e is not None))


def test_what_a_server_is_left_is_a_part_of_a_merge_where_there_is_one(treated: RunRecord) -> None:
    def exported(event: Event) -> Event:
        if not isinstance(event, MergeFinished):
            return event
        first, *others = event.parts  # one island exports for all
        return replace(event, parts=(replace(first, export_s=0.3), *others))

    assert "export" not in run_metrics(treated).merge_parts_mean_s
    m = run_metrics(_with_events(treated, exported))
    parts = next(len(e.parts) for e in treated.events if isinstance(e, MergeFinished))
    assert m.merge_parts_mean_s["export"] == pytest.approx(0.3 / parts)


def test_a_merge_that_never_told_leaves_its_cost_unknown(treated: RunRecord) -> None:
    lost = _with_events(
        treated, lambda e: None if isinstance(e, MergeFinished) and e.round == 2 else e
    )
    m = run_metrics(lost)
    assert m.merge_count == 4
    assert m.merge_real_s is None
    assert m.merge_emulated_s is None
    assert m.merge_emulated_share is None
    assert m.hashes_equal is None


def test_overruns_different_parameters_and_blind_ticks_are_counted(treated: RunRecord) -> None:
    def change(event: Event) -> Event:
        if isinstance(event, MergeFinished) and event.round == 1:
            parts = (event.parts[0], replace(event.parts[1], parameter_hash="other"))
            return replace(event, overran=True, parts=parts)
        if isinstance(event, Ticked) and event.sample.tick in (3, 9):
            return replace(event, sample=replace(event.sample, blind=True, serving=None))
        return event

    m = run_metrics(_with_events(treated, change))
    assert (m.merge_overran, m.hashes_equal, m.blind_ticks) == (1, False, 2)


def test_the_latest_end_of_a_window_is_told(made: Made, treated: RunRecord) -> None:
    def late(event: Event) -> Event:
        if isinstance(event, MergeFinished) and event.round == 1:
            return replace(event, at_s=event.at_s + 1.26)
        return event

    assert run_metrics(treated).merge_late_end_max_s == 0.0
    changed = run_metrics(_with_events(treated, late))
    assert changed.merge_late_end_max_s == pytest.approx(1.26)
    assert run_metrics(_record(made, "no_sync-start")).merge_late_end_max_s is None


def test_inner_steps_before_a_merge_are_counted_to_the_end_of_its_real_work(
    made: Made, treated: RunRecord
) -> None:
    """One step a second: [0, first end), then from end to end, on the island with the fewest."""
    ends_s = [
        [p.ended_at_s for p in e.parts] for e in treated.events if isinstance(e, MergeFinished)
    ]
    by_island = [[0.0, *(ends[island] for ends in ends_s)] for island in (0, 1)]
    least = min(
        sum(a_s <= at_s < b_s for at_s in range(60))
        for ends in by_island
        for a_s, b_s in pairwise(ends)
    )
    assert run_metrics(treated).merge_steps_min == least > 0
    assert run_metrics(_record(made, "no_sync-start")).merge_steps_min is None
    nothing = replace(treated, train=treated.train.slice(0, 0))
    assert run_metrics(nothing).merge_steps_min is None


def test_faults_are_named(treated: RunRecord) -> None:
    fault = Faulted(event_id=999, at_s=3.0, kind="server_lost", what="sidecar 0: exit 137")
    m = run_metrics(replace(treated, events=(*treated.events, fault)))
    assert m.faults == ("server_lost: sidecar 0: exit 137",)


def test_lateness_is_apart_inside_and_outside_windows(treated: RunRecord) -> None:
    windows = planned_windows(treated.events)

    def edit(i: int, row: dict[str, Any]) -> None:
        inside = any(a <= row["scheduled_at_s"] < b for a, b in windows)
        row["sent_at_s"] = row["scheduled_at_s"] + (0.5 if inside else 0.01)

    m = run_metrics(_edited(treated, edit))
    assert m.lateness_p99_inside_s == pytest.approx(0.5)
    assert m.lateness_p99_outside_s == pytest.approx(0.01)


def test_training_figures_come_from_the_ends_of_each_island(treated: RunRecord) -> None:
    m = run_metrics(treated)
    assert m.train_steps == 120
    assert list(m.train_loss_by_island) == ["0", "1"]
    assert m.train_loss_start == pytest.approx(5.0 - 0.095 - 0.05)
    assert m.train_loss_end == pytest.approx(5.0 - 0.495 - 0.05)
    assert m.train_tokens_per_s == pytest.approx(120 * 32 / 59)


def test_an_empty_run_knows_nothing_and_says_none(treated: RunRecord) -> None:
    empty = replace(
        treated,
        events=(),
        requests=treated.requests.slice(0, 0),
        train=plain_table("train", []),
        pressure=plain_table("pressure", []),
        status="partial",
        provenance={},
    )
    m = run_metrics(empty)
    assert (m.requests_scheduled, m.violations, m.merge_count, m.train_steps) == (0, 0, 0, 0)
    for name in (
        "violation_rate",
        "goodput_rps",
        "e2e_p95_s",
        "lateness_p99_outside_s",
        "train_loss_start",
        "train_tokens_per_s",
        "serving_pressure_mean",
        "violations_per_merge",
    ):
        assert getattr(m, name) is None, name
    assert m.engine == "unknown"


def test_pressure_is_averaged_over_what_is_known(treated: RunRecord) -> None:
    rows = treated.pressure.to_pylist()
    for i, row in enumerate(rows):
        row["serving"] = None if i % 2 else (9.0 if row["at_s"] < 5.0 else 0.5)
    m = run_metrics(replace(treated, pressure=plain_table("pressure", rows)))
    assert m.serving_pressure_mean == 0.5


def test_the_same_record_gives_the_same_metrics(treated: RunRecord) -> None:
    assert run_metrics(treated) == run_metrics(treated)
    assert any(isinstance(e, MergeStarted) for e in treated.events)
