"""A period in the traffic: find it, fold the past by phase, merge at the cheapest phase ahead.

Where nothing repeats, the target cadence.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from policies.config import SeasonConfig
from policies.frame import Frame, forecast, too_little_data, unknown
from policies.history import Floats, History, Past
from policies.observation import Action, Decision, Reason, Sample, Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Season:
    """A period in ticks, and what a merge meets by the phase that it starts at."""

    period_ticks: float
    correlation: float
    new: bytes  # float64 [phase], mean of what arrives in the window
    in_flight: bytes  # float64 [phase], mean in flight at the start
    dispersion: float  # variance of in flight, per request of its mean
    mean_cost: float

    def __hash__(self) -> int:
        return hash(self.new)  # bytes remember their hash

    def outlook(self, ticks: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Expected arrivals in the windows that start at these ticks, and in flight there."""
        new, in_flight = np.frombuffer(self.new), np.frombuffer(self.in_flight)
        phase = phases(ticks, self.period_ticks, len(new))
        return new[phase], in_flight[phase]


def phases(ticks: npt.ArrayLike, period_ticks: float, number: int) -> npt.NDArray[np.int64]:
    """Which of ``number`` equal parts of the period each tick falls into."""
    share = np.mod(ticks, period_ticks) / period_ticks
    return np.minimum((share * number).astype(np.int64), number - 1)


def autocorrelation(values: Floats, *, most_lag: int) -> Floats:
    """Correlation of values[i] with values[i + lag], lags 0..most_lag; zeros without variance."""
    n = len(values)
    centred = values - values.mean()
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    products = np.fft.irfft(spectrum * spectrum.conj(), size)[: most_lag + 1]
    covariance: Floats = products / (n - np.arange(most_lag + 1))
    return covariance / covariance[0] if covariance[0] > 0 else np.zeros(most_lag + 1)


def find_period(past: Past, *, width_ticks: int, least: float) -> tuple[float, float] | None:
    """Period in ticks and its correlation; None when no lag correlates by ``least`` or more.

    Of W-tick sums, for those are what a merge meets. The first peak that comes near the highest
    is the period, the others are multiples of it; the last of these gives it to a fraction of a
    tick. Unknown counts stand at the mean, where they correlate with nothing.
    """
    counts = np.where(np.isnan(past.arrivals), np.nanmean(past.arrivals), past.arrivals)
    sums = np.convolve(counts, np.ones(width_ticks), mode="valid")
    most = len(sums) // 2
    shortest = 2 * width_ticks
    if most < 2 * shortest:
        return None
    found = autocorrelation(sums, most_lag=most)
    inner = found[shortest : most - 1]
    peak = (inner >= found[shortest - 1 : most - 2]) & (inner >= found[shortest + 1 : most])
    lags = np.flatnonzero(peak) + shortest
    if len(lags) == 0 or found[lags].max() < least:
        return None
    first = int(lags[found[lags] >= 0.8 * found[lags].max()][0])
    period, times = float(first), 1
    while (times + 1) * period + period / 4 < most:
        low = math.ceil((times + 1) * period - period / 4)
        lag = low + int(np.argmax(found[low : math.floor((times + 1) * period + period / 4) + 1]))
        if found[lag] < 0.5 * found[first]:
            break
        times += 1
        period = lag / times
    return period, float(found[first])


def fit_season(
    past: Past, *, width_ticks: int, half_life_ticks: float, least: float
) -> Season | None:
    """Period and folded profile of the known windows; None without a period or a known window."""
    cost = past.window_costs(width_ticks)
    known = np.isfinite(cost)
    if not known.any():
        return None
    found = find_period(past, width_ticks=width_ticks, least=least)
    if found is None:
        return None
    period, correlation = found
    ticks = past.last_tick - len(past.signal) + 1.0 + np.flatnonzero(known)
    weight = np.exp2((ticks - past.last_tick) / half_life_ticks)
    number = max(1, round(period))
    phase = phases(ticks, period, number)
    prior = 1e-6 * weight.max()  # a phase without a window is like any
    held = np.bincount(phase, weights=weight, minlength=number) + prior

    def folded(values: Floats) -> Floats:
        mean = np.average(values, weights=weight)
        total = np.bincount(phase, weights=weight * values, minlength=number) + prior * mean
        return np.asarray(total / held)

    waiting = past.in_flight[: len(cost)][known]
    in_flight = folded(waiting)
    spread = np.average(np.square(waiting - in_flight[phase]), weights=weight)
    typical = np.average(waiting, weights=weight)
    return Season(
        period_ticks=period,
        correlation=correlation,
        new=folded(cost[known] - waiting).tobytes(),
        in_flight=in_flight.tobytes(),
        dispersion=float(spread / typical) if typical > 0 else 0.0,
        mean_cost=float(np.average(cost[known], weights=weight)),
    )


def least_of(mean: float, spread: float, other: float) -> float:
    """E min(mean + spread z, other), z standard normal: what a free choice is worth."""
    if spread <= 0 or other == math.inf:
        return min(mean, other)
    d = (other - mean) / spread
    below = 0.5 * (1.0 + math.erf(d / math.sqrt(2.0)))  # P(mean + spread z < other)
    density = math.exp(-0.5 * d * d) / math.sqrt(2.0 * math.pi)
    return other - spread * (d * below + density)


@lru_cache(maxsize=64)
def waiting_costs(
    season: Season, *, last_end_tick: int, last_gap: int, aim: float, w_cadence: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Price of the cadence, and least expected cost of a later merge, by gap 0..last_gap.

    later_g = E min(cost_{g+1} + noise of in flight, later_{g+1}): the arrivals follow the season,
    what is in flight is only known when it is seen. At the last gap there is no later.
    """
    gaps = np.arange(last_gap + 1)
    new, in_flight = season.outlook(last_end_tick + gaps)
    price = w_cadence * season.mean_cost * np.square((gaps - aim) / aim)
    means = (new + in_flight + price).tolist()
    spreads = np.sqrt(season.dispersion * in_flight).tolist()
    later = [math.inf] * (last_gap + 1)
    for gap in range(last_gap - 1, -1, -1):
        later[gap] = least_of(means[gap + 1], spreads[gap + 1], later[gap + 1])
    return tuple(price.tolist()), tuple(later)


class Seasonal:
    """Learns the season in observe, on a schedule; decide compares the phases ahead."""

    def __init__(self, config: SeasonConfig, frame: Frame) -> None:
        self._config = config
        self._frame = frame
        self._history = History(
            half_life_ticks=config.half_life_s / frame.tick_s,
            memory_ticks=frame.ticks(config.memory_s),
        )
        self._needed = frame.ticks(config.least_data_s)
        self._refit_ticks = frame.ticks(config.refit_s)
        self._fitted_tick = -math.inf
        self._season: Season | None = None
        self._in_flight: int | None = None

    def observe(self, sample: Sample) -> None:
        """Fold the counts in; look for the season anew every ``refit_s``."""
        self._history.fold(sample)
        self._in_flight = sample.in_flight
        if sample.tick - self._fitted_tick < self._refit_ticks:
            return
        if self._history.known >= self._needed:
            self._fitted_tick = sample.tick
            self._season = fit_season(
                self._history.past(),
                width_ticks=self._frame.corridor.width_ticks,
                half_life_ticks=self._config.memory_half_life_s / self._frame.tick_s,
                least=self._config.least_correlation,
            )

    def decide(self, seen: Seen) -> Decision:
        """Merge when no later phase is cheaper, cadence included."""
        if self._fitted_tick == -math.inf:
            return too_little_data(seen, known=self._history.known, needed=self._needed)
        signal, season = self._history.signal, self._season
        in_flight = self._in_flight
        if signal is None or in_flight is None:
            return unknown((("signal", None),))
        gap = seen.tick - seen.last_end_tick
        if season is None:
            due = gap >= seen.target_gap_ticks
            return Decision(
                action=Action.MERGE if due else Action.DEFER,
                reason=Reason.SCHEDULED if due else Reason.NOT_SCHEDULED,
                terms=(("signal", signal), ("period_ticks", None)),
            )
        price, later = waiting_costs(
            season,
            last_end_tick=seen.last_end_tick,
            last_gap=max(seen.latest_tick, seen.tick) - seen.last_end_tick,
            aim=self._frame.paced_gap(seen),
            w_cadence=self._config.w_cadence,
        )
        new, _ = season.outlook(seen.tick)
        return forecast(
            now=float(new) + in_flight + price[gap],
            later=later[gap],
            terms=(("signal", signal), ("period_ticks", season.period_ticks)),
        )
