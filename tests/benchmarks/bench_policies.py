"""Every policy on ten families of traffic, against exact random and the oracle.

Run it by `make bench-policies`. Overlap, not a server: these figures rank policies and license
nothing. Families: families.py; how a policy is played and compared: playing.py; the optimum for a
known law: optimum.py; what is aimed at, and the page that is written: policy_page.py.

    PYTHONPATH=. python tests/benchmarks/bench_policies.py --replicates 20 --families sharp --out -
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from policies.config import (
    AnalogConfig,
    EnsembleConfig,
    EwmaThresholdConfig,
    FixedHConfig,
    PolicyConfig,
    SeasonConfig,
    StoppingConfig,
    WaEwmaConfig,
)
from tests.benchmarks.families import (
    BUDGET,
    CORRIDOR,
    FAMILIES,
    HISTORY_S,
    HORIZON_S,
    TARGET_GAP_S,
    Traffic,
    arrivals_of,
    traffic,
    traffic_of,
)
from tests.benchmarks.playing import (
    Paid,
    build,
    company,
    microseconds,
    on_cycle,
    paid,
    placement,
    play,
)
from tests.benchmarks.policy_page import TUNED, Result, page

__all__ = ["BUDGET", "CORRIDOR", "FAMILIES", "HISTORY_S", "HORIZON_S", "TARGET_GAP_S"]
__all__ += ["Traffic", "arrivals_of", "traffic"]  # other benchmarks take them from here

OUT = Path(__file__).with_name("README-policies.md")
POLICIES: dict[str, PolicyConfig] = {
    "fixed_h": FixedHConfig(kind="fixed_h", h_steps=TARGET_GAP_S),
    "wa_ewma": WaEwmaConfig(kind="wa_ewma", half_life_s=8.0, mean_half_life_s=600.0),
    "ewma_threshold": EwmaThresholdConfig(kind="ewma_threshold"),
    "stopping": StoppingConfig(kind="stopping"),
    "stopping_forecast": StoppingConfig(kind="stopping", levels_of="forecast", refit_s=300.0),
    "season": SeasonConfig(kind="season"),
    "analog": AnalogConfig(kind="analog"),
    "ensemble": EnsembleConfig(kind="ensemble"),
}
PAPER_CYCLE_S = 16
TIMED_REPLICATES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One replicate of one family."""

    family: str
    replicate: int
    replicates: int
    seed: int
    configs: dict[str, PolicyConfig]
    free: bool


Outcome = dict[str, tuple[Paid, ...]]  # policy: fixed budget, own count


def played(job: Job) -> Outcome:
    made = traffic_of(job.family, job.replicate, replicates=job.replicates, seed=job.seed)
    troupe = company(job.configs)
    if "wa_ewma" in job.configs:
        troupe = on_cycle(troupe, "wa_ewma", cycle_ticks=PAPER_CYCLE_S)
    starts = play(troupe, made, free=job.free)
    return {
        name: tuple(paid(s, made) for s in (kinds if job.free else kinds[:1]))
        for name, kinds in starts.items()
    }


Map = Callable[[Callable[[Job], Outcome], list[Job]], Iterable[Outcome]]


# --- the threshold tuned by family, on another seed ---


def thresholds() -> dict[str, EwmaThresholdConfig]:
    grid = product((1.0, 2.0), (0.2, 0.3, 0.4, 0.5), (0.0, 1.0, 2.0))
    return {
        f"half-life {half_life:g} s, quantile {quantile:g}, pace {pace:g}": EwmaThresholdConfig(
            kind="ewma_threshold", half_life_s=half_life, quantile=quantile, pace=pace
        )
        for half_life, quantile, pace in grid
    }


def tuned(family: str, *, seed: int, replicates: int, over: Map) -> str:
    """Name of the setting that closes most on the tuning seed."""
    grid = thresholds()
    jobs = [
        Job(
            family=family,
            replicate=r,
            replicates=replicates,
            seed=seed,
            configs=dict(grid),
            free=False,
        )
        for r in range(replicates)
    ]
    runs = list(over(played, jobs))
    closed = {name: placement([run[name][0] for run in runs]).closed.value for name in grid}
    return max(closed, key=closed.__getitem__)


# --- one family ---


def evaluate(family: str, args: argparse.Namespace, *, over: Map) -> Result:
    setting = tuned(
        family,
        seed=args.tuning_seed,
        replicates=args.tuning_replicates,
        over=over,
    )
    configs = {**POLICIES, TUNED: thresholds()[setting]}
    jobs = [
        Job(
            family=family,
            replicate=r,
            replicates=args.replicates,
            seed=args.seed,
            configs=configs,
            free=True,
        )
        for r in range(args.replicates)
    ]
    found = list(over(played, jobs))
    timed = min(TIMED_REPLICATES, args.replicates)
    stretches = [
        traffic_of(family, r, replicates=args.replicates, seed=args.seed) for r in range(timed)
    ]
    spent = {
        n: np.median([microseconds(build(c), m) for m in stretches]) for n, c in configs.items()
    }
    return Result(
        family=family,
        setting=setting,
        runs={name: [run[name] for run in found] for name in found[0]},
        us={name: float(us - spent["fixed_h"]) for name, us in spent.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--tuning-replicates", type=int, default=20)
    parser.add_argument("--tuning-seed", type=int, default=11)
    parser.add_argument("--families", nargs="*", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", default=str(OUT), help="file to write; - for standard output")
    args = parser.parse_args()
    results = []
    with get_context("spawn").Pool(args.processes) as pool:
        for family in args.families:
            results.append(evaluate(family, args, over=partial(pool.map, chunksize=2)))
            closed = results[-1].at("ensemble", 0).closed.value
            sys.stderr.write(f"{family}: ensemble closes {closed:.3f}\n")
            if args.out != "-":  # what is done stays, whatever becomes of the rest
                Path(args.out).write_text(rendered(results, args))
    if args.out == "-":
        sys.stdout.write(rendered(results, args))


def rendered(results: list[Result], args: argparse.Namespace) -> str:
    return page(
        results,
        seed=args.seed,
        replicates=args.replicates,
        tuning_seed=args.tuning_seed,
        tuning_replicates=args.tuning_replicates,
    )


if __name__ == "__main__":
    main()
