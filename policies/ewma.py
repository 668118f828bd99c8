"""One-step forecast of the request rate: merge when no later start is expected to overlap less.

The rate is an exponentially weighted mean over time, so that missed or late ticks do no harm.
"""

import math
from dataclasses import dataclass

from policies.config import WaEwmaConfig
from policies.observation import Action, Decision, Reason, Sample, Seen


class TimedMean:
    """Mean of a piecewise constant signal under the weight 2^(-age / half_life).

    A value that held for dt gets the weight 1 - 2^(-dt / half_life), all earlier ones the rest.
    Dividing by the total weight so far takes out the start: the first value is not favoured.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._sum = 0.0
        self._weight = 0.0

    def fold(self, value: float, *, elapsed_s: float) -> None:
        """``value`` held for the last ``elapsed_s``."""
        keep = math.exp2(-elapsed_s / self._half_life_s)
        self._sum = keep * self._sum + (1.0 - keep) * value
        self._weight = keep * self._weight + (1.0 - keep)

    @property
    def mean(self) -> float | None:
        """None before the first value that held for any time."""
        return self._sum / self._weight if self._weight > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is expected of a merge of W ticks that starts k ticks from now."""

    rate_fast: float  # requests per second, lately
    rate_slow: float  # requests per second, in the long run
    in_flight: float  # now
    in_flight_mean: float  # in the long run
    half_life_s: float
    tick_s: float
    width_ticks: int

    def overlap(self, k: int) -> float:
        """Requests in flight at the start plus those that arrive in the window.

        The rate goes back to its mean: f(c) = slow + (fast - slow) 2^(-(c - now) / half_life).
        """
        waiting = self.in_flight if k == 0 else self.in_flight_mean
        per_tick = math.log(2.0) * self.tick_s / self.half_life_s
        # sum of 2^(-(k + i) tick_s / half_life) over i = 0..W-1, a geometric series
        window = math.expm1(-self.width_ticks * per_tick) / math.expm1(-per_tick)
        excess = (self.rate_fast - self.rate_slow) * math.exp(-k * per_tick) * window
        return waiting + self.tick_s * (self.width_ticks * self.rate_slow + excess)

    @property
    def typical(self) -> float:
        """Overlap of an average window, the unit of the score; 1 on no traffic at all."""
        typical = self.width_ticks * self.tick_s * self.rate_slow + self.in_flight_mean
        return typical if typical > 0 else 1.0


class WaEwma:
    """Scores each start left to it by its expected overlap; merges when now is the best."""

    def __init__(self, config: WaEwmaConfig) -> None:
        self._config = config
        self._fast = TimedMean(config.half_life_s)
        self._slow = TimedMean(config.mean_half_life_s)
        self._in_flight_mean = TimedMean(config.mean_half_life_s)
        self._in_flight: int | None = None
        self._arrived = 0  # counted and not yet folded in
        self._started = False
        self._arrivals_at_s = 0.0
        self._in_flight_at_s = 0.0

    def observe(self, sample: Sample) -> None:
        """A missing count holds the means; the next one stands for all the time since the last."""
        self._in_flight = sample.in_flight
        if not self._started:
            # Counts run from 0 on; earlier traffic, if the run is given any, from its first tick.
            self._started = True
            self._arrivals_at_s = self._in_flight_at_s = min(0.0, sample.now_s)
        if sample.arrivals is not None:
            self._arrived += sample.arrivals
            elapsed_s = sample.now_s - self._arrivals_at_s
            if elapsed_s > 0:
                rate = self._arrived / elapsed_s
                self._fast.fold(rate, elapsed_s=elapsed_s)
                self._slow.fold(rate, elapsed_s=elapsed_s)
                self._arrived = 0
                self._arrivals_at_s = sample.now_s
        if sample.in_flight is not None:
            elapsed_s = sample.now_s - self._in_flight_at_s
            if elapsed_s > 0:
                self._in_flight_mean.fold(sample.in_flight, elapsed_s=elapsed_s)
                self._in_flight_at_s = sample.now_s

    def decide(self, seen: Seen) -> Decision:
        """Merge when score(now) >= score(c) for every later start c up to the latest."""
        fast, slow = self._fast.mean, self._slow.mean
        in_flight, in_flight_mean = self._in_flight, self._in_flight_mean.mean
        known = (
            ("rate_fast", fast),
            ("rate_slow", slow),
            ("in_flight", None if in_flight is None else float(in_flight)),
            ("in_flight_mean", in_flight_mean),
        )
        if fast is None or slow is None or in_flight is None or in_flight_mean is None:
            terms = (*known, ("overlap_now", None), *_later(None, None, None))
            return Decision(action=Action.DEFER, reason=Reason.UNKNOWN, terms=terms)
        forecast = Forecast(
            rate_fast=fast,
            rate_slow=slow,
            in_flight=float(in_flight),
            in_flight_mean=in_flight_mean,
            half_life_s=self._config.half_life_s,
            tick_s=seen.tick_s,
            width_ticks=seen.width_ticks,
        )
        return self._choose(seen, forecast, known)

    def _choose(
        self, seen: Seen, forecast: Forecast, known: tuple[tuple[str, float | None], ...]
    ) -> Decision:
        left = max(1, seen.latest_tick - seen.tick)
        scores = [
            -forecast.overlap(k) / forecast.typical - self._config.w_stale * k / left
            for k in range(max(0, seen.latest_tick - seen.tick) + 1)
        ]
        best = max(range(1, len(scores)), key=scores.__getitem__, default=None)
        now = best is None or scores[0] >= scores[best]
        later = (
            _later(None, None, None)
            if best is None
            else _later(forecast.overlap(best), float(seen.tick + best), scores[best])
        )
        return Decision(
            action=Action.MERGE if now else Action.DEFER,
            reason=Reason.FORECAST_BEST if now else Reason.FORECAST_LATER,
            score=scores[0],
            terms=(*known, ("overlap_now", forecast.overlap(0)), *later),
        )


def _later(
    overlap: float | None, tick: float | None, score: float | None
) -> tuple[tuple[str, float | None], ...]:
    return (
        ("best_later_overlap", overlap),
        ("best_later_tick", tick),
        ("best_later_score", score),
    )
