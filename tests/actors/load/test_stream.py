"""Token times, usage and faults of one streamed completion."""

from typing import Any

import pytest

from actors.load.stream import BadStream, CompletionStream


def test_times_of_tokens_with_a_stall_and_a_two_token_chunk(wire: Any) -> None:
    stream = CompletionStream()
    for at_s, chunk in [
        (0.100, wire.chunk("a")),
        (0.150, wire.chunk("bc")),  # two tokens
        (2.150, wire.chunk("d")),  # a 2 s stall
        (2.175, wire.chunk("")),  # a token without text
        (2.180, wire.usage(5)),
        (2.190, wire.done),
    ]:
        stream.feed(chunk, at_s=at_s)
    stream.check_end(output_tokens=5)
    assert stream.first_token_at_s == pytest.approx(0.100)
    assert stream.last_token_at_s == pytest.approx(2.175)
    assert stream.itl_s == pytest.approx([0.050, 2.000, 0.025])
    assert stream.completion_tokens == 5


def test_tokens_of_one_network_chunk_share_its_time(wire: Any) -> None:
    stream = CompletionStream()
    stream.feed(wire.chunk() + wire.chunk(), at_s=1.0)
    stream.feed(wire.chunk(), at_s=1.5)
    assert stream.itl_s == [0.0, 0.5]


def test_an_event_counts_when_its_last_byte_arrives(wire: Any) -> None:
    stream = CompletionStream()
    stream.feed(wire.chunk()[:-1], at_s=1.0)
    assert stream.first_token_at_s is None
    stream.feed(wire.chunk()[-1:], at_s=3.0)
    assert stream.first_token_at_s == 3.0


def test_usage_in_every_chunk_keeps_the_last(wire: Any) -> None:
    stream = CompletionStream()
    for tokens in (1, 2, 3):
        body = {"choices": [{"text": "x"}], "usage": {"completion_tokens": tokens}}
        stream.feed(wire.event(body), at_s=tokens)
    assert stream.completion_tokens == 3


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (["chunk", "usage"], "ended early"),
        (["chunk", "cut"], "inside an event"),
        (["usage", "done"], "no token"),
        (["chunk", "done"], "no usage"),
        (["chunk", "usage 2", "done"], "2 tokens, 1 asked for"),
    ],
)
def test_an_incomplete_stream_is_told(wire: Any, events: list[str], message: str) -> None:
    sent = {
        "chunk": wire.chunk(),
        "usage": wire.usage(1),
        "usage 2": wire.usage(2),
        "done": wire.done,
        "cut": b"data: [DO",
    }
    stream = CompletionStream()
    for name in events:
        stream.feed(sent[name], at_s=1.0)
    with pytest.raises(BadStream, match=message):
        stream.check_end(output_tokens=1)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b'data: {"error": {"message": "engine died", "code": 500}}\n\n', "engine died"),
        (b"data: {not json\n\n", "no JSON"),
        (b"data: [1, 2]\n\n", "no JSON object"),
        (b"data: \xff\n\n", "UTF-8"),
    ],
)
def test_a_stream_that_is_none_is_refused(sent: bytes, message: str) -> None:
    with pytest.raises(BadStream, match=message):
        CompletionStream().feed(sent, at_s=0.0)
