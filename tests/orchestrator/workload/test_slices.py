"""Slices of a trace: disjoint, by the rule, the k-th for seed k."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.workload.config import SliceRule, TokenRange, TraceConfig
from orchestrator.workload.slices import burst_requests, cut, pick, quiet_fraction
from orchestrator.workload.traces import Trace


def trace_of(at_s: list[float]) -> Trace:
    at_ns = np.array([round(t * 1e9) for t in sorted(at_s)], dtype=np.int64)
    tokens = np.arange(len(at_ns), dtype=np.int64)
    return Trace(
        path=Path("t.csv"),
        at_ns=at_ns - at_ns[0],
        context_tokens=tokens,
        generated_tokens=tokens,
        notes=(),
    )


def config_of(*, time_scale: float = 1.0, thin: float = 1.0, **rule: float) -> TraceConfig:
    limits: dict[str, object] = {
        "min_requests": 0,
        "max_requests": 10_000,
        "max_burst_requests": 10_000,
        **rule,
    }
    return TraceConfig(
        kind="trace",
        path="t.csv",
        time_scale=time_scale,
        slice=SliceRule.model_validate(limits),
        token_scale=1.0,
        prompt_tokens_clip=TokenRange(low=1, high=10),
        output_tokens_clip=TokenRange(low=1, high=10),
        thin=thin,
    )


@settings(deadline=None)
@given(
    at_s=st.lists(st.floats(0, 1000), min_size=2, max_size=200),
    horizon_s=st.floats(2.0, 50.0),
    time_scale=st.floats(0.5, 5.0),
    offset_s=st.floats(0.0, 100.0),
    thin=st.sampled_from([1.0, 0.5]),
)
def test_slices_are_disjoint_and_inside_the_horizon(
    at_s: list[float], horizon_s: float, time_scale: float, offset_s: float, thin: float
) -> None:
    trace = trace_of(at_s)
    config = config_of(time_scale=time_scale, thin=thin, offset_s=offset_s)
    slices = cut(trace, config=config, horizon_s=horizon_s)
    assert len(slices.qualifying) + sum(slices.refused.values()) == slices.windows
    rows = np.concatenate([s.rows for s in slices.qualifying] or [np.empty(0, dtype=np.int64)])
    assert len(rows) == len(set(rows.tolist()))
    for piece in slices.qualifying:
        assert np.all(np.diff(piece.at_us) >= 0)
        assert np.all((piece.at_us >= 0) & (piece.at_us < horizon_s * 1e6))


def test_time_is_scaled_from_the_start_of_the_window() -> None:
    trace = trace_of([0.0, 21.0, 25.0, 39.0, 60.0])
    slices = cut(trace, config=config_of(time_scale=2.0), horizon_s=10.0)
    assert slices.windows == 3
    assert slices.qualifying[1].start_s == 20.0
    assert slices.qualifying[1].at_us.tolist() == [500_000, 2_500_000, 9_500_000]


def test_the_window_in_which_the_trace_ends_is_not_used() -> None:
    assert cut(trace_of([0.0, 29.9]), config=config_of(), horizon_s=10.0).windows == 2


def test_seed_k_takes_the_kth_window_that_qualifies() -> None:
    at_s = [0.0, 10.0, 11.0, 12.0, 20.0, 30.0, 31.0, 32.0, 40.0, 50.0]
    trace, config = trace_of(at_s), config_of(min_requests=3)
    slices = cut(trace, config=config, horizon_s=10.0)
    windows = [
        pick(slices, seed=k, trace=trace, config=config, horizon_s=10.0).window for k in (0, 1)
    ]
    assert windows == [1, 3]
    with pytest.raises(
        ValueError,
        match=r"seed 2 needs 3 slices, 2 of 5 windows qualify.*3 fail.*use seeds 0 to 1, or",
    ) as refused:
        pick(slices, seed=2, trace=trace, config=config, horizon_s=10.0)
    assert "min_requests=3" in str(refused.value)
    assert "relax load.slice" in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"min_requests": 7}, "min_requests=7"),
        ({"max_requests": 5}, "max_requests=5"),
        ({"max_burst_requests": 2}, "max_burst_requests=2"),
        ({"min_quiet_fraction": 0.9}, "min_quiet_fraction=0.9"),
    ],
)
def test_each_rule_is_named_when_it_refuses(rule: dict[str, float], why: str) -> None:
    trace = trace_of([0.0, 0.2, 0.9, 3.0, 5.0, 8.0, 10.0])
    assert cut(trace, config=config_of(**rule), horizon_s=10.0).refused == {why: 1}


def test_a_trace_shorter_than_a_window_says_so() -> None:
    trace, config = trace_of([0.0, 5.0]), config_of(time_scale=2.0)
    slices = cut(trace, config=config, horizon_s=10.0)
    with pytest.raises(ValueError, match=r"5 s long, no whole window of .* = 20 s"):
        pick(slices, seed=0, trace=trace, config=config, horizon_s=10.0)


def test_a_time_scale_that_makes_no_sense_is_refused_not_run() -> None:
    with pytest.raises(ValueError, match="time_scale=1e-12 cuts 5 s"):
        cut(trace_of([0.0, 5.0]), config=config_of(time_scale=1e-12), horizon_s=10.0)


def test_thinning_keeps_about_its_share_and_is_the_same_for_all_seeds() -> None:
    trace = trace_of([i * 0.01 for i in range(10_001)])
    config = config_of(thin=0.3)
    first, second = (cut(trace, config=config, horizon_s=50.0) for _ in range(2))
    kept = [s.rows.tolist() for s in first.qualifying]
    assert kept == [s.rows.tolist() for s in second.qualifying]
    assert sum(map(len, kept)) == pytest.approx(3000, abs=4 * np.sqrt(10_000 * 0.3 * 0.7))


@given(
    at_us=st.lists(st.integers(0, 10_000_000), max_size=60).map(sorted),
    burst_s=st.floats(0.1, 5.0),
)
def test_bursts_are_counted_over_every_place_of_the_window(
    at_us: list[int], burst_s: float
) -> None:
    width_us = round(burst_s * 1e6)
    slow = max((sum(a <= b < a + width_us for b in at_us) for a in at_us), default=0)
    assert burst_requests(np.array(at_us, dtype=np.int64), burst_s=burst_s) == slow


def test_quiet_bins_are_those_below_half_of_the_mean() -> None:
    at_us = np.array([0, 1, 2, 3, 1_000_000, 2_500_000], dtype=np.int64)  # bins 4, 1, 1, 0
    assert quiet_fraction(at_us, horizon_s=4.0) == 0.25
    assert quiet_fraction(np.empty(0, dtype=np.int64), horizon_s=4.0) == 0.0
