"""What a plant may stand for: half of the replay condition, and the words beside its numbers."""

import hashlib
import json

from orchestrator.calibration.phrase import percent
from orchestrator.calibration.prediction import Standing
from orchestrator.calibration.verdict import Status
from orchestrator.replay.calibrated import AIMS, Calibration, FigureError, why_not
from orchestrator.replay.config import PlantConfig

THRESHOLD = (
    "a plant fitted to a real server, whose errors on runs outside the fit are within "
    f"{percent(AIMS['e2e_p95_s'])} of p95, {100 * AIMS['violation_rate']:g} points of the "
    f"violation rate and {percent(AIMS['effect_ratio'])} of the effect ratio"
)


def standing_of(
    calibration: Calibration, *, engine: str | None = None, engine_version: str | None = None
) -> Standing:
    """Whether the plant may stand for this engine; None: for the one that it was fitted to."""
    fitted, transfer = calibration.fitted_on, calibration.transfer
    named = ("", "") if fitted is None else (fitted.engine, fitted.engine_version)
    why = why_not(
        calibration,
        engine=named[0] if engine is None else engine,
        engine_version=named[1] if engine_version is None else engine_version,
    )
    if fitted is None:
        status = Status.ABSENT
    elif why is None:
        status = Status.MET
    elif transfer is None or transfer.within is None:
        status = Status.NOT_ASSESSABLE
    else:
        status = Status.NOT_MET
    return Standing(
        status=status,
        why=why
        or f"the plant is within its aims on {_outside(calibration)} ({_errors(calibration)})",
        threshold=THRESHOLD,
        n=0 if transfer is None else len(transfer.seeds),
    )


def plant_version(plant: PlantConfig) -> str:
    """engine_version of a replay: the plant by its numbers; effects that are off are left out."""
    text = json.dumps(
        plant.model_dump(mode="json", exclude_defaults=True), sort_keys=True, allow_nan=False
    )
    return f"plant-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def plant_words(calibration: Calibration) -> tuple[str, ...]:
    """Caveats: what the plant was fitted on, and its own error beside every number of a replay."""
    fitted = calibration.fitted_on
    if fitted is None:
        return ("plant: numbers that are fitted to no run; a replay on it is a model's own world",)
    what = (
        f"{plant_version(calibration.plant)}: fitted on {len(fitted.runs)} runs of {fitted.study} "
        f"({fitted.source}, engine={fitted.engine} {fitted.engine_version}; windows of "
        f"{fitted.window_s:g} s, fill {fitted.fill.get('kind', 'unknown')})"
    )
    if calibration.transfer is None:
        return (f"{what}; its error on other runs is unknown",)
    return (f"{what}; error on {_outside(calibration)}: {_errors(calibration)}",)


def _outside(calibration: Calibration) -> str:
    """How much was looked at: few seeds can lie within the aims by luck."""
    transfer = calibration.transfer
    n = 0 if transfer is None else len(transfer.seeds)
    return f"runs of {n} seed{'' if n == 1 else 's'} outside the fit"


def _errors(calibration: Calibration) -> str:
    transfer = calibration.transfer
    figures = () if transfer is None else transfer.figures
    return ", ".join(_error(f) for f in figures if f.aim is not None) or "unknown"


def _error(figure: FigureError) -> str:
    """With its unit: points of a rate, else percent of what was measured."""
    name = f"{figure.figure} {figure.group}"
    if figure.error is None:
        return f"{name} unknown"
    unit = "points" if figure.figure == "violation_rate" else "%"
    return f"{name} {100 * figure.error:+.1f} {unit}"
