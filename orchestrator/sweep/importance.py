"""How much each parameter decides of the gain: functional ANOVA of a forest over the settings.

Hutter, Hoos, Leyton-Brown, ICML 2014, by Optuna. A description of the settings that were tried,
on the tuning blocks; no claim hangs on it.
"""

import warnings
from collections.abc import Sequence

from orchestrator.sweep.config import ParameterConfig, SpaceConfig
from orchestrator.sweep.result import SettingRow

LEAST_SETTINGS = 8


def importances(space: SpaceConfig, rows: Sequence[SettingRow]) -> dict[str, float] | None:
    """Shares that sum to 1, the largest first; None with too few settings or equal gains."""
    known = [r for r in rows if r.gain is not None]
    if len(known) < LEAST_SETTINGS or len({r.gain for r in known}) < 2:
        return None
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    whole = {path: all(isinstance(r.values[path], int) for r in known) for path in space.parameters}
    distributions = {
        path: _distribution(p, rows=known, path=path, whole=whole[path])
        for path, p in space.parameters.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction="maximize")
        study.add_trials(
            [
                optuna.trial.create_trial(
                    value=row.gain, params=dict(row.values), distributions=distributions
                )
                for row in known
            ]
        )
        found = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=space.seed)
        )
    return {name: float(share) for name, share in found.items()}


def _distribution(
    parameter: ParameterConfig, *, rows: Sequence[SettingRow], path: str, whole: bool
) -> "optuna.distributions.BaseDistribution":  # type: ignore[name-defined]  # noqa: F821
    from optuna import distributions

    if parameter.values is not None:
        return distributions.CategoricalDistribution(parameter.values)
    assert parameter.low is not None
    assert parameter.high is not None
    log = parameter.scale == "log"
    if whole:
        return distributions.IntDistribution(int(parameter.low), int(parameter.high), log=log)
    return distributions.FloatDistribution(parameter.low, parameter.high, log=log)
