"""The request as sent: prompt from its seed, output length fixed."""

import json
from typing import Any

from actors.load.body import completion_body, prompt_ids


def test_the_prompt_depends_on_the_seed_alone(make_request: Any) -> None:
    ids = prompt_ids(make_request(3), token_low=32, token_high=127)
    assert ids == prompt_ids(make_request(3), token_low=32, token_high=127)
    assert ids != prompt_ids(make_request(4), token_low=32, token_high=127)
    assert ids != prompt_ids(make_request(3), token_low=32, token_high=127, stream=1)


def test_the_prompt_has_its_length_and_stays_in_range(make_request: Any) -> None:
    ids = {i for k in range(50) for i in prompt_ids(make_request(k), token_low=5, token_high=7)}
    assert ids == {5, 6}
    assert len(prompt_ids(make_request(), token_low=5, token_high=7)) == 4


def test_the_body_asks_for_exactly_the_output_tokens(make_request: Any) -> None:
    body = json.loads(completion_body(make_request(output_tokens=24), model="m", prompt=[1, 2]))
    assert body == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 24,
        "min_tokens": 24,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
