"""Seconds and inner steps to whole ticks, without floating error at the boundaries.

Numbers are taken as the decimals that the study wrote; what misses a whole tick by 1e-9 is whole.
"""

import math
from fractions import Fraction

_SNAP = Fraction(1, 1_000_000_000)


def whole_ticks(duration_s: float, *, tick_s: float, what: str) -> int:
    """``duration_s`` as a number of ticks; ValueError naming ``what`` when it is not whole."""
    ticks = _snapped(_decimal(duration_s, what=what) / _positive(tick_s, what="tick_s"))
    if ticks.denominator != 1:
        raise ValueError(
            f"{what}={duration_s} is no whole number of ticks of tick_s={tick_s}; "
            f"choose a multiple of {tick_s} s or another tick_s"
        )
    return int(ticks)


def ticks_within(duration_s: float, *, tick_s: float, what: str) -> int:
    """The last whole tick that is not after ``duration_s``."""
    return math.floor(_snapped(_decimal(duration_s, what=what) / _positive(tick_s, what="tick_s")))


def ticks_up(steps: int, *, step_interval_s: float, tick_s: float) -> int:
    """The first tick by which ``steps`` paced inner steps have passed."""
    return math.ceil(_step_ticks(steps, step_interval_s, tick_s))


def ticks_down(steps: int, *, step_interval_s: float, tick_s: float) -> int:
    """The last tick by which no more than ``steps`` paced inner steps have passed."""
    return math.floor(_step_ticks(steps, step_interval_s, tick_s))


def ticks_nearest(steps: int, *, step_interval_s: float, tick_s: float) -> int:
    """The nearest whole tick, halves up."""
    return math.floor(_step_ticks(steps, step_interval_s, tick_s) + Fraction(1, 2))


def _step_ticks(steps: int, step_interval_s: float, tick_s: float) -> Fraction:
    if step_interval_s == 0:
        raise ValueError(
            "step_interval_s=0 leaves the islands unpaced, so inner steps have no fixed length "
            "in ticks and no corridor can be kept; set step_interval_s above 0"
        )
    interval = _positive(step_interval_s, what="step_interval_s")
    return _snapped(steps * interval / _positive(tick_s, what="tick_s"))


def _snapped(ticks: Fraction) -> Fraction:
    nearest = round(ticks)
    close = abs(ticks - nearest) <= _SNAP * max(1, abs(nearest))
    return Fraction(nearest) if close else ticks


def _positive(value: float, *, what: str) -> Fraction:
    exact = _decimal(value, what=what)
    if exact <= 0:
        raise ValueError(f"{what}={value} is not above 0; give a positive number of seconds")
    return exact


def _decimal(value: float, *, what: str) -> Fraction:
    """The decimal that prints as ``value``: 0.1 is one tenth, not its nearest double."""
    if not math.isfinite(value):
        raise ValueError(f"{what}={value} is not finite; give a number of seconds")
    return Fraction(repr(float(value)))
