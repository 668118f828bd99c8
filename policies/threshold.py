"""The load level against its own past: merge when it is among the lowest, tick by tick.

The strongest baseline without a forecast (experiments on bursty traffic, at 1 s grain).
"""

import math
from bisect import bisect_right

import numpy as np

from policies.config import EwmaThresholdConfig
from policies.frame import Frame, too_little_data, unknown
from policies.history import History
from policies.observation import Action, Decision, Reason, Sample, Seen


class EwmaThreshold:
    """Merges when the share of past ticks with a lower signal is low enough for the gap.

    That is quantile * (gap / paced gap)**pace: it grows with the gap since the last merge, so
    early merges must be cheap ones and late ones may cost more.
    """

    def __init__(self, config: EwmaThresholdConfig, frame: Frame) -> None:
        self._config = config
        self._frame = frame
        self._history = History(
            half_life_ticks=config.half_life_s / frame.tick_s,
            memory_ticks=frame.ticks(config.memory_s),
        )
        self._needed = frame.ticks(config.least_data_s)
        self._refit_ticks = frame.ticks(config.refit_s)
        self._sorted_tick = -math.inf
        self._sorted: tuple[float, ...] = ()  # known signals of the memory, rising

    def observe(self, sample: Sample) -> None:
        """Fold the counts in; sort the memory anew every ``refit_s``."""
        self._history.fold(sample)
        if sample.tick - self._sorted_tick < self._refit_ticks:
            return
        if self._history.known >= self._needed:
            signal = self._history.past().signal
            self._sorted = tuple(np.sort(signal[np.isfinite(signal)]).tolist())
            self._sorted_tick = sample.tick

    def decide(self, seen: Seen) -> Decision:
        """Merge at or below the quantile that the gap allows."""
        if not self._sorted:
            return too_little_data(seen, known=self._history.known, needed=self._needed)
        signal = self._history.signal
        if signal is None:
            return unknown((("signal", None),))
        gap = seen.tick - seen.last_end_tick
        share = self._config.quantile * (gap / self._frame.paced_gap(seen)) ** self._config.pace
        rank = min(len(self._sorted) - 1, int(share * (len(self._sorted) - 1)))
        limit = self._sorted[rank]
        low = signal <= limit
        return Decision(
            action=Action.MERGE if low else Action.DEFER,
            reason=Reason.SCORE_ABOVE if low else Reason.SCORE_BELOW,
            score=limit - signal,
            terms=(
                ("signal", signal),
                ("limit", limit),
                ("share_lower", bisect_right(self._sorted, signal) / len(self._sorted)),
            ),
        )
