"""Times and token counts from text, exactly: cell by cell, and whole columns at a time.

The columns take only what the cells take, with the same value; at anything else they give None and
the cells say what is wrong. Times are whole nanoseconds; digits below 1 ns are cut off.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
MOST_TOKENS = 2**31 - 1
MOST_NS = 2**63 - 1
_CLOCK = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?"
_ZONE = r"(?:Z|[+-](?:[01]\d|2[0-3]):?[0-5]\d)"
_CLOCK_PARTS = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):?(\d\d))?", re.ASCII
)
_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", re.ASCII)
_NEGATIVE = re.compile(r"-\d+(\.\d*)?", re.ASCII)
_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeForm:
    """One way to write a time. ``pattern`` reads the same in re and in RE2."""

    name: str
    zone: str
    pattern: str
    digits: int | None  # decimal digits from its unit to 1 ns; None: a clock time


def _number(name: str, *, zone: str, whole: str, digits: int) -> TimeForm:
    fraction = r"(?:\.\d+)?" if digits else ""
    return TimeForm(name=name, zone=zone, pattern=whole + fraction, digits=digits)


_OWN = "none (counted from the file's own zero)"
CLOCKS = (
    TimeForm(
        name="a time without a zone",
        zone="none stated (wall clock)",
        pattern=_CLOCK,
        digits=None,
    ),
    TimeForm(
        name="a time with a zone", zone="UTC (by its offsets)", pattern=_CLOCK + _ZONE, digits=None
    ),
)
EPOCHS = (
    _number("epoch seconds", zone="UTC (since 1970)", whole=r"\d{10}", digits=9),
    _number("epoch milliseconds", zone="UTC (since 1970)", whole=r"\d{13}", digits=6),
    _number("epoch microseconds", zone="UTC (since 1970)", whole=r"\d{16}", digits=3),
    _number("epoch nanoseconds", zone="UTC (since 1970)", whole=r"\d{19}", digits=0),
)
NUMBERS = {
    "s": _number("seconds", zone=_OWN, whole=r"\d{1,10}", digits=9),
    "ms": _number("milliseconds", zone=_OWN, whole=r"\d{1,13}", digits=6),
    "us": _number("microseconds", zone=_OWN, whole=r"\d{1,16}", digits=3),
    "ns": _number("nanoseconds", zone=_OWN, whole=r"\d{1,19}", digits=0),
}


def form_of(cell: str, forms: tuple[TimeForm, ...], *, where: str) -> TimeForm:
    """Which of ``forms`` the cell is written in; ValueError says why it is none."""
    for form in forms:
        if _has(cell, form):
            return form
    if _EXPONENT.fullmatch(cell):
        raise ValueError(
            f"{where}: {cell!r} is in exponent notation, which hides lost digits; "
            "write the time as plain digits"
        )
    if _NEGATIVE.fullmatch(cell):
        raise ValueError(f"{where}: {cell!r} is negative, no time; correct or delete the line")
    digits = forms[0].digits
    looks = next((f.name for f in (*CLOCKS, *NUMBERS.values()) if _has(cell, f)), None)
    if digits is not None and looks is not None:
        raise ValueError(
            f"{where}: {cell!r} is not in {forms[0].name}; it looks like {looks}, so give that "
            "unit or correct the line"
        )
    advice = "YYYY-MM-DD HH:MM:SS.fffffff" if digits is None else f"{forms[0].name} as plain digits"
    raise ValueError(f"{where}: {cell!r} is no time; write {advice}")


def _has(cell: str, form: TimeForm) -> bool:
    return re.fullmatch(form.pattern, cell, re.ASCII) is not None


def time_ns(cell: str, form: TimeForm, *, where: str) -> int:
    """Nanoseconds since 1970, or since the file's zero, of a cell that has this form."""
    if form.digits is None:
        at_ns = _clock_ns(cell, where=where)
    else:
        whole, _, fraction = cell.partition(".")
        at_ns = int(whole + fraction[: form.digits].ljust(form.digits, "0"))
    if abs(at_ns) > MOST_NS:
        raise ValueError(f"{where}: {cell!r} is outside 64-bit nanoseconds; correct the line")
    return at_ns


def _clock_ns(cell: str, *, where: str) -> int:
    found = _CLOCK_PARTS.fullmatch(cell)
    assert found is not None  # it has the form
    date, clock, fraction, sign, hours, minutes = found.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}")
        zoned = moment.replace(tzinfo=timezone(-offset if sign == "-" else offset))
    except ValueError as error:
        raise ValueError(f"{where}: {cell!r} is no time: {error}; correct it") from error
    whole = (zoned - _EPOCH_START) // timedelta(seconds=1)
    return whole * 10**9 + int((fraction or "0").ljust(9, "0"))


def tokens_of(cell: str, *, where: str) -> int:
    """A whole number of tokens in 0..2**31-1."""
    try:
        tokens = int(cell) if cell.isascii() and "_" not in cell else None
    except ValueError:
        tokens = None
    if tokens is None:
        raise ValueError(f"{where}: {cell!r} is no whole number; write tokens as plain digits")
    if not 0 <= tokens <= MOST_TOKENS:
        raise ValueError(
            f"{where}: {cell} is outside 0..{MOST_TOKENS} tokens; correct or delete the line"
        )
    return tokens


def token_column(cells: pa.Array) -> Ints | None:
    """All cells of a string column, or None when one is not plain digits in range."""
    if not _all_match(cells, "[0-9]{1,10}"):
        return None
    tokens: Ints = pc.cast(cells, pa.int64()).to_numpy()
    return tokens if not len(tokens) or int(tokens.max()) <= MOST_TOKENS else None


def time_column(cells: pa.Array, form: TimeForm) -> Ints | None:
    """All cells of a string column in nanoseconds, or None when one does not have the form."""
    if not _all_match(cells, form.pattern):
        return None
    try:
        if form.digits is not None:
            return decimal_column(cells, digits=form.digits)
        zone = "UTC" if form.pattern.endswith(_ZONE) else None
        times = pc.cast(pc.cast(cells, pa.timestamp("ns", zone)), pa.int64())
    except pa.ArrowInvalid:  # a day that is none, or outside 64 bits: the cells say which
        return None
    at_ns: Ints = times.to_numpy()
    return at_ns


def decimal_column(cells: pa.Array, *, digits: int) -> Ints | None:
    """Plain decimals times 10**digits, cut to whole numbers; None outside 0..2**63-1."""
    kind = pa.decimal128(38, digits)
    try:
        numbers = pc.cast(cells, kind)
    except pa.ArrowInvalid:  # digits would be lost
        short = rf"(\.[0-9]{{{digits}}})[0-9]+$"
        numbers = pc.cast(pc.replace_substring_regex(cells, short, r"\1"), kind)
    return unscaled(numbers)


def unscaled(numbers: pa.Array) -> Ints | None:
    """The whole numbers that a decimal128 column holds (low and high 64 bits, in that order)."""
    words = np.frombuffer(numbers.buffers()[1], dtype="<i8").reshape(-1, 2)
    low, high = words[numbers.offset : numbers.offset + len(numbers)].T
    if high.any() or (low < 0).any():
        return None
    return low.astype(np.int64)


def _all_match(cells: pa.Array, pattern: str) -> bool:
    if cells.null_count:
        return False
    matches = pc.match_substring_regex(cells, f"^(?:{pattern})$")
    return bool(pc.all(matches, min_count=0).as_py())
