"""The search by Optuna's TPE, through Ray Tune's OptunaSearch; its seed is the space's."""

import warnings
from collections.abc import Mapping
from typing import Any

from orchestrator.config import StudyConfig
from orchestrator.sweep.config import ParameterConfig, SpaceConfig, Value
from orchestrator.sweep.settings import is_whole


class OptunaProposer:
    """``ask`` and ``tell`` in the order of the sweep's rounds, so that a run repeats itself."""

    def __init__(self, study: StudyConfig, space: SpaceConfig) -> None:
        from ray.tune.search.optuna import OptunaSearch

        distributions = {
            path: _distribution(p, whole=bool(is_whole(study, space, path)))
            for path, p in space.parameters.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _quiet()
            self._search: Any = OptunaSearch(
                distributions, metric="gain", mode="max", seed=space.seed
            )

    def ask(self, number: int) -> Mapping[str, Value] | None:
        values: dict[str, Value] = self._search.suggest(str(number))
        return values

    def tell(self, number: int, gain: float | None) -> None:
        known = gain is not None
        result = {"gain": gain} if known else None
        self._search.on_trial_complete(str(number), result=result, error=not known)


def _quiet() -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)


def _distribution(parameter: ParameterConfig, *, whole: bool) -> Any:
    from optuna import distributions

    if parameter.values is not None:
        return distributions.CategoricalDistribution(parameter.values)
    log = parameter.scale == "log"
    assert parameter.low is not None
    assert parameter.high is not None
    if whole:
        return distributions.IntDistribution(int(parameter.low), int(parameter.high), log=log)
    return distributions.FloatDistribution(parameter.low, parameter.high, log=log)
