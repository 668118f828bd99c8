"""Latencies by vLLM's formulas, from the scheduled time."""

from dataclasses import replace

import pytest

from actors.load.latency import latency, pooled_itl_s, tpot_s
from actors.load.request import Outcome, RequestRow

ROW = RequestRow(
    request_id=0,
    sidecar=0,
    scheduled_at_s=10.0,
    prompt_tokens=4,
    output_tokens=5,
    prompt_seed=1,
    sent_at_s=10.030,
    first_token_at_s=10.130,
    done_at_s=12.205,
    completion_tokens=5,
    outcome=Outcome.OK,
    error=None,
    itl_s=(0.050, 2.000, 0.025),  # a two-token chunk, a 2 s stall
)


def test_a_late_send_is_part_of_every_latency() -> None:
    got = latency(ROW)
    assert got.lateness_s == pytest.approx(0.030, abs=1e-9)
    assert got.ttft_s == pytest.approx(0.130, abs=1e-9)
    assert got.e2e_s == pytest.approx(2.205, abs=1e-9)


def test_tpot_spreads_the_decode_time_over_the_tokens_after_the_first() -> None:
    assert latency(ROW).tpot_s == pytest.approx(2.075 / 4, abs=1e-9)
    assert sum(ROW.itl_s) == pytest.approx(2.075, abs=1e-9)


def test_one_token_has_no_tpot() -> None:
    assert tpot_s(e2e_s=1.0, ttft_s=1.0, tokens=1) is None
    assert latency(replace(ROW, completion_tokens=1)).tpot_s is None


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.OK])
def test_a_failed_request_has_no_e2e_and_no_tpot(outcome: Outcome) -> None:
    got = latency(replace(ROW, outcome=outcome))
    assert got.e2e_s is None
    assert got.tpot_s is None


def test_what_never_happened_is_none_not_zero() -> None:
    row = replace(
        ROW, sent_at_s=None, first_token_at_s=None, done_at_s=None, outcome=Outcome.NOT_SENT
    )
    got = latency(row)
    assert (got.lateness_s, got.ttft_s, got.tpot_s, got.e2e_s) == (None, None, None, None)


def test_itl_pools_gaps_of_successful_requests_only() -> None:
    other = replace(ROW, itl_s=(1.0,))
    failed = replace(ROW, outcome=Outcome.TIMEOUT, itl_s=(9.0,))
    assert pooled_itl_s([ROW, failed, other]) == (0.050, 2.000, 0.025, 1.0)
