"""What the plots draw is what the record holds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from orchestrator.report.envelope_rows import envelope_rows, no_sync_rates, policy_of
from orchestrator.report.series import (
    made_by,
    order_of_arms,
    request_rate,
    violation_marks,
    windows,
)


def record_of(made: Any, arm: str, seed: int = 1) -> Any:
    return next(r for r in made.records if (r.arm.label, r.seed) == (arm, seed))


def test_marks_are_the_violations_that_the_metrics_count(make_made: Callable[..., Any]) -> None:
    made = make_made()
    for record, metrics in zip(made.records, made.metrics, strict=True):
        marks = violation_marks(record)
        assert marks.counted == metrics.requests_scheduled
        assert len(marks.failed_at_s) == metrics.requests_failed
        assert len(marks.slow_at_s) + len(marks.failed_at_s) == metrics.violations
        assert all(marks.slow_at_s >= made.study.warmup_s)


def test_the_rate_sums_to_all_requests_before_the_horizon(make_made: Callable[..., Any]) -> None:
    record = make_made().records[0]
    for bin_s in (1.0, 0.5):
        rate = request_rate(record, horizon_s=38.0, bin_s=bin_s)
        assert rate.sum() * bin_s == pytest.approx(record.requests.num_rows)
    assert len(request_rate(record, horizon_s=38.0)) == 38


def test_a_window_is_real_up_to_the_slowest_island_and_emulated_after(
    make_made: Callable[..., Any],
) -> None:
    made = make_made()
    drawn = windows(record_of(made, "wa_ewma"))
    assert len(drawn) == 3
    for window in drawn:
        assert window.end_s - window.start_s == made.study.merge.window_s
        assert window.real_end_s == pytest.approx(window.start_s + 1.0)
        assert window.emulated
        assert not window.suppressed
    assert all(w.suppressed for w in windows(record_of(made, "placebo-of-wa_ewma")))
    assert windows(record_of(made, "no_sync-start")) == ()


def test_a_merge_that_never_finished_has_no_real_end(make_made: Callable[..., Any]) -> None:
    made = make_made(broken={("wa_ewma", 1): "partial"})
    drawn = windows(record_of(made, "wa_ewma"))
    assert [w.real_end_s is None for w in drawn] == [False, False, True]


def test_arms_come_in_the_studys_order_and_strays_last(make_made: Callable[..., Any]) -> None:
    made = make_made()
    short = make_made(arms=[{"kind": "no_sync"}, {"kind": "policy", "policy": "wa_ewma"}]).study
    assert order_of_arms(short, made.records) == [
        "no_sync-start",
        "no_sync-end",
        "wa_ewma",
        "fixed_h",
        "matched_random-of-wa_ewma-d0",
        "matched_random-of-wa_ewma-d1",
        "placebo-of-wa_ewma",
    ]


def test_only_a_live_vllm_server_is_not_called_simulated(make_made: Callable[..., Any]) -> None:
    made = make_made()
    assert made_by(made.records).startswith("SIMULATED: live, engine=mock")
    assert made_by(made.on_vllm().records) == "live, engine=vllm 0.32.0"
    mixed = (*made.on_vllm().records[:3], *made.records[:3])
    assert made_by(mixed).startswith("SIMULATED")


def test_a_policy_stands_with_its_own_controls_and_all_their_draws(
    make_made: Callable[..., Any],
) -> None:
    made = make_made()
    fixed, ewma = envelope_rows(made.metrics)
    assert [row.role for row in fixed] == ["policy"]
    assert [row.role for row in ewma] == ["policy", "matched_random", "placebo"]
    draws = next(row for row in ewma if row.role == "matched_random")
    assert {seed: len(rates) for seed, rates in draws.rates.items()} == {1: 2, 2: 2}
    means = [np.mean(rates) for rates in draws.rates.values()]
    assert draws.mean() == pytest.approx(np.mean(means))
    assert "4 draws" in draws.label
    assert len(no_sync_rates(made.metrics)) == 4


def test_runs_that_are_not_complete_are_left_out(make_made: Callable[..., Any]) -> None:
    made = make_made(broken={("wa_ewma", 2): "invalid", ("no_sync-end", 1): "partial"})
    ewma = envelope_rows(made.metrics)[1]
    assert list(ewma[0].rates) == [1]
    assert len(no_sync_rates(made.metrics)) == 3


def test_a_label_gives_its_policy_even_with_a_treacherous_name() -> None:
    assert policy_of("x-of-y-d0", kind="policy") == "x-of-y-d0"
    assert policy_of("matched_random-of-x-d1-d12", kind="matched_random") == "x-d1"
    assert policy_of("placebo-of-x-d1", kind="placebo") == "x-d1"
