"""Ten families of traffic for the policy benchmarks, as samples and as the cost of each start tick.

Cost of a merge = requests in flight at its start + requests that arrive in it; `new` counts the
latter alone. Service: infinite server, 1.5 s. Where a family is cut from one recorded hour or day
the replicates overlap: a size of effect, no evidence.
"""

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from policies.corridor import Corridor
from policies.observation import Sample
from policies.streams import stream

Floats = npt.NDArray[np.float64]
HISTORY_S, HORIZON_S, TARGET_GAP_S, BUDGET, SERVICE_S = 1800, 600, 32, 15, 1.5
CORRIDOR = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=HORIZON_S)
TRACES = Path(__file__).parents[2] / "experiments/traces"
LOW, HIGH = 2.0, 8.0  # requests/s outside and inside bursts, where the family does not say
AFTER_S = HORIZON_S + CORRIDOR.width_ticks  # traffic must reach to here
MOONCAKE_GRID_S, SERVEGEN_WINDOW_S = 3.0, 600

# --- on and off: Poisson arrivals at one of two rates ---

Draw = Callable[[np.random.Generator], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    """Lengths of an off and an on stretch, drawn for each round, and the rates in them."""

    draw: Draw
    low: float
    high: float

    def arrivals(self, rng: np.random.Generator) -> Floats:
        """Arrival times in [-HISTORY_S, AFTER_S)."""
        off, on = self.draw(rng)
        at = -HISTORY_S - float(rng.uniform(0, off + on))
        times = []
        while at < AFTER_S:
            for length, rate in ((off, self.low), (on, self.high)):
                times.append(at + rng.uniform(0, length, size=rng.poisson(rate * length)))
                at += length
            off, on = self.draw(rng)
        return np.sort(np.concatenate(times))


def fixed(off: float, on: float) -> Draw:
    return lambda rng: (off, on)


def exponential(off: float, on: float) -> Draw:
    return lambda rng: (float(rng.exponential(off)), float(rng.exponential(on)))


def uniform(off: tuple[float, float], on: tuple[float, float]) -> Draw:
    return lambda rng: (float(rng.uniform(*off)), float(rng.uniform(*on)))


# --- recorded: slices of one hour, evenly spread ---


def rows_of(name: str) -> list[dict[str, str]]:
    with gzip.open(TRACES / name, "rt", newline="") as file:
        return list(csv.DictReader(file))


@cache
def azure_code() -> Floats:
    with (TRACES / "AzureLLMInferenceTrace_code.csv").open(newline="") as file:
        stamps = [row["TIMESTAMP"][:26] for row in csv.DictReader(file)]
    at = [datetime.fromisoformat(stamp).timestamp() for stamp in stamps]
    return np.array(at) - at[0]


@cache
def azure_conv() -> Floats:
    rows = rows_of("azure_conv_first39min_arrivals.csv.gz")
    return np.array([float(row["arrival_s"]) for row in rows])


@cache
def mooncake(seed: int) -> Floats:
    """Each request anywhere in the 3 s that its time stamp stands for: finer is not recorded."""
    rows = rows_of("mooncake_conversation_arrivals.csv.gz")
    stamps = np.array([float(row["timestamp_ms"]) for row in rows]) / 1000
    at = np.repeat(stamps, [int(row["requests"]) for row in rows])
    rng = stream(seed, "bench_policies/mooncake_grid")
    return np.sort(at + rng.uniform(0, MOONCAKE_GRID_S, size=len(at)))


def slice_of(trace: Floats, *, history_s: int, share: float) -> Floats:
    """The trace with its second ``history_s`` + share of what is left over as time 0."""
    room = float(trace[-1] - trace[0]) - history_s - AFTER_S
    return trace - trace[0] - history_s - room * share


# --- ServeGen: eight clients, each a renewal process whose law changes every 600 s ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """600 s of one client."""

    start_s: int
    requests: int
    gamma: bool  # family of the gaps; else Weibull
    shape: float


@cache
def servegen_windows() -> tuple[Window, ...]:
    """A day of eight clients; windows without requests are left out."""
    windows = []
    for row in rows_of("servegen_one_day_windows.csv.gz"):
        number = round(float(row["rate_per_s"]) * SERVEGEN_WINDOW_S)
        if number > 0 and row["family"] not in ("Gamma", "Weibull"):
            raise ValueError(f"family={row['family']!r} is neither Gamma nor Weibull")
        if number > 0:
            windows.append(
                Window(
                    start_s=int(row["start_s"]),
                    requests=number,
                    gamma=row["family"] == "Gamma",
                    shape=float(row["shape"]),
                )
            )
    return tuple(windows)


def window_arrivals(window: Window, rng: np.random.Generator) -> Floats:
    """Gaps of the family, scaled to fill the window: one more than requests, none on an edge."""
    size = window.requests + 1
    gaps = rng.gamma(window.shape, size=size) if window.gamma else rng.weibull(window.shape, size)
    ends = np.cumsum(gaps)
    return np.asarray(window.start_s + SERVEGEN_WINDOW_S * ends[:-1] / ends[-1])


def servegen(share: float, rng: np.random.Generator) -> Floats:
    """All clients' requests over a slice of the day, its start evenly spread."""
    windows = servegen_windows()
    end_s = max(w.start_s for w in windows) + SERVEGEN_WINDOW_S
    zero_s = HISTORY_S + share * (end_s - HISTORY_S - AFTER_S)
    first, last = zero_s - HISTORY_S - SERVEGEN_WINDOW_S, zero_s + AFTER_S
    near = [w for w in windows if first < w.start_s < last]
    return np.sort(np.concatenate([window_arrivals(w, rng) for w in near])) - zero_s


# --- the families by name ---

LAWS = {
    "periodic": OnOff(draw=fixed(90, 30), low=LOW, high=HIGH),
    "short": OnOff(draw=fixed(33, 12), low=LOW, high=HIGH),
    "exponential": OnOff(draw=exponential(90, 30), low=LOW, high=HIGH),
    "uniform": OnOff(draw=uniform((60, 120), (20, 40)), low=LOW, high=HIGH),
    "sharp": OnOff(draw=exponential(90, 30), low=2.0, high=26.0),
    "steady": OnOff(draw=fixed(60, 60), low=4.0, high=4.0),
}
HISTORIES_S = {"azure_conv": 1200}  # its 39 minutes hold no 1800 s before 600 s
FAMILIES: dict[str, str] = {  # name: what stands in tables
    "periodic": "periodic 120/30 s",
    "short": "periodic 45/12 s",
    "exponential": "on/off exponential 90/30 s",
    "uniform": "on/off uniform 60-120/20-40 s",
    "sharp": "on/off sharp (2 / 26 per s)",
    "azure_code": "Azure code",
    "steady": "steady",
    "azure_conv": "Azure conversation",
    "mooncake": "Mooncake",
    "servegen": "ServeGen, 8 clients",
}


def history_s_of(family: str) -> int:
    """Seconds of traffic before tick 0."""
    return HISTORIES_S.get(family, HISTORY_S)


def arrivals_of(family: str, replicate: int, *, replicates: int, seed: int) -> Floats:
    """Arrival times of one replicate, rising, at least from -history_s_of(family) to AFTER_S."""
    rng = stream(seed, f"bench_policies/{family}", replicate)
    share = (replicate + 0.5) / replicates
    if family in LAWS:
        return LAWS[family].arrivals(rng)
    if family == "servegen":
        return servegen(share, rng)
    recorded = {"azure_code": azure_code, "azure_conv": azure_conv}
    trace = mooncake(seed) if family == "mooncake" else recorded[family]()
    return slice_of(trace, history_s=history_s_of(family), share=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    samples: list[Sample]  # ticks -history_s .. HORIZON_S
    cost: Floats  # [start tick 0 .. T], in flight at the start and arriving in the window
    new: Floats  # the same, arriving only


def traffic(arrivals: Floats, *, history_s: int = HISTORY_S) -> Traffic:
    """What a policy sees each tick, and what a merge from each tick costs."""
    ticks = np.arange(-history_s, HORIZON_S + 1)
    before = np.searchsorted(arrivals, ticks)  # arrivals before each tick
    counts = before - np.searchsorted(arrivals, ticks - 1)
    in_flight = before - np.searchsorted(arrivals, ticks - SERVICE_S)
    samples = [
        Sample(
            tick=int(t),
            now_s=float(t),
            arrivals=int(n),
            in_flight=int(f),
            serving=None,
            network=None,
            checkpoint=None,
            islands=(),
            blind=False,
        )
        for t, n, f in zip(ticks, counts, in_flight, strict=True)
    ]
    run = ticks >= 0
    new = np.searchsorted(arrivals, ticks[run] + CORRIDOR.width_ticks) - before[run]
    return Traffic(
        samples=samples, cost=(new + in_flight[run]).astype(float), new=new.astype(float)
    )


def traffic_of(family: str, replicate: int, *, replicates: int, seed: int) -> Traffic:
    """One replicate with as much history as its family has."""
    arrivals = arrivals_of(family, replicate, replicates=replicates, seed=seed)
    return traffic(arrivals, history_s=history_s_of(family))
