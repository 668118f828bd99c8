"""The forecast by hand and against pandas: means over time, candidate windows, what is unknown."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.config import WaEwmaConfig
from policies.ewma import Forecast, TimedMean, WaEwma
from policies.observation import Action, Reason, Sample, Seen

MakeSample = Callable[..., Sample]
MakeSeen = Callable[..., Seen]


def config(**changes: float) -> WaEwmaConfig:
    usual = {"half_life_s": 2.0, "mean_half_life_s": 30.0}
    return WaEwmaConfig(kind="wa_ewma", **{**usual, **changes})


def fed(make_sample: MakeSample, counts: list[int | None], **changes: float) -> WaEwma:
    """A policy after ticks 0, 1, ... with these arrivals and always 2 in flight."""
    policy = WaEwma(config(**changes))
    for tick, arrivals in enumerate(counts):
        policy.observe(make_sample(tick, arrivals=arrivals, in_flight=2))
    return policy


def test_mean_is_pandas_ewm_with_half_life_and_times() -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    values = rng.poisson(5, size=60).astype(float)
    regular = pd.to_datetime(np.arange(60) * 0.5, unit="s")
    mean = TimedMean(3.0)
    found = []
    for value in values:
        mean.fold(value, elapsed_s=0.5)
        found.append(mean.mean or 0.0)
    expected = pd.Series(values).ewm(halflife="3s", times=regular).mean()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_irregular_times_weigh_by_duration_as_pandas_does_from_a_zero_start() -> None:
    """pandas with adjust=False gives the weight 1 - 2^(-dt/half_life); its bias is taken out."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    gaps = rng.choice([0.5, 1.0, 1.5, 4.0], size=60)
    values = rng.poisson(5, size=60).astype(float)
    times = pd.to_datetime(np.concatenate([[0.0], np.cumsum(gaps)]), unit="s")

    def recursion(column: list[float]) -> np.ndarray:
        ewm = pd.Series([0.0, *column]).ewm(halflife="3s", times=times, adjust=False)
        return np.asarray(ewm.mean())[1:]

    mean = TimedMean(3.0)
    found = []
    for value, gap in zip(values, gaps, strict=True):
        mean.fold(value, elapsed_s=gap)
        found.append(mean.mean or 0.0)
    expected = recursion(values.tolist()) / recursion([1.0] * 60)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@settings(deadline=None)
@given(
    pieces=st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 20)), min_size=1, max_size=12),
    at=st.integers(0, 11),
    share=st.floats(0.1, 0.9),
)
def test_cutting_a_stretch_in_two_changes_nothing(
    pieces: list[tuple[float, float]], at: int, share: float
) -> None:
    """Time counts, not the number of observations."""
    at %= len(pieces)
    value, length = pieces[at]
    cut = [*pieces[:at], (value, share * length), (value, (1 - share) * length), *pieces[at + 1 :]]
    whole, halves = TimedMean(5.0), TimedMean(5.0)
    for value, length in pieces:
        whole.fold(value, elapsed_s=length)
    for value, length in cut:
        halves.fold(value, elapsed_s=length)
    assert halves.mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-9)


def test_half_of_the_weight_is_gone_after_a_half_life() -> None:
    mean = TimedMean(4.0)
    assert mean.mean is None
    mean.fold(10.0, elapsed_s=1000.0)
    assert mean.mean == pytest.approx(10.0)
    mean.fold(0.0, elapsed_s=4.0)
    assert mean.mean == pytest.approx(5.0)


def test_a_short_first_tick_does_not_set_the_long_run_mean(
    make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    """The first sample comes some milliseconds into the run; an arrival in it is no rate of 100."""
    policy = WaEwma(config())
    policy.observe(make_sample(0, now_s=0.01, arrivals=1, in_flight=0))
    for tick in range(1, 11):
        policy.observe(make_sample(tick, arrivals=2, in_flight=0))
    terms = dict(policy.decide(make_seen(10)).terms)
    # The first tick holds 1 of 21 requests; time weights differ little within a third half-life.
    assert terms["rate_slow"] == pytest.approx(2.1, abs=0.05)


def test_a_missing_tick_holds_and_the_next_count_covers_the_gap(
    make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    gap = fed(make_sample, [0, 3, 3, None, None, 9, 3])
    whole = fed(make_sample, [0, 3, 3, 3, 3, 3, 3])
    held = fed(make_sample, [0, 3, 3, None, None])
    for policy in (gap, whole, held):
        terms = dict(policy.decide(make_seen(6)).terms)
        assert terms["rate_fast"] == pytest.approx(3.0)
        assert terms["rate_slow"] == pytest.approx(3.0)
    # At a changing rate the elapsed time carries the weight: 1 - 2^(-3/2) for three seconds.
    changed = fed(make_sample, [0, *[4] * 200, None, None, 0])
    terms = dict(changed.decide(make_seen(203)).terms)
    assert terms["rate_fast"] == pytest.approx(4.0 * 2 ** (-3 / 2))


def test_traffic_before_the_run_counts_at_its_own_time(make_sample: MakeSample) -> None:
    """A history at negative times, steady at 3 a second, is a rate of 3 at tick 0 and later."""
    policy = WaEwma(config())
    for tick in range(-50, 3):
        policy.observe(make_sample(tick, arrivals=3, in_flight=2, now_s=float(tick)))
    seen = Seen(
        tick=2,
        now_s=2.0,
        tick_s=1.0,
        last_end_tick=0,
        earliest_tick=0,
        latest_tick=9,
        merges_done=0,
        budget=1,
        width_ticks=2,
        target_gap_ticks=5,
        blind=False,
    )
    terms = dict(policy.decide(seen).terms)
    assert terms["rate_fast"] == pytest.approx(3.0, rel=0.03)
    assert terms["rate_slow"] == pytest.approx(3.0, rel=0.03)


def test_arrivals_of_two_samples_at_one_time_are_not_lost(
    make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    policy = WaEwma(config())
    policy.observe(make_sample(0, now_s=0.0, arrivals=4, in_flight=1))
    policy.observe(make_sample(1, now_s=1.0, arrivals=2, in_flight=1))
    assert dict(policy.decide(make_seen(1)).terms)["rate_fast"] == pytest.approx(6.0)


def test_forecast_overlap_by_hand() -> None:
    forecast = Forecast(
        rate_fast=9.0,
        rate_slow=5.0,
        in_flight=7.0,
        in_flight_mean=3.0,
        half_life_s=2.0,
        tick_s=0.5,
        width_ticks=3,
    )

    def rate(ticks: int) -> float:
        return 5.0 + 4.0 * 2 ** (-ticks * 0.5 / 2.0)

    now = 7.0 + 0.5 * (rate(0) + rate(1) + rate(2))
    later = 3.0 + 0.5 * (rate(4) + rate(5) + rate(6))
    assert forecast.overlap(0) == pytest.approx(now)
    assert forecast.overlap(4) == pytest.approx(later)
    assert forecast.typical == pytest.approx(3 * 0.5 * 5.0 + 3.0)


def test_it_waits_in_a_burst_and_merges_in_a_lull(
    make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    burst = fed(make_sample, [0, *[1] * 20, 9, 9, 9])
    waiting = burst.decide(make_seen(23, latest_tick=30))
    assert (waiting.action, waiting.reason) == (Action.DEFER, Reason.FORECAST_LATER)
    lull = fed(make_sample, [0, *[9] * 20, 1, 1, 1])
    merging = lull.decide(make_seen(23, latest_tick=30))
    assert (merging.action, merging.reason) == (Action.MERGE, Reason.FORECAST_BEST)


def test_the_terms_are_those_of_the_choice(make_sample: MakeSample, make_seen: MakeSeen) -> None:
    policy = fed(make_sample, [0, *[1] * 20, 9, 9, 9])
    decision = policy.decide(make_seen(23, latest_tick=30, width_ticks=4))
    terms = dict(decision.terms)
    fast, slow = terms["rate_fast"], terms["rate_slow"]
    assert fast is not None
    assert slow is not None
    forecast = Forecast(
        rate_fast=fast,
        rate_slow=slow,
        in_flight=2.0,
        in_flight_mean=2.0,
        half_life_s=2.0,
        tick_s=1.0,
        width_ticks=4,
    )
    assert fast > slow
    assert terms["overlap_now"] == forecast.overlap(0)
    assert terms["best_later_tick"] == 30  # after a burst the latest window overlaps least
    assert terms["best_later_overlap"] == forecast.overlap(7)
    assert decision.score == pytest.approx(-forecast.overlap(0) / forecast.typical)
    assert terms["best_later_score"] == pytest.approx(-forecast.overlap(7) / forecast.typical)
    assert list(terms)[:2] == ["rate_fast", "rate_slow"]


def test_many_in_flight_now_is_a_reason_to_wait(
    make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    def after(in_flight: int) -> Action:
        policy = fed(make_sample, [0, *[3] * 20])
        policy.observe(make_sample(21, arrivals=3, in_flight=in_flight))
        return policy.decide(make_seen(21)).action

    assert after(in_flight=8) is Action.DEFER
    assert after(in_flight=0) is Action.MERGE


def test_mean_in_flight_weighs_by_time_and_holds_over_missing_counts(
    make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    policy = WaEwma(config(mean_half_life_s=4.0))
    for tick in range(201):
        policy.observe(make_sample(tick, arrivals=1, in_flight=8))
    for tick, in_flight in ((201, None), (202, None), (203, None), (204, 0)):
        policy.observe(make_sample(tick, arrivals=1, in_flight=in_flight))
    terms = dict(policy.decide(make_seen(204)).terms)
    assert terms["in_flight_mean"] == pytest.approx(4.0)  # four seconds, one half-life
    assert terms["in_flight"] == 0.0


def test_waiting_costs_w_stale_at_the_latest_tick(
    make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    counts: list[int | None] = [0, *[1] * 20, 9, 9, 9]
    seen = make_seen(23, latest_tick=30)
    free = fed(make_sample, counts).decide(seen)
    terms = dict(free.terms)
    assert free.score is not None
    assert terms["best_later_score"] is not None
    gain = terms["best_later_score"] - free.score
    assert gain > 0
    cheap = fed(make_sample, counts, w_stale=0.01 * gain).decide(seen)
    assert cheap.action is Action.DEFER
    dear = fed(make_sample, counts, w_stale=20 * gain).decide(seen)
    assert (dear.action, dear.reason) == (Action.MERGE, Reason.FORECAST_BEST)
    # At a price that just eats up the gain of the latest tick, an earlier one is the best.
    priced = dict(fed(make_sample, counts, w_stale=gain).decide(seen).terms)
    tick, overlap = priced["best_later_tick"], priced["best_later_overlap"]
    assert tick is not None
    assert overlap is not None
    assert 23 < tick < 30
    unpriced = free.score * overlap / (terms["overlap_now"] or 0.0)
    assert priced["best_later_score"] == pytest.approx(unpriced - gain * (tick - 23) / 7)


def test_steady_traffic_and_no_traffic_merge_at_once(
    make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    steady = fed(make_sample, [0, *[2] * 20]).decide(make_seen(20))
    assert steady.action is Action.MERGE
    idle = WaEwma(config())
    for tick in range(5):
        idle.observe(make_sample(tick, arrivals=0, in_flight=0))
    decision = idle.decide(make_seen(4))
    assert (decision.action, decision.score) == (Action.MERGE, 0.0)


def test_at_the_latest_tick_there_is_nothing_to_wait_for(
    make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    policy = fed(make_sample, [0, *[1] * 20, 9, 9, 9])
    decision = policy.decide(make_seen(23, latest_tick=23))
    assert decision.reason is Reason.FORECAST_BEST
    assert dict(decision.terms)["best_later_tick"] is None


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [{"arrivals": None, "in_flight": 2}] * 4,  # never yet a count of arrivals
        [{"arrivals": 3, "in_flight": None}] * 4,
        [{"arrivals": 3, "in_flight": 2}] * 3 + [{"arrivals": 3, "in_flight": None}],
        [{"arrivals": 3, "in_flight": 2}],  # one sample at time zero covers no time
    ],
)
def test_without_a_rate_or_the_requests_in_flight_it_defers(
    make_sample: MakeSample, make_seen: MakeSeen, samples: list[dict[str, int | None]]
) -> None:
    policy = WaEwma(config())
    for tick, fields in enumerate(samples):
        policy.observe(make_sample(tick, **fields))
    decision = policy.decide(make_seen(len(samples)))
    assert (decision.action, decision.reason) == (Action.DEFER, Reason.UNKNOWN)
    assert decision.score is None
    terms = dict(decision.terms)
    assert None in (terms["rate_fast"], terms["in_flight"])
    assert terms["overlap_now"] is None
