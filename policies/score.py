"""The workload-aware score without a forecast: progress worth sharing against pressure now.

Merge when the mean over the live, reporting islands exceeds the threshold.
"""

import math

from policies.config import WaScoreConfig
from policies.observation import Action, Decision, IslandProgress, Reading, Reason, Sample, Seen

Terms = tuple[tuple[str, float | None], ...]


class WaScore:
    """Per island i, every term clipped to [0, 1] before its weight:

    s_i = w_loss*loss_drop/loss_scale + w_tok*tokens/token_scale - w_net*network
          - w_srv*serving - w_ckpt*checkpoint - w_stale*staleness/stale_scale
    """

    def __init__(self, config: WaScoreConfig) -> None:
        self._config = config
        self._pressures: Terms = (("network", None), ("serving", None), ("checkpoint", None))
        self._islands: tuple[IslandProgress, ...] = ()

    def observe(self, sample: Sample) -> None:
        """Keep the latest readings; one that is missing now is unknown now."""
        self._islands = sample.islands
        self._pressures = (
            ("network", _pressure(sample.network)),
            ("serving", _pressure(sample.serving)),
            ("checkpoint", _pressure(sample.checkpoint)),
        )

    def decide(self, seen: Seen) -> Decision:
        """Merge when the mean score exceeds the threshold; defer while a term is unknown."""
        config = self._config
        pressures = (config.w_net, config.w_srv, config.w_ckpt)
        cost = _weighted(self._pressures, tuple(-w for w in pressures))
        logged: list[tuple[str, float | None]] = list(self._pressures)
        scores: list[float | None] = []
        for island in self._islands:
            terms = self._progress(island)
            gain = _weighted(terms, (config.w_loss, config.w_tok, -config.w_stale))
            score = None if gain is None or cost is None else gain + cost
            scores.append(score)
            logged += [(f"island{island.island}.{name}", value) for name, value in terms]
            logged.append((f"island{island.island}.score", score))
        mean = _mean(scores)
        if mean is None:
            return Decision(action=Action.DEFER, reason=Reason.UNKNOWN, terms=tuple(logged))
        above = mean > config.threshold
        return Decision(
            action=Action.MERGE if above else Action.DEFER,
            reason=Reason.SCORE_ABOVE if above else Reason.SCORE_BELOW,
            score=mean,
            terms=tuple(logged),
        )

    def _progress(self, island: IslandProgress) -> Terms:
        config = self._config
        return (
            ("loss", _share(island.loss_drop, config.loss_scale)),
            ("tokens", _share(island.tokens_since_merge, config.token_scale_tokens)),
            ("staleness", _share(island.staleness_s, config.stale_scale_s)),
        )


def _pressure(reading: Reading | None) -> float | None:
    return None if reading is None else _share(reading.value, 1.0)


def _share(value: float | None, scale: float) -> float | None:
    """``value / scale`` clipped to [0, 1]; a value that is missing or no number is unknown."""
    if value is None or not math.isfinite(value):
        return None
    return min(1.0, max(0.0, value / scale))


def _weighted(terms: Terms, weights: tuple[float, ...]) -> float | None:
    """Sum of weight times term; unknown when a term that carries weight is."""
    total = 0.0
    for (_, value), weight in zip(terms, weights, strict=True):
        if weight == 0:
            continue  # no value in [0, 1] could change the sum
        if value is None:
            return None
        total += weight * value
    return total


def _mean(scores: list[float | None]) -> float | None:
    known = [s for s in scores if s is not None]
    if not known or len(known) < len(scores):
        return None
    return sum(known) / len(known)
