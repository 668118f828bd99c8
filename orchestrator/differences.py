"""Two configs side by side, in words: what a folder holds, and what was asked for now."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SHOWN = 4  # differences named; the rest are counted
_LONGEST = 60  # characters of a value


def difference_words(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """``place: A there, B asked`` for each leaf that differs; seeds are counted, not listed.

    Equal words from several places (the draws of two arms) stand once.
    """
    pairs = list(_leaves("", then, now))
    found = dict.fromkeys(f"{_place(place)}: {a} there, {b} asked" for place, a, b in pairs)
    more = len(found) - _SHOWN
    shown = list(found)[:_SHOWN]
    return [*shown, f"and {more} more"] if more > 0 else shown


def _place(place: str) -> str:
    """``draws`` alone says it; anything else by its whole path."""
    last = place.rpartition(".")[2]
    return last if last == "draws" else place


def _leaves(place: str, then: Any, now: Any) -> Iterator[tuple[str, str, str]]:
    if then == now:
        return
    if place == "seeds" or place.endswith(".seeds"):
        yield place, seed_words(then), seed_words(now)
    elif isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*now, *then]):
            inner = f"{place}.{key}" if place else str(key)
            yield from _leaves(inner, then.get(key), now.get(key))
    elif _listed(then) and _listed(now) and len(then) == len(now):
        for i, (a, b) in enumerate(zip(then, now, strict=True)):
            yield from _leaves(f"{place}[{i}]", a, b)
    else:
        yield place, _value(then), _value(now)


def _listed(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def seed_words(seeds: Any) -> str:
    """How many, and from where to where."""
    if not isinstance(seeds, Sequence) or isinstance(seeds, str) or not seeds:
        return _value(seeds)
    if len(seeds) == 1:
        return f"1 ({seeds[0]})"
    return f"{len(seeds)} ({seeds[0]} to {seeds[-1]})"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if _listed(value) and not all(isinstance(v, (str, int, float)) for v in value):
        return f"{len(value)} entries"
    text = ", ".join(map(str, value)) if _listed(value) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
