"""The merge's cost once more, now that its noise is known: what a merge adds is what was measured.

fit.py fits medians. Noise leaves a median where it is and lifts the mean, the more so where
requests queue, and a replay's figures hang on the mean. So the slow-down is multiplied by the one
number with which the plant, in several draws of its noise, adds to the fitted runs the seconds a
merge that it added to them on the server (the method of simulated moments, McFadden 1989, with one
moment and one parameter). Runs held out take no part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.optimize import brentq

from orchestrator.replay.compare import excess_per_merge_s, pair_up
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.measured import MeasuredRun

MOST = 4.0  # times what the medians say
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Levelled:
    """``by`` None: no_sync runs of the same seeds are lacking, or a merge added nothing to them."""

    plant: PlantConfig
    by: float | None


def levelled(plant: PlantConfig, runs: Sequence[MeasuredRun]) -> Levelled:
    """The plant with its merge's cost multiplied so that the mean seconds a merge adds are met."""
    measured_s, expected_s = excess_per_merge_s(pair_up(runs, plant=plant))
    if measured_s is None or expected_s is None or measured_s <= 0.0 or expected_s <= 0.0:
        return Levelled(plant=plant, by=None)
    wanted_s = measured_s

    def too_much_s(by: float) -> float:
        _, found_s = excess_per_merge_s(pair_up(runs, plant=_times(plant, by)))
        assert found_s is not None
        return found_s - wanted_s

    if too_much_s(MOST) <= 0.0:
        return Levelled(plant=_times(plant, MOST), by=MOST)
    by = float(brentq(too_much_s, 0.0, MOST, xtol=TOLERANCE))
    return Levelled(plant=_times(plant, by), by=by)


def _times(plant: PlantConfig, by: float) -> PlantConfig:
    return plant.model_copy(update={"merge_factor": 1.0 + (plant.merge_factor - 1.0) * by})
