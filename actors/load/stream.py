"""One streamed completion as it comes in: token times, usage, and what is wrong with it.

Pure: chunks and their times in. A chunk with a choice bears tokens, also when its text is empty
(special tokens, halves of a character), as in vLLM's own benchmark client.
"""

import json
from typing import Any

from actors.load.sse import SseParser

DONE = "[DONE]"


class BadStream(ValueError):
    """The server's stream is not what was asked for."""


class CompletionStream:
    """State of one response; moments are in the scale of the ``at_s`` that it is fed."""

    def __init__(self) -> None:
        self._sse = SseParser()
        self.first_token_at_s: float | None = None
        self.last_token_at_s: float | None = None
        self.itl_s: list[float] = []
        self.completion_tokens: int | None = None
        self.done = False

    def feed(self, chunk: bytes, *, at_s: float) -> None:
        """Take what arrived at ``at_s``; raises BadStream."""
        try:
            events = self._sse.feed(chunk)
        except UnicodeDecodeError as error:
            raise BadStream(f"the stream is no UTF-8: {error}") from error
        for data in events:
            if data == DONE:
                self.done = True
            else:
                self._event(_object(data), at_s=at_s)

    def check_end(self, *, output_tokens: int) -> None:
        """Raise BadStream unless the stream ended whole, with the tokens asked for."""
        if not self.done:
            cut = " inside an event" if self._sse.pending else ""
            raise BadStream(f"the stream ended early{cut}: no {DONE}")
        if self.first_token_at_s is None:
            raise BadStream("the stream bore no token")
        if self.completion_tokens is None:
            raise BadStream("the stream told no usage; stream_options.include_usage was asked for")
        if self.completion_tokens != output_tokens:
            raise BadStream(f"{self.completion_tokens} tokens, {output_tokens} asked for")

    def _event(self, event: dict[str, Any], *, at_s: float) -> None:
        if "error" in event:
            raise BadStream(f"the server broke off: {_brief(event['error'])}")
        if event.get("choices"):
            if self.last_token_at_s is None:
                self.first_token_at_s = at_s
            else:
                self.itl_s.append(at_s - self.last_token_at_s)
            self.last_token_at_s = at_s
        usage = event.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.completion_tokens = usage["completion_tokens"]


def _object(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except json.JSONDecodeError as error:
        raise BadStream(f"an event is no JSON ({error}): {_brief(data)}") from error
    if not isinstance(event, dict):
        raise BadStream(f"an event is no JSON object: {_brief(data)}")
    return event


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "..."
