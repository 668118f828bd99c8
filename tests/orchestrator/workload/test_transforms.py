"""What is done to a trace: exact where it can be, seeded where it is drawn, said in the steps."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.workload.config import TokenRange
from orchestrator.workload.trace import Origin, Trace
from orchestrator.workload.transforms import (
    dequantised,
    grid_step_ns,
    rate_scaled,
    sliced,
    superposed,
    thinned,
    time_scaled,
    tokens_scaled,
)


def trace_of(at_s: list[float], name: str = "t.csv") -> Trace:
    at_ns = np.array([round(t * 1e9) for t in sorted(at_s)], dtype=np.int64)
    tokens = np.arange(len(at_ns), dtype=np.int64)
    return Trace(
        path=Path(name),
        at_ns=at_ns - at_ns[0],
        context_tokens=tokens,
        generated_tokens=tokens + 100,
        notes=(),
        origin=Origin(format="azure", time_form="seconds", zone="none", first_ns=int(at_ns[0])),
        steps=("read",),
    )


EVEN = trace_of([i / 10 for i in range(1000)])
WIDE = TokenRange(low=1, high=10**6)


def test_a_slice_counts_from_its_first_request_and_knows_where_it_was() -> None:
    piece = sliced(EVEN, start_s=10.05, length_s=1.0)
    assert piece.context_tokens.tolist() == list(range(101, 111))
    assert piece.at_ns.tolist() == [i * 100_000_000 for i in range(10)]
    assert piece.origin is not None
    assert piece.origin.first_ns == 10_100_000_000
    assert piece.steps == ("read", "sliced to [10.05, 11.05) s")
    with pytest.raises(ValueError, match=r"no request in \[200, 210\) s of 99\.9 s"):
        sliced(EVEN, start_s=200.0, length_s=10.0)


def test_time_scale_divides_time() -> None:
    fast = time_scaled(EVEN, scale=4.0)
    assert fast.duration_s == pytest.approx(99.9 / 4)
    assert fast.steps[-1] == "time scale 4"
    with pytest.raises(ValueError, match="time_scale=0"):
        time_scaled(EVEN, scale=0.0)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0, 2.5])
def test_rate_scale_multiplies_requests_and_keeps_each_near_its_time(scale: float) -> None:
    more = rate_scaled(EVEN, scale=scale, spread_s=0.5, seed=3)
    assert len(more.at_ns) == pytest.approx(1000 * scale, abs=4 * np.sqrt(1000 * 0.25) + 1e-9)
    assert np.all(np.diff(more.at_ns) >= 0)
    assert more.origin is not None
    late_ns = more.at_ns + more.origin.first_ns - EVEN.at_ns[more.context_tokens]
    assert np.all((late_ns >= 0) & (late_ns < 500_000_000))
    copies = np.bincount(more.context_tokens, minlength=1000)
    assert set(copies.tolist()) <= {int(scale), int(scale) + (scale % 1 > 0)}
    again = rate_scaled(EVEN, scale=scale, spread_s=0.5, seed=3)
    assert again.at_ns.tolist() == more.at_ns.tolist()
    assert more.steps[-1] == f"rate scale {scale:g} (copies within 0.5 s) with seed 3"


def test_tokens_are_scaled_then_clipped_and_stay_with_their_request() -> None:
    less = tokens_scaled(EVEN, scale=0.5, prompt_clip=TokenRange(low=2, high=4), output_clip=WIDE)
    assert less.context_tokens[:12].tolist() == [2, 2, 2, 2, 2, 2, 3, 4, 4, 4, 4, 4]
    assert less.generated_tokens[:3].tolist() == [50, 50, 51]  # halves to even
    assert less.steps[-1] == "tokens times 0.5, prompt in 2..4, output in 1..1000000"


def test_thinning_keeps_whole_requests() -> None:
    few = thinned(EVEN, share=0.25, seed=1)
    assert len(few.at_ns) == pytest.approx(250, abs=55)
    assert few.origin is not None
    assert np.array_equal(few.at_ns + few.origin.first_ns, EVEN.at_ns[few.context_tokens])
    assert thinned(EVEN, share=0.25, seed=2).at_ns.tolist() != few.at_ns.tolist()
    assert f"thinned to 0.25 with seed 1: {len(few.at_ns)} of 1000" in few.steps[-1]
    with pytest.raises(ValueError, match="keeps no request"):
        thinned(trace_of([0.0]), share=1e-9, seed=0)
    with pytest.raises(ValueError, match=r"thin=1\.5"):
        thinned(EVEN, share=1.5, seed=0)


def test_superposition_holds_every_request_of_each_from_its_own_start() -> None:
    one, two = trace_of([5.0, 6.0, 8.0], "a.csv"), trace_of([100.0, 101.5], "b.csv")
    both = superposed([one, two])
    assert (both.at_ns / 1e9).tolist() == [0.0, 0.0, 1.0, 1.5, 3.0]
    assert both.context_tokens.tolist() == [0, 0, 1, 1, 2]
    assert both.steps == ("a.csv: read", "b.csv: read", "superposed a.csv, b.csv")


@settings(deadline=None, max_examples=30)
@given(
    ticks=st.lists(st.integers(0, 60), min_size=8, max_size=60),
    jitter_ms=st.integers(0, 8),
)
def test_a_grid_is_found_only_where_times_lie_on_one(ticks: list[int], jitter_ms: int) -> None:
    at_ms = np.repeat(np.arange(61) * 3000, 3) + jitter_ms
    assert grid_step_ns((at_ms * 10**6).astype(np.int64)) == 3 * 10**9
    free = np.unique(np.array(ticks) * 1_234_567_891)
    assert grid_step_ns(free.astype(np.int64)) is None


def test_dequantising_stays_inside_the_step() -> None:
    at_ns = np.repeat(np.arange(50, dtype=np.int64) * 3 * 10**9, 4)
    base = trace_of([0.0] * 200)
    grid = Trace(
        path=base.path,
        at_ns=at_ns,
        context_tokens=base.context_tokens,
        generated_tokens=base.generated_tokens,
        notes=(),
        origin=base.origin,
    )
    spread = dequantised(grid, step_ns=3 * 10**9, seed=5)
    assert spread.origin is not None
    absolute = spread.at_ns + spread.origin.first_ns
    late = absolute - at_ns[spread.context_tokens]
    assert np.all((late >= 0) & (late < 3 * 10**9))
    assert late.std() == pytest.approx(3e9 / np.sqrt(12), rel=0.1)


def test_a_transformed_trace_cannot_be_changed_by_accident() -> None:
    with pytest.raises(ValueError, match="read-only"):
        thinned(EVEN, share=0.5, seed=0).at_ns[0] = 5
