"""A scheduled request, and what became of it: the row types of the load client."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What became of a scheduled request; anything but OK is a violation."""

    OK = "ok"
    HTTP_ERROR = "http_error"  # status other than 200
    TIMEOUT = "timeout"
    CONNECTION_ERROR = "connection_error"
    BAD_STREAM = "bad_stream"  # stream ended early, no usage, or wrong token count
    CLIENT_LOST = "client_lost"  # the load client ended before it could tell
    NOT_SENT = "not_sent"  # the arm ended (interrupt, fault) before it was sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a seed's request file; identical in every arm."""

    request_id: int  # 0.. in order of scheduled_at_s
    sidecar: int
    scheduled_at_s: float  # run clock
    prompt_tokens: int
    output_tokens: int  # exact: ignore_eos with min_tokens = max_tokens
    prompt_seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """Exactly one for each scheduled request, whatever happened. Times on the run clock."""

    request_id: int
    sidecar: int
    scheduled_at_s: float
    prompt_tokens: int
    output_tokens: int
    prompt_seed: int
    sent_at_s: float | None
    first_token_at_s: float | None
    done_at_s: float | None
    completion_tokens: int | None  # from the server's usage, never from chunks
    outcome: Outcome
    error: str | None
    itl_s: tuple[float, ...]  # gaps between token-bearing chunks after the first
