"""Latencies of a request, from its scheduled time, by the formulas of vLLM's benchmark client.

TTFT and E2E count from the scheduled moment, so that a client that sends late hides nothing.
None where a latency does not exist: not sent, not answered, failed, or one token only for TPOT.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from actors.load.request import Outcome, RequestRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Of one request, seconds."""

    lateness_s: float | None  # sent minus scheduled: the client's own share
    ttft_s: float | None  # first token minus scheduled
    tpot_s: float | None
    e2e_s: float | None  # last token minus scheduled; successful requests only


def latency(row: RequestRow) -> Latency:
    """All latencies of one row."""
    start_s = row.scheduled_at_s
    ttft_s = None if row.first_token_at_s is None else row.first_token_at_s - start_s
    ok = row.outcome is Outcome.OK and row.done_at_s is not None
    e2e_s = row.done_at_s - start_s if ok and row.done_at_s is not None else None
    return Latency(
        lateness_s=None if row.sent_at_s is None else row.sent_at_s - start_s,
        ttft_s=ttft_s,
        tpot_s=tpot_s(e2e_s=e2e_s, ttft_s=ttft_s, tokens=row.completion_tokens),
        e2e_s=e2e_s,
    )


def tpot_s(*, e2e_s: float | None, ttft_s: float | None, tokens: int | None) -> float | None:
    """(e2e - ttft) / (tokens - 1): time for each token after the first; None for one token."""
    if e2e_s is None or ttft_s is None or tokens is None or tokens < 2:
        return None
    return (e2e_s - ttft_s) / (tokens - 1)


def pooled_itl_s(rows: Iterable[RequestRow]) -> tuple[float, ...]:
    """Gaps between token-bearing chunks of all successful requests in one pool.

    A chunk may bear several tokens, so there can be fewer gaps than tokens; each gap has one vote.
    """
    return tuple(gap for row in rows if row.outcome is Outcome.OK for gap in row.itl_s)
