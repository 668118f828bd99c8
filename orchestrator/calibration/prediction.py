"""The replay condition of a live study: a plant fitted to the server, and how well it foresaw this.

Predicted and measured effect are the same ratio of the same requests; only latencies differ.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.calibration.conditions import REPLAY_ABSENT, replay_absent
from orchestrator.calibration.effects import SeedEffects
from orchestrator.calibration.phrase import condition, percent
from orchestrator.calibration.verdict import Condition, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Whether a plant may stand for the server that the runs were made on."""

    status: Status  # MET; ABSENT: fitted to nothing; NOT_ASSESSABLE: not checked; NOT_MET
    why: str
    threshold: str  # what the transfer check had to meet, in words
    n: int  # seeds of the transfer check


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the plant says of one policy's study; None where it is unknown."""

    effects: Mapping[int, float | None]  # seed -> ratio, of seeds that took no part in the fit
    fitted_seeds: tuple[int, ...]  # of the study, left out above
    gain: float | None  # relative, of the policy against its draws, over the same seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A calibrated replay of the study that is judged."""

    standing: Standing
    aim: float  # largest relative error of the effect ratio
    least_seeds: int  # that the measured and the predicted ratio have to share
    policies: Mapping[str, Predicted] | None  # None: the runs are that replay themselves
    words: tuple[str, ...]  # caveats: which plant, fitted on what, and how far off


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(r) for r in ratios) / len(ratios))


def replay_condition(
    prediction: Prediction | None, policy: str, effects: Sequence[SeedEffects]
) -> Condition:
    """Met by a plant that was checked on the server and foresaw this study's effect ratio."""
    if prediction is None:
        return replay_absent()
    standing = prediction.standing
    if prediction.policies is None:
        return plant_condition(standing)
    mine = prediction.policies.get(policy)
    pairs = [] if mine is None else _pairs(mine, effects)
    measured, predicted, error = _error(pairs)
    status, why = standing.status, f"replay: {standing.why}"
    if status is Status.MET and error is None:
        status, why = Status.NOT_ASSESSABLE, f"replay: {_lacking(mine)}"
    elif status is Status.MET and len(pairs) < prediction.least_seeds:
        status = Status.NOT_ASSESSABLE
        why = (
            f"replay: {len(pairs)} seeds of this study outside the fit, too few to carry anything "
            f"({prediction.least_seeds} needed)"
        )
    elif status is Status.MET and error is not None and abs(error) > prediction.aim:
        status, why = Status.NOT_MET, "replay: it does not foresee this study's effect"
    return condition(
        "replay",
        status,
        value=predicted,
        threshold=(
            f"{standing.threshold}; the effect ratio predicted for this study within "
            f"{percent(prediction.aim)} of the measured one, on at least {prediction.least_seeds} "
            "seeds outside the fit"
        ),
        n=len(pairs),
        why=f"{why}; {_words(measured, predicted, error, mine)}",
    )


def plant_condition(standing: Standing) -> Condition:
    """The condition where the runs themselves are replayed: is the plant one to speak of?"""
    return condition(
        "replay",
        standing.status,
        threshold=standing.threshold,
        n=standing.n,
        why=f"replay: {standing.why}",
    )


def replay_beside(
    prediction: Prediction | None, policy: str, effects: Sequence[SeedEffects]
) -> str:
    """The predicted ratio, to stand beside the measured one."""
    if prediction is None:
        return REPLAY_ABSENT
    if prediction.policies is None:
        return "replay: these are its own runs"
    mine = prediction.policies.get(policy)
    _, predicted, error = _error([] if mine is None else _pairs(mine, effects))
    if predicted is None or error is None:
        return "replay: no prediction"
    return f"replay {predicted:.3g} ({100 * error:+.1f} %)"


def _pairs(mine: Predicted, effects: Sequence[SeedEffects]) -> list[tuple[float, float]]:
    """Measured and predicted ratio of each seed outside the fit; none unless all are known."""
    measured = {e.seed: e.whole.value for e in effects}
    both = [(measured.get(seed), ratio) for seed, ratio in mine.effects.items()]
    known = [(a, b) for a, b in both if a is not None and b is not None]
    return known if len(known) == len(both) else []


def _error(
    pairs: Sequence[tuple[float, float]],
) -> tuple[float | None, float | None, float | None]:
    """Geometric means over seeds, and predicted over measured less 1."""
    if not pairs:
        return None, None, None
    measured, predicted = (geometric_mean([p[i] for p in pairs]) for i in (0, 1))
    return measured, predicted, predicted / measured - 1.0


def _lacking(mine: Predicted | None) -> str:
    if mine is not None and mine.fitted_seeds and not mine.effects:
        return "every seed of this study took part in the fit"
    return "no seed outside the fit, or one of them without a ratio"


def _words(
    measured: float | None, predicted: float | None, error: float | None, mine: Predicted | None
) -> str:
    if measured is None or predicted is None or error is None:
        return "effect ratio of this study: no prediction"
    text = f"effect ratio {predicted:.3g} predicted, {measured:.3g} measured ({100 * error:+.1f} %)"
    if mine is not None and mine.fitted_seeds:
        text += f", without the {len(mine.fitted_seeds)} seeds of the fit"
    if mine is not None and mine.gain is not None:
        text += f"; gain predicted {percent(mine.gain)}"
    return text
