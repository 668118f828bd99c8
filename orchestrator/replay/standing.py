"""What a plant may stand for: half of the replay condition, and the words beside its numbers."""

import hashlib
import json

from orchestrator.calibration.phrase import percent
from orchestrator.calibration.prediction import Standing
from orchestrator.calibration.verdict import Status
from orchestrator.config import StudyConfig
from orchestrator.replay.calibrated import (
    AIMS,
    Calibration,
    FigureError,
    missed,
    of_another_server,
    seeds_outside,
    unsettled,
)
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.likeness import unlike

THRESHOLD = (
    "a plant fitted to a real server with the study's engine, model, slots, windows and fill, "
    "whose errors on runs of at least {seeds} seeds outside the fit are within "
    f"{percent(AIMS['e2e_p95_s'])} of p95, {100 * AIMS['violation_rate']:g} points of the "
    f"violation rate and {percent(AIMS['effect_ratio'])} of the effect ratio"
)


def standing_of(
    calibration: Calibration,
    *,
    study: StudyConfig,
    engine: str | None = None,
    engine_version: str | None = None,
) -> Standing:
    """Whether the plant may stand for the study's server, windows and load.

    ``engine``: what the study ran on; None: what the plant was fitted to, as its replay has it.
    """
    fitted = calibration.fitted_on
    named = ("", "") if fitted is None else (fitted.engine, fitted.engine_version)
    another = of_another_server(
        calibration,
        engine=named[0] if engine is None else engine,
        engine_version=named[1] if engine_version is None else engine_version,
    )
    least, apart = study.gate.min_seeds_for_interval, unlike(study, calibration)
    open_ = unsettled(calibration, least_seeds=least)
    if fitted is None:
        status, why = Status.ABSENT, another
    elif another is not None:
        status, why = Status.NOT_MET, another
    elif apart.differing:
        status, why = (
            Status.NOT_MET,
            "; ".join((mismatch_words(study, calibration)[0], *([open_] if open_ else []))),
        )
    elif open_ is not None:
        status, why = Status.NOT_ASSESSABLE, f"{open_}; {_checked(calibration)}"
    elif (off := missed(calibration)) is not None:
        status, why = Status.NOT_MET, off
    elif apart.unknown:
        status, why = Status.NOT_ASSESSABLE, mismatch_words(study, calibration)[0]
    else:
        status, why = Status.MET, f"the plant is within its aims; {_checked(calibration)}"
    return Standing(
        status=status,
        why=why or "the plant is not fitted to any run",
        threshold=THRESHOLD.format(seeds=least),
        n=len(seeds_outside(calibration)),
    )


def mismatch_words(study: StudyConfig, calibration: Calibration) -> tuple[str, ...]:
    """Caveats: why the plant is none of this study; none where it is, or was fitted to nothing."""
    apart = unlike(study, calibration)
    notes = []
    if apart.differing:
        notes.append(f"the plant is not of this study: {'; '.join(apart.differing)}")
    if apart.unknown:
        notes.append(
            f"whether the plant is of this study is unknown: {', '.join(apart.unknown)} stated by "
            "one of them alone; name it in the study, or calibrate again"
        )
    return tuple(notes)


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
        f"{fitted.window_s:g} s, fill {fitted.fill.get('kind', 'unknown')}"
        f"{f'; chosen by hand: --fit {fitted.selection!r}' if fitted.by_hand else ''})"
    )
    if calibration.transfer is None:
        return (f"{what}; its error on other runs is unknown",)
    return (f"{what}; error on {_outside(calibration)}: {_errors(calibration)}",)


def _outside(calibration: Calibration) -> str:
    """How much was looked at: few seeds can lie within the aims by luck."""
    n = len(seeds_outside(calibration))
    return f"runs of {n} seed{'' if n == 1 else 's'} outside the fit"


def _checked(calibration: Calibration) -> str:
    """The errors beside what they were looked at on."""
    return f"on {_outside(calibration)}: {_errors(calibration)}"


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
    text = f"{name} {100 * figure.error:+.1f} {unit}"
    if figure.interval is None:
        return text
    return f"{text} [{', '.join(f'{100 * x:+.1f}' for x in figure.interval)}]"
