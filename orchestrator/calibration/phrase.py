"""How conditions are made and worded, so that every one reads alike."""

from collections.abc import Sequence

from orchestrator.calibration.statistics import Interval, PermutationResult
from orchestrator.calibration.verdict import Condition, Status

_SHOWN = 3  # problems named; the rest are counted


def condition(
    name: str,
    status: Status,
    *,
    threshold: str,
    n: int,
    why: str,
    value: float | None = None,
    interval: tuple[float, float] | None = None,
) -> Condition:
    """A condition whose value or interval may be unknown."""
    return Condition(
        name=name,
        status=status,
        value=value,
        interval=interval,
        threshold=threshold,
        n=n,
        why=why,
    )


def named(problems: Sequence[str]) -> str:
    """The first problems, and how many more there are."""
    more = len(problems) - _SHOWN
    return "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def percent(fraction: float) -> str:
    """Three digits."""
    return f"{100 * fraction:.3g} %"


def flip_words(p: float | None, flip: PermutationResult) -> str:
    """A sign-flip p after Holm; where it was sampled, with the error of that."""
    if p is None:
        return "p unknown"
    return f"p {p:.3g}{sampled_words(flip)}"


def sampled_words(*results: PermutationResult) -> str:
    """Monte-Carlo error of p values that were not enumerated; "" where all were."""
    drawn = [r for r in results if not r.exact]
    if not drawn:
        return ""
    worst = max(r.p_error for r in drawn)
    return f" (sampled: Monte-Carlo error {worst:.2g} of p before Holm)"


def gain_words(gain: Interval | None, *, undefined: str = "the control is 0") -> str:
    """A relative gain with its lower bound, or why there is none."""
    if gain is None or gain.estimate is None:
        return f"gain undefined: {undefined}"
    bounds = gain.finite
    at_least = f"at least {percent(bounds[0])}" if bounds is not None else "no bound at this n"
    return f"gain {percent(gain.estimate)}, {at_least}"


def null_words(z: float | None, p: float | None) -> str:
    """The exact-null z with its p after Holm."""
    return "z unknown" if z is None or p is None else f"z {z:.2f}, p {p:.3g}"
