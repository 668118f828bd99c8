"""How many seeds a claim takes: from the spread that was seen."""

from collections.abc import Sequence

import numpy as np

from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.statistics import seeds_for_power

POWER = 0.80


def seeds_to_claim(
    policy: Sequence[float], control: Sequence[float], *, gate: GateConfig, family: int
) -> int | None:
    """Seeds to show a gain at the floor: at the gain seen, or at twice the floor if less.

    None where the spread is unknown (under 2 seeds), or the control is 0.
    """
    if len(policy) < 2 or not sum(control):
        return None
    floor, level = gate.relative_gain_floor, float(np.mean(control))
    hoped = max(1.0 - float(np.mean(policy)) / level, 2.0 * floor)
    # The lower bound of the gain reaches the floor when (1 - floor) c - p is above 0.
    margin = [(1.0 - floor) * c - p for p, c in zip(policy, control, strict=True)]
    sd = float(np.std(margin, ddof=1))
    needed = [
        seeds_for_power(effect=effect, sd=sd, alpha=alpha, power=POWER)
        for effect, alpha in (
            ((hoped - floor) * level, 0.05),
            (hoped * level, gate.alpha / max(1, family)),
        )
    ]
    known = [n for n in needed if n is not None]
    return max(known) if len(known) == len(needed) else None
