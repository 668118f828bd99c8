"""The part of vLLM's /v1/completions that the mock speaks: checks, chunks and errors as in 0.32."""

import json
from dataclasses import dataclass
from typing import Any

MODEL = "mock"
VERSION = "mock-1"  # never to be taken for a vLLM release
DEFAULT_MAX_TOKENS = 16  # of the completions API
MOST_LOGPROBS = 20  # of a server that was started without --max-logprobs


class Refused(ValueError):
    """A request that vLLM would refuse; args: message, status, param."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> dict[str, Any]:
        kind = {400: "BadRequestError", 404: "NotFoundError"}.get(
            self.status, "InternalServerError"
        )
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        return {"error": error}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A request that passed vLLM's checks."""

    request_id: str
    model: str
    created: int
    prompt_tokens: int
    output_tokens: int
    stream: bool
    include_usage: bool
    prompt_ids: tuple[int, ...] = ()  # empty for a text
    logprobs: int | None = None  # how many were asked for

    def chunk(self, at: int) -> str:
        """The event of token number `at`; the last one says why it ends."""
        last = at == self.output_tokens - 1
        choice = {
            "index": 0,
            "text": token_text(at),
            "logprobs": None,
            "finish_reason": "length" if last else None,
            "stop_reason": None,
        }
        return _event({**self._head(), "choices": [choice]})

    def closing(self) -> str:
        usage = _event({**self._head(), "choices": [], "usage": self._usage()})
        return (usage if self.include_usage else "") + "data: [DONE]\n\n"

    def whole(self, *, top: dict[str, float] | None = None) -> dict[str, Any]:
        """The answer in one piece; ``top``: log-probabilities of the first token, by its name."""
        text = "".join(token_text(at) for at in range(self.output_tokens))
        logprobs = None if top is None else {"top_logprobs": [top]}
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": "length"}
        return {**self._head(), "choices": [choice], "usage": self._usage()}

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "completion_tokens": self.output_tokens,
        }


def token_text(at: int) -> str:
    return chr(ord("a") + at % 26)


def read_completion(
    body: object, *, model: str, max_model_len_tokens: int, request_id: str, created: int
) -> Completion:
    """Check as vLLM does; the mock never draws an end-of-sequence token, so it fills max_tokens."""
    if not isinstance(body, dict):
        raise Refused("the body is no JSON object")
    if body.get("model") not in (None, model):
        raise Refused(
            f"The model `{body['model']}` does not exist. Valid aliases: {model}.",
            status=404,
            param="model",
        )
    prompt = body.get("prompt")
    prompt_tokens = _prompt_tokens(prompt)
    stream_options = body.get("stream_options") or {}
    return Completion(
        request_id=request_id,
        model=model,
        created=created,
        prompt_tokens=prompt_tokens,
        output_tokens=_output_tokens(body, prompt_tokens, max_model_len_tokens),
        stream=bool(body.get("stream", False)),
        include_usage=bool(stream_options.get("include_usage", False)),
        prompt_ids=tuple(prompt) if isinstance(prompt, list) else (),
        logprobs=_logprobs(body.get("logprobs")),
    )


def _prompt_tokens(prompt: object) -> int:
    """A list of token ids, or text: one token a byte, as in the tiny model."""
    if isinstance(prompt, str) and prompt:
        return len(prompt.encode())
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return len(prompt)
    raise Refused("prompt must be a text or a list of token ids, and not empty", param="prompt")


def _logprobs(asked: object) -> int | None:
    if asked is None:
        return None
    if not isinstance(asked, int) or not 0 <= asked <= MOST_LOGPROBS:
        raise Refused(
            f"Requested sample logprobs of {asked}, which is greater than max allowed: "
            f"{MOST_LOGPROBS}",
            param="logprobs",
        )
    return asked


def _output_tokens(body: dict[str, Any], prompt_tokens: int, max_model_len_tokens: int) -> int:
    if prompt_tokens > max_model_len_tokens:
        raise Refused(
            f"This model's maximum context length is {max_model_len_tokens} tokens. However, your "
            f"prompt contains {prompt_tokens} input tokens, which exceeds this limit even without "
            "any output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={prompt_tokens})",
            param="input_tokens",
        )
    asked = body.get("max_tokens")
    asked = DEFAULT_MAX_TOKENS if asked is None else asked
    # vLLM clips silently to what the context leaves; only min_tokens makes it refuse
    max_tokens = min(asked, max_model_len_tokens - prompt_tokens)
    if max_tokens < 1:
        raise Refused(
            f"max_tokens must be at least 1, got {max_tokens}. "
            f"(parameter=max_tokens, value={max_tokens})",
            param="max_tokens",
        )
    min_tokens = body.get("min_tokens") or 0
    if min_tokens > max_tokens:
        raise Refused(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}."
        )
    return int(max_tokens)


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
