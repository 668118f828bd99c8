"""Every policy on families of traffic, at a fixed budget, against exact random and the oracle.

Setting of the prototype: floor 16 s, ceiling 64 s, W 8 s, T 600 s, tick 1 s, 1800 s of earlier
traffic, cadence 40 s. Cost of a merge = requests in flight at its start + requests that arrive in
it; `new` counts the latter alone. Service: infinite server, 1.5 s. Closed = (random - policy) /
(random - oracle), ratio of means over replicates, with its standard error. CPU time a tick is
observe and decide in the run, less what fixed_h takes in the same wrapper. Overlap, not a server:
these figures rank policies and license nothing.

    python tests/benchmarks/bench_policies.py --replicates 200 --families periodic sharp
"""

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import TypeAdapter

from policies.build import build_policy, needs_probes
from policies.config import FixedHConfig, PolicyConfig
from policies.corridor import Corridor
from policies.frame import Frame
from policies.observation import Action, Sample
from policies.streams import stream
from policies.wrapper import CorridorWrapper

Floats = npt.NDArray[np.float64]
HISTORY_S, HORIZON_S, TARGET_GAP_S, BUDGET, SERVICE_S = 1800, 600, 32, 15, 1.5
CORRIDOR = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=HORIZON_S)
TRACE = Path(__file__).parents[2] / "experiments/traces/AzureLLMInferenceTrace_code.csv"
LOW, HIGH = 2.0, 8.0  # requests/s outside and inside bursts, where the family does not say
POLICIES: dict[str, dict[str, object]] = {
    "fixed_h": {"kind": "fixed_h", "h_steps": TARGET_GAP_S},
    "wa_ewma": {"kind": "wa_ewma", "half_life_s": 8.0, "mean_half_life_s": 600.0},
    "ewma_threshold": {"kind": "ewma_threshold"},
    "stopping": {"kind": "stopping"},
    "season": {"kind": "season"},
    "analog": {"kind": "analog"},
    "ensemble": {"kind": "ensemble"},
}

# --- traffic: rates as on/off stretches, arrivals Poisson inside ---

Draw = Callable[[np.random.Generator], tuple[float, float]]


def on_off(draw: Draw, *, low: float, high: float, rng: np.random.Generator) -> Floats:
    """Arrival times in [-HISTORY_S, HORIZON_S + W); each round is an off and an on stretch."""
    end = HORIZON_S + CORRIDOR.width_ticks
    off, on = draw(rng)
    at = -HISTORY_S - float(rng.uniform(0, off + on))
    times = []
    while at < end:
        for length, rate in ((off, low), (on, high)):
            times.append(at + rng.uniform(0, length, size=rng.poisson(rate * length)))
            at += length
        off, on = draw(rng)
    return np.sort(np.concatenate(times))


@cache
def azure_code() -> Floats:
    with TRACE.open(newline="") as file:
        stamps = [row["TIMESTAMP"][:26] for row in csv.DictReader(file)]
    at = [datetime.fromisoformat(stamp).timestamp() for stamp in stamps]
    return np.array(at) - at[0]


def azure_slice(replicate: int, replicates: int) -> Floats:
    """Overlapping slices of the one hour, evenly spread: a size of effect, no evidence."""
    last = float(azure_code()[-1]) - HISTORY_S - HORIZON_S - CORRIDOR.width_ticks
    return azure_code() - HISTORY_S - last * (replicate + 0.5) / replicates


def exponential(off: float, on: float) -> Draw:
    return lambda rng: (float(rng.exponential(off)), float(rng.exponential(on)))


FAMILIES: dict[str, tuple[Draw, float, float] | None] = {
    "periodic": (lambda rng: (90.0, 30.0), LOW, HIGH),
    "short": (lambda rng: (33.0, 12.0), LOW, HIGH),
    "exponential": (exponential(90.0, 30.0), LOW, HIGH),
    "uniform": (lambda rng: (float(rng.uniform(60, 120)), float(rng.uniform(20, 40))), LOW, HIGH),
    "sharp": (exponential(90.0, 30.0), 2.0, 26.0),
    "steady": (lambda rng: (60.0, 60.0), 4.0, 4.0),
    "azure_code": None,
}


def arrivals_of(family: str, replicate: int, *, replicates: int, seed: int) -> Floats:
    law = FAMILIES[family]
    if law is None:
        return azure_slice(replicate, replicates)
    draw, low, high = law
    key = sorted(FAMILIES).index(family)
    return on_off(draw, low=low, high=high, rng=stream(seed, "bench_policies", key, replicate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    samples: list[Sample]  # ticks -HISTORY_S .. HORIZON_S
    cost: Floats  # [start tick 0 .. T], in flight at the start and arriving in the window
    new: Floats  # the same, arriving only


def traffic(arrivals: Floats) -> Traffic:
    ticks = np.arange(-HISTORY_S, HORIZON_S + 1)
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


# --- exact random and oracle. To be replaced by Corridor.moments and Corridor.best. ---


@cache
def marginals(budget: int) -> Floats:
    """Expected number of merges that start at each tick under uniform placement."""
    low, top = CORRIDOR.require(budget)
    reach = CORRIDOR.ceiling_ticks - CORRIDOR.floor_ticks
    step = np.ones(reach + 1)
    ways = [np.eye(1, top + 1)[0]]
    for _ in range(budget):
        ways.append(np.convolve(ways[-1], step)[: top + 1])
    after = [(np.arange(top + 1) >= low).astype(float)]
    for _ in range(budget):
        after.append(np.convolve(after[-1][::-1], step)[: top + 1][::-1])
    expected = np.zeros(HORIZON_S + 1)
    for i in range(1, budget + 1):
        share = ways[i] * after[budget - i]
        first = start_of(i)
        expected[first : first + top + 1] += share / share.sum()
    return expected


def start_of(merge: int) -> int:
    """Start of the merge-th merge without any slack."""
    return CORRIDOR.floor_ticks + (merge - 1) * (CORRIDOR.width_ticks + CORRIDOR.floor_ticks)


def oracle(cost: Floats, budget: int) -> float:
    """Least total cost of a feasible schedule."""
    low, top = CORRIDOR.require(budget)
    reach = CORRIDOR.ceiling_ticks - CORRIDOR.floor_ticks
    padded = np.concatenate([cost, np.full(HORIZON_S, np.inf)])
    best = np.full(top + 1, np.inf)
    best[0] = 0.0
    for i in range(1, budget + 1):
        earlier = np.concatenate([np.full(reach, np.inf), best])
        best = sliding_window_view(earlier, reach + 1).min(axis=1)
        best = best + padded[start_of(i) : start_of(i) + top + 1]
    return float(best[low:].min())


# --- one policy on one stretch of traffic ---


def schedule(config: PolicyConfig, made: Traffic) -> tuple[list[int], float]:
    """Start ticks, and CPU microseconds a tick of observe and decide through the wrapper."""
    frame = Frame(corridor=CORRIDOR, target_gap_ticks=TARGET_GAP_S, tick_s=1.0)
    wrapper = CorridorWrapper(
        CORRIDOR,
        budget=BUDGET,
        policy=build_policy(config, step_interval_s=1.0, tick_s=1.0, frame=frame),
        tick_s=1.0,
        target_gap_ticks=TARGET_GAP_S,
        needs_probes=needs_probes(config),
    )
    for sample in made.samples[:HISTORY_S]:
        wrapper.observe(sample)
    starts: list[int] = []
    end = 0
    began = time.process_time()
    for sample in made.samples[HISTORY_S:]:
        wrapper.observe(sample)
        decision, _, _ = wrapper.decide(
            sample, merges_done=len(starts), last_end_tick=end, in_window=sample.tick < end
        )
        if decision.action is Action.MERGE:
            starts.append(sample.tick)
            end = sample.tick + CORRIDOR.width_ticks
    spent_s = time.process_time() - began
    if not CORRIDOR.contains(starts):
        raise AssertionError(f"{config.kind} left the corridor: {starts}")
    return starts, 1e6 * spent_s / (HORIZON_S + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    family: str
    policy: str
    merges: float
    closed: float
    closed_se: float
    gain: float  # relative, full cost
    new_gain: float  # relative, requests that had not arrived at the start
    us_per_tick: float  # beyond fixed_h in the same wrapper


def evaluate(
    family: str, policies: dict[str, PolicyConfig], *, replicates: int, seed: int
) -> list[Row]:
    made = [
        traffic(arrivals_of(family, r, replicates=replicates, seed=seed)) for r in range(replicates)
    ]
    expected = marginals(BUDGET)
    random = np.array([expected @ m.cost for m in made])
    random_new = np.array([expected @ m.new for m in made])
    best = np.array([oracle(m.cost, BUDGET) for m in made])
    idle = FixedHConfig(kind="fixed_h", h_steps=TARGET_GAP_S)  # the wrapper's own time
    wrapper_us = float(np.median([schedule(idle, m)[1] for m in made]))
    rows = []
    for name, config in policies.items():
        runs = [schedule(config, m) for m in made]
        cost = np.array([m.cost[s].sum() for m, (s, _) in zip(made, runs, strict=True)])
        new = np.array([m.new[s].sum() for m, (s, _) in zip(made, runs, strict=True)])
        room = float((random - best).mean())
        closed = float((random - cost).mean()) / room
        left = (random - cost) - closed * (random - best)
        rows.append(
            Row(
                family=family,
                policy=name,
                merges=float(np.mean([len(s) for s, _ in runs])),
                closed=closed,
                closed_se=float(left.std(ddof=1)) / np.sqrt(replicates) / room,
                gain=1 - float(cost.sum() / random.sum()),
                new_gain=1 - float(new.sum() / random_new.sum()),
                us_per_tick=float(np.median([us for _, us in runs])) - wrapper_us,
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicates", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", nargs="*", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--set", default="{}", help="JSON merged into every policy's config")
    args = parser.parse_args()
    read = TypeAdapter[PolicyConfig](PolicyConfig).validate_json
    extra = json.loads(args.set)
    configs = {n: read(json.dumps({**POLICIES[n], **extra})) for n in args.policies}
    out = sys.stdout
    out.write("| family | policy | merges | closed | +- | gain | new gain | us/tick |\n")
    out.write("|---|---|--:|--:|--:|--:|--:|--:|\n")
    for family in args.families:
        for r in evaluate(family, configs, replicates=args.replicates, seed=args.seed):
            out.write(
                f"| {r.family} | {r.policy} | {r.merges:.1f} | {r.closed:.3f} | {r.closed_se:.3f} "
                f"| {r.gain:.3f} | {r.new_gain:.3f} | {r.us_per_tick:.1f} |\n"
            )
            out.flush()


if __name__ == "__main__":
    main()
