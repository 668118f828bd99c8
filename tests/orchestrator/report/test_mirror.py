"""What MLflow is told: finite numbers, valid names, one step a control tick."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.calibration.verdict import VerdictKind
from orchestrator.report import mirror

DESIGN_NAMES = {
    "slo/violation_rate",
    "slo/violations_per_merge",
    "latency/e2e_p95_s",
    "latency/ttft_p95_s",
    "latency/tpot_p95_s",
    "goodput/rps",
    "merge/count",
    "merge/seconds",
    "train/tokens_per_s",
}
NUMBERS = st.none() | st.floats() | st.integers(-(10**6), 10**6)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()),
    lambda inner: st.dictionaries(st.text(min_size=1), inner, max_size=4),
)


@given(st.dictionaries(st.text(), NUMBERS))
def test_no_unknown_nan_or_infinity_gets_through(values: dict[str, float | None]) -> None:
    found = mirror.finite(values)
    assert all(math.isfinite(v) for v in found.values())
    assert set(found) == {k for k, v in values.items() if v is not None and math.isfinite(v)}


@settings(max_examples=40)
@given(st.dictionaries(st.text(min_size=1), TREES, max_size=4))
def test_params_have_names_and_lengths_that_mlflow_takes(config: dict[str, Any]) -> None:
    for name, value in mirror.flat_params(config).items():
        assert re.fullmatch(r"[A-Za-z0-9_\-. :/]{1,250}", name)
        assert isinstance(value, str)
        assert len(value) <= 6000


def test_params_are_the_resolved_config(make_made: Callable[..., Any]) -> None:
    study = make_made().study
    params = mirror.flat_params(study.model_dump(mode="json"))
    assert params["islands.model.hidden_size"] == "32"
    assert params["load.kind"] == "bursts"
    assert params["slo.ttft_s"] == "null"
    assert json.loads(params["seeds"]) == [1, 2]
    assert json.loads(params["arms"])[0] == {"kind": "no_sync"}
    assert mirror.flat_params({"a": "x" * 9000})["a"] == "x" * 6000


def test_metric_names_are_those_of_the_design_and_unknowns_are_left_out(
    make_made: Callable[..., Any],
) -> None:
    made = make_made()
    ewma = next(m for m in made.metrics if m.arm == "wa_ewma")
    figures = mirror.seed_metrics(ewma)
    assert set(figures) >= DESIGN_NAMES
    assert figures["slo/violation_rate"] == ewma.violation_rate
    assert figures["merge/seconds"] == 12.0
    calm = next(m for m in made.metrics if m.kind == "no_sync")
    assert "slo/violations_per_merge" not in mirror.seed_metrics(calm)
    unknown = replace(ewma, violation_rate=None, e2e_p95_s=float("inf"))
    assert not {"slo/violation_rate", "latency/e2e_p95_s"} & set(mirror.seed_metrics(unknown))


def test_a_placebo_has_windows_but_no_merge_seconds(make_made: Callable[..., Any]) -> None:
    placebo = next(m for m in make_made().metrics if m.kind == "placebo")
    assert placebo.merge_planned_s == 12.0
    assert mirror.seed_metrics(placebo)["merge/seconds"] == 0.0


def test_an_arm_is_mirrored_from_the_judgements_row(make_made: Callable[..., Any]) -> None:
    made = make_made()
    row = next(r for r in made.judgement.arms if r["arm"] == "wa_ewma")
    figures = mirror.arm_metrics(row)
    assert figures["slo/violation_rate"] == row["violation_rate"]
    assert figures["merge/count"] == 3.0
    assert figures["merge/seconds"] == 12.0
    assert figures["slo/violations_per_merge"] == row["violations"] / row["merges"]
    assert "latency/ttft_p95_s" not in figures  # unknown in that row
    assert mirror.arm_metrics({}) == {}


def test_series_step_by_control_tick_and_skip_what_was_unknown(
    make_made: Callable[..., Any],
) -> None:
    made = make_made()
    points = mirror.series(made.records[0], tick_s=1.0)
    ticks: dict[str, list[int]] = {}
    for point in points:
        ticks.setdefault(point.name, []).append(point.tick)
    assert ticks["load/in_flight"] == list(range(38))
    assert ticks["pressure/serving"] == [t for t in range(38) if t != 3]
    assert ticks["train/loss"] == list(range(38))
    first = next(p for p in points if p.name == "train/loss")
    losses = [5.5 - 0.01 * i + 0.1 * k for i in range(4) for k in (0, 1)]
    assert first.value == pytest.approx(sum(losses) / len(losses))


def test_ticks_of_another_length_hold_the_steps_of_their_time(
    make_made: Callable[..., Any],
) -> None:
    points = mirror.series(make_made().records[0], tick_s=2.0)
    loss = [p for p in points if p.name == "train/loss"]
    assert [p.tick for p in loss] == list(range(19))
    assert [p.at_s for p in loss] == [2.0 * t for t in range(19)]


def test_gate_tags_stand_for_one_verdict_and_name_policies_where_they_differ(
    make_made: Callable[..., Any],
) -> None:
    judgement = make_made(judge=["wa_ewma", "fixed_h"]).judgement
    tags = mirror.verdict_tags(judgement.verdicts[:1])
    assert tags["gate.verdict"] == "INCONCLUSIVE"
    assert tags["claim.tier"] == "none"
    assert tags["gate.load_match"] == "not_assessable"
    assert tags["gate.matched_random"] == "not_met"
    assert tags["gate.exposure_match"] == "absent"  # not among its conditions
    passed = replace(judgement.verdicts[1], verdict=VerdictKind.PASS, tier=2)
    both = mirror.verdict_tags((judgement.verdicts[0], passed))
    assert both["gate.verdict"] == "wa_ewma: INCONCLUSIVE; fixed_h: PASS"
    assert both["claim.tier"] == "wa_ewma: none; fixed_h: 2"
    assert both["gate.load_match"] == "not_assessable"
    assert mirror.verdict_tags(())["gate.verdict"] == "nothing judged"


def test_tags_tell_arm_policy_seed_and_engine(make_made: Callable[..., Any]) -> None:
    made = make_made(broken={("wa_ewma", 2): "partial"})
    record = next(r for r in made.records if r.arm.label == "matched_random-of-wa_ewma-d1")
    tags = mirror.seed_tags(made.study, record)
    assert (tags["policy"], tags["seed"], tags["regime"]) == ("wa_ewma", "1", "bursts")
    assert (tags["engine"], tags["source"]) == ("mock", "live")
    assert tags["lull.run_hash"] == "0123456789ab"
    assert tags["mlflow.source.git.commit"] == "c0ffee"
    lost = next(r for r in made.records if r.status == "partial")
    assert "island 1 was lost" in mirror.seed_tags(made.study, lost)["mlflow.note.content"]


def test_a_group_is_finished_only_when_every_run_is_complete() -> None:
    assert mirror.mlflow_status(["complete", "complete"]) == "FINISHED"
    assert mirror.mlflow_status(["partial"]) == "KILLED"
    assert mirror.mlflow_status(["complete", "partial"]) == "FAILED"


def test_wall_time_comes_from_the_provenance_or_is_unknown(make_made: Callable[..., Any]) -> None:
    record = make_made().records[0]
    assert mirror.started_ms(record) == 1_795_953_600_000
    assert mirror.length_s(record) == 38.0
    assert mirror.started_ms(replace(record, provenance={})) is None
