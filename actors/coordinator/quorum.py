"""Who takes part in a round, with which weight, and how long it waits for the others: pure."""

import math
from collections.abc import Mapping, Sequence

from actors.config import ElasticConfig, OuterConfig

_LEAST_GRACE_S = 1.0  # below it an ordinary hiccup of a busy machine would drop an island
_REMEMBERED = 32  # rounds that the usual spread is taken from


def merge_weights(
    tokens: Sequence[int], missed_rounds: Sequence[int], config: OuterConfig
) -> tuple[float, ...]:
    """Shares in the weighted mean, by island; they are positive or 0 and their sum is 1.

    By tokens since the island's last merge (equal shares when nobody trained, or when
    ``weighting: equal``), halved for every ``staleness_half_life_rounds`` that it missed.
    """
    if len(tokens) != len(missed_rounds) or not tokens:
        raise ValueError(f"{len(tokens)} token counts for {len(missed_rounds)} islands")
    by_tokens = config.weighting == "tokens" and sum(tokens) > 0
    raw = [float(t) if by_tokens else 1.0 for t in tokens]
    half_life = config.staleness_half_life_rounds
    if half_life is not None:
        # Against the freshest: only ratios count, and 0.5 ** 2000 would be 0 for everybody.
        freshest = min(missed_rounds)
        raw = [
            w * 0.5 ** ((m - freshest) / half_life) for w, m in zip(raw, missed_rounds, strict=True)
        ]
    total = math.fsum(raw)
    if total == 0:  # the freshest brought no tokens and the others' shares vanished
        return tuple(1.0 / len(raw) for _ in raw)
    return tuple(w / total for w in raw)


class Grace:
    """How long a round waits for late islands once one is ready: by how late they usually are.

    ``grace_factor`` times the largest gap of the last rounds between the first and the last that
    arrived in time, at least a second and at most ``grace_s``; ``grace_s`` before there are any.
    """

    def __init__(self, config: ElasticConfig) -> None:
        self._config = config
        self._gaps_s: list[float] = []

    @property
    def limit_s(self) -> float:
        if not self._gaps_s:
            return self._config.grace_s
        usual_s = self._config.grace_factor * max(self._gaps_s)
        return min(self._config.grace_s, max(_LEAST_GRACE_S, usual_s))

    def forget(self) -> None:
        """An island has just come back: its first steps are slower than any that were seen."""
        self._gaps_s = []

    def arrived(self, answers_at_s: Mapping[int, float]) -> None:
        """Moments at which islands answered the same call, those in time only."""
        if len(answers_at_s) >= 2:
            gap_s = max(answers_at_s.values()) - min(answers_at_s.values())
            self._gaps_s = [*self._gaps_s, gap_s][-_REMEMBERED:]


def enough(present: int, *, count: int, config: ElasticConfig | None) -> bool:
    """A round of so many islands may be merged: all of them, or a quorum where that is allowed."""
    return present >= (count if config is None else config.quorum)
