"""A period in the traffic: find it, fold the past by phase, plan the merges ahead on its profile.

Where nothing repeats, the target cadence.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from policies.config import SeasonConfig
from policies.corridor import Corridor
from policies.frame import Frame, forecast, too_little_data, unknown
from policies.history import Floats, History, Past
from policies.observation import Action, Decision, Reason, Sample, Seen

ROUNDS_AHEAD = 16  # merges after the next that are planned; a longer run is planned in parts


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
    sums = np.lib.stride_tricks.sliding_window_view(counts, width_ticks).sum(axis=1)
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
    if spread <= 0 or math.isinf(other) or math.isinf(mean):
        return min(mean, other)
    d = (other - mean) / spread
    below = 0.5 * (1.0 + math.erf(d / math.sqrt(2.0)))  # P(mean + spread z < other)
    density = math.exp(-0.5 * d * d) / math.sqrt(2.0 * math.pi)
    return other - spread * (d * below + density)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The corridor from the end of the last merge on: what has to fit in after the next one."""

    corridor: Corridor
    last_end_tick: int
    last_gap: int  # most that the next merge may wait
    rounds: int  # merges after the next one
    end_tick: int  # by which all of them end
    last: bool  # whether the run ends there, and could have been forced into no further merge


def ahead_of(seen: Seen, frame: Frame) -> Ahead:
    """All that is left of the budget; of a long run, or without a budget, some rounds of it.

    These end when as many rounds at the paced gap would.
    """
    left = seen.budget - seen.merges_done - 1 if seen.budget else ROUNDS_AHEAD
    rounds, last = min(max(left, 0), ROUNDS_AHEAD), 0 <= left < ROUNDS_AHEAD
    round_ticks = frame.paced_gap(seen) + frame.corridor.width_ticks
    end_tick = seen.last_end_tick + round((rounds + 1) * round_ticks)
    return Ahead(
        corridor=frame.corridor,
        last_end_tick=seen.last_end_tick,
        last_gap=max(seen.latest_tick, seen.tick) - seen.last_end_tick,
        rounds=rounds,
        end_tick=frame.corridor.horizon_ticks if last else end_tick,
        last=last,
    )


def rest_costs(cost: Floats, ahead: Ahead) -> Floats:
    """By gap 0..last_gap of the next merge: least cost of the merges after it.

    cost[i]: of a merge that starts i ticks after the last end, as far as ``end_tick``. With V_r(e)
    the least cost of r merges after an end at e, and V_0 = 0 where the run may end,
    V_r(e) = min over gaps g of cost[e + g] + V_{r-1}(e + g + W). A gap after which they do not fit
    costs more than any after which they do; where none is left (after an overrun) all cost 0.
    """
    floor, ceiling = ahead.corridor.floor_ticks, ahead.corridor.ceiling_ticks
    width, size = ahead.corridor.width_ticks, len(cost)
    value = np.zeros(size + width + ceiling + ahead.last_gap + 1)
    value[size:] = np.inf
    if ahead.last:
        value[: max(0, size - width - ceiling)] = np.inf
    start = np.full(len(value) + ceiling, np.inf)
    for _ in range(ahead.rounds):
        start[:size] = cost + value[width : width + size]
        best = sliding_window_view(start[floor:], ceiling - floor + 1).min(axis=1)
        value[:size] = best[:size]
    rest: Floats = value[width : width + ahead.last_gap + 1]
    fits = np.isfinite(rest)
    if not fits.any():
        return np.zeros(len(rest))
    beyond = rest[fits].max() + (ahead.rounds + 1) * cost.max()
    return np.where(fits, rest, beyond)


@lru_cache(maxsize=64)
def waiting_costs(season: Season, ahead: Ahead) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Cost of the merges after the next, and least expected cost of waiting, by gap 0..last_gap.

    later_g = E min(cost_{g+1} + noise of in flight + rest_{g+1}, later_{g+1}): the arrivals follow
    the season, what is in flight is only known when it is seen. At the last gap there is no later.
    """
    size = max(ahead.end_tick - ahead.last_end_tick, ahead.last_gap) + 1
    new, in_flight = season.outlook(ahead.last_end_tick + np.arange(size))
    gaps = ahead.last_gap + 1
    rest = rest_costs((new + in_flight)[: ahead.end_tick - ahead.last_end_tick + 1], ahead)
    means = (new[:gaps] + in_flight[:gaps] + rest).tolist()
    spreads = np.sqrt(season.dispersion * in_flight[:gaps]).tolist()
    later = [math.inf] * gaps
    for gap in range(gaps - 2, -1, -1):
        later[gap] = least_of(means[gap + 1], spreads[gap + 1], later[gap + 1])
    return tuple(rest.tolist()), tuple(later)


class Seasonal:
    """Learns the season in observe, on a schedule; decide looks its tick up in the plan."""

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
        rest, later = waiting_costs(season, ahead_of(seen, self._frame))
        new, _ = season.outlook(seen.tick)
        return forecast(
            now=float(new) + in_flight + rest[gap],
            later=later[gap],
            terms=(("signal", signal), ("period_ticks", season.period_ticks)),
        )
