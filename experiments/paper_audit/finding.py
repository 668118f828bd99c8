"""One statement of the audit, and how its numbers are compared and written."""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.calibration.placement import Placement

Value = float | int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was said, and the same figure from the tables; ``values`` are its unrounded numbers."""

    subject: str
    published: str  # in the paper; "notes": in what this project knew of it beforehand
    recomputed: str
    supports: str
    values: Mapping[str, Value]


def listed(values: Mapping[str, float | None], *, digits: int = 1) -> str:
    return ", ".join(f"{name} {known(value):.{digits}f}" for name, value in values.items())


def known(value: float | None) -> float:
    """A figure that the tables must give for this statement."""
    if value is None:
        raise ValueError("a figure that the audit needs is not in the tables")
    return value


def tested(placement: Placement) -> dict[str, Value]:
    """The numbers of the gate's own tests."""
    gain = placement.gain
    bounds = None if gain is None else gain.finite
    return {
        "n": placement.n,
        "relative_gain": None if gain is None else gain.estimate,
        "gain_low": None if bounds is None else bounds[0],
        "gain_high": None if bounds is None else bounds[1],
        "p": None if placement.flip is None else placement.flip.p_value,
        "least_p": None if placement.flip is None else placement.flip.least_p,
    }


def tested_words(placement: Placement) -> str:
    """Relative change with its interval, and p beside the least that this n can give."""
    if placement.flip is None or placement.gain is None:
        return "no seed of which both are published"
    gain, flip = placement.gain, placement.flip
    interval = ""
    if gain.finite is not None:
        low, high = gain.finite
        interval = (
            f", {100 * gain.confidence:.0f} % interval [{-100 * high:+.1f}, {-100 * low:+.1f}]"
        )
    return (
        f"{-100 * known(gain.estimate):+.1f} %{interval}; sign-flip p = {flip.p_value:.3g} "
        f"(n = {placement.n}, least attainable {flip.least_p:.3g})"
    )


def significant(placement: Placement, *, alpha: float) -> bool:
    return placement.flip is not None and placement.flip.p_value <= alpha
