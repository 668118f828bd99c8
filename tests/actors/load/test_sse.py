"""The parser sees the same events however the bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.load.sse import SseParser

CASES = [
    (b"data: one\n\n", ["one"]),
    (b"data:one\n\n", ["one"]),
    (b"data:  two spaces\n\n", [" two spaces"]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
    (b"data: a\r\rdata: b\r\r:end\n", ["a", "b"]),
    (b"data: line 1\ndata: line 2\n\n", ["line 1\nline 2"]),
    (b": ping\n\ndata: x\n\n", ["x"]),
    (b"event: token\nid: 7\nretry: 10\ndata: x\n\n", ["x"]),
    (b"data\n\n", [""]),
    (b"\n\n\n", []),
    (b"\xef\xbb\xbfdata: x\n\n", ["x"]),
    ("data: größer 字 \U0001f600\n\n".encode(), ["größer 字 \U0001f600"]),
    (b"data: cut off", []),
]


@pytest.mark.parametrize(("sent", "events"), CASES)
def test_whole_and_byte_by_byte_give_the_same_events(sent: bytes, events: list[str]) -> None:
    assert SseParser().feed(sent) == events
    parser = SseParser()
    assert [e for i in range(len(sent)) for e in parser.feed(sent[i : i + 1])] == events


LINE = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12)


@given(
    events=st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=6),
    end=st.sampled_from(["\n", "\r\n"]),
    comments=st.booleans(),
    cuts=st.lists(st.integers(0, 500), max_size=12),
)
def test_events_survive_any_cut(
    events: list[list[str]], end: str, comments: bool, cuts: list[int]
) -> None:
    text = ""
    for lines in events:
        text += f": comment{end}" if comments else ""
        text += "".join(f"data: {line}{end}" for line in lines) + end
    sent = text.encode()
    places = [0, *sorted(min(c, len(sent)) for c in cuts), len(sent)]
    parser = SseParser()
    got = [e for a, b in itertools.pairwise(places) for e in parser.feed(sent[a:b])]
    assert got == ["\n".join(lines) for lines in events]
    assert not parser.pending


def test_an_event_that_has_not_ended_is_pending() -> None:
    parser = SseParser()
    parser.feed(b"data: half")
    assert parser.pending
    parser.feed(b"\n")
    assert parser.pending
    parser.feed(b"\n")
    assert not parser.pending


def test_bytes_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        SseParser().feed(b"data: \xff\xfe\n\n")
