"""The completions request of a scheduled request: prompt as token ids, length fixed exactly."""

import json

import numpy as np

from actors.load.request import Request

PATH = "/v1/completions"


def prompt_ids(request: Request, *, token_low: int, token_high: int, stream: int = 0) -> list[int]:
    """Token ids uniform in [token_low, token_high), from the request's own seed.

    ``stream`` 0 is the measured prompt; others are as long and share nothing with it.
    """
    seed = np.random.SeedSequence(request.prompt_seed, spawn_key=(stream,))
    rng = np.random.default_rng(seed)
    ids: list[int] = rng.integers(token_low, token_high, size=request.prompt_tokens).tolist()
    return ids


def completion_body(request: Request, *, model: str, prompt: list[int]) -> bytes:
    """Body for vLLM's completions API: greedy, streamed, exactly ``output_tokens`` tokens."""
    return json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": request.output_tokens,
            "min_tokens": request.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        separators=(",", ":"),
    ).encode()
