"""`AdvisorClient(url)`: the learner's side of `lull advise`, over HTTP with a time limit.

Standard library alone, as actors/coordinator/advice.py is.
"""

import http.client
import json
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeVar

from actors.coordinator.advice import (
    AdviceRefused,
    AdvisorSilent,
    Learner,
    Merged,
    MergeDecision,
    Progress,
    Report,
    Standing,
)

__all__ = ["AdviceRefused", "AdvisorClient", "AdvisorSilent", "MergeDecision", "Progress"]

TIMEOUT_S = 1.0
MOST_ANSWER_BYTES = 256 * 1024
REFUSALS = (400, 409)  # the endpoint's own; any other status is of something in between
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
_Reply = tuple[int, bytes]  # status and body
_Answer = TypeVar("_Answer", MergeDecision, Standing)


def within(call: Callable[[], _Reply], *, timeout_s: float) -> _Reply:
    """What ``call`` gives, or AdvisorSilent after ``timeout_s``, whatever it hangs in.

    In a thread of its own: a time limit of the socket bounds neither the look-up of a name nor an
    answer that comes in drops.
    """
    answers: queue.SimpleQueue[_Reply | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(call())
        except Exception as error:  # noqa: BLE001 - handed to the caller
            answers.put(error)

    try:
        threading.Thread(target=run, name="advisor-call", daemon=True).start()
    except RuntimeError as error:  # this machine gives no more of them
        raise AdvisorSilent(f"the advisor cannot be asked: {error}") from error
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise AdvisorSilent(f"the advisor gave no answer within {timeout_s:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


class HttpTransport:
    """POSTs to `lull advise`; every call ends within ``timeout_s``."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(
                f"url={url!r} is no http:// or https:// URL; give what `lull advise` printed, e.g. "
                "http://127.0.0.1:8710"
            )
        if not timeout_s > 0:
            raise ValueError(f"timeout_s={timeout_s} is not above 0; give seconds")
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s

    def ask(self, report: Report) -> MergeDecision:
        decision = self._read(MergeDecision, self._call("/v1/ready_to_merge", asdict(report)))
        _check(decision, url=self._url)
        return decision

    def merged(self, done: Merged) -> None:
        self._call("/v1/merged", asdict(done))

    def standing(self) -> Standing:
        standing = self._read(Standing, self._call("/v1/advice", None))
        steps = (standing.notice_steps, standing.step or 0, standing.last_merge_step or 0)
        if not all(_whole(n) for n in steps):
            raise AdvisorSilent(f"{self._url} answers what is no standing: {standing}")
        return standing

    def _call(self, path: str, body: dict[str, Any] | None) -> bytes:
        """AdviceRefused where the endpoint says why, AdvisorSilent for all else but an answer."""
        url = self._url + path
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, data=data, headers=headers)

        def call() -> _Reply:
            try:
                with _opener.open(request, timeout=self._timeout_s) as response:
                    return 200, _body(response)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read(MOST_ANSWER_BYTES)

        try:
            status, reply = within(call, timeout_s=self._timeout_s)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)  # refused, reset, no name, not HTTP
            raise AdvisorSilent(f"{url} does not answer: {reason}") from error
        if status == 200:
            return reply
        refusal = _refusal(reply) if status in REFUSALS else None
        if refusal is not None:
            raise AdviceRefused(refusal)
        raise AdvisorSilent(f"{url} answers status {status}")

    def _read(self, kind: type[_Answer], body: bytes) -> _Answer:
        try:
            raw = json.loads(body)
            wanted = {f.name for f in fields(kind)}  # a newer advisor may say more
            found: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()
            }
            return kind(**{k: v for k, v in found.items() if k in wanted})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise AdvisorSilent(
                f"{self._url} answers what is no {kind.__name__}: {body[:80]!r}"
            ) from error


def _check(decision: MergeDecision, *, url: str) -> None:
    """What something else than an advisor sent must not move the trainer."""
    steps = (decision.ask_at_step, decision.round, decision.merge_at_step or 0)
    whole = all(_whole(n) for n in steps)
    if not whole or not isinstance(decision.merge, bool):
        raise AdvisorSilent(f"{url} answers what is no decision: {decision}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _body(response: Any) -> bytes:
    """All of it; ValueError for more than an advisor ever says."""
    length: int | None = response.length  # None: in chunks, or as far as the connection lasts
    bounded = length is not None and length <= MOST_ANSWER_BYTES
    body = bytes(response.read() if bounded else response.read(MOST_ANSWER_BYTES + 1))
    if len(body) > MOST_ANSWER_BYTES:
        raise ValueError(f"its answer is longer than {MOST_ANSWER_BYTES} bytes")
    return body


def _refusal(reply: bytes) -> str | None:
    """The text that the endpoint sends as {"error": ...}; None where it is somebody else's."""
    try:
        said = json.loads(reply)["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return said if isinstance(said, str) else None


class AdvisorClient(Learner):
    """A learner that asks `lull advise` at ``url``.

    ``own_h_steps``: its fixed H while no answer comes within ``timeout_s``, the same for
    all learners. ``learner``: its own number, no two the same.
    """

    def __init__(
        self,
        url: str,
        *,
        own_h_steps: int,
        learner: int = 0,
        timeout_s: float = TIMEOUT_S,
        notice_steps: int = 0,
    ) -> None:
        super().__init__(
            HttpTransport(url, timeout_s=timeout_s),
            learner=learner,
            own_h_steps=own_h_steps,
            notice_steps=notice_steps,
        )
