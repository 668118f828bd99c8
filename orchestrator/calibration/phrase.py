"""How conditions are made and worded, so that every one reads alike."""

from collections.abc import Sequence

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
