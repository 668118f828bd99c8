"""Gain of the policies that forecast, as error is injected into what they forecast from.

Run it by `make bench-forecast-error`. Overlap model, simulated: it licenses nothing. Writes
README.md and gain.png in experiments/forecast_error; checks the bound for every single replicate.
"""

import argparse
import math
import os
import sys
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from policies.config import (
    AnalogConfig,
    EnsembleConfig,
    EwmaThresholdConfig,
    PolicyConfig,
    SeasonConfig,
    StoppingConfig,
    WaEwmaConfig,
)
from policies.streams import stream
from tests.benchmarks.families import BUDGET, CORRIDOR, FAMILIES, traffic_of
from tests.benchmarks.forecast_error import Error, Kind, altered
from tests.benchmarks.playing import Share, company, play, share

OUT = Path(__file__).parents[2] / "experiments/forecast_error"
POLICIES: dict[str, PolicyConfig] = {
    "wa_ewma": WaEwmaConfig(kind="wa_ewma", half_life_s=8.0, mean_half_life_s=600.0),
    "ewma_threshold": EwmaThresholdConfig(kind="ewma_threshold"),
    "stopping": StoppingConfig(kind="stopping"),
    "season": SeasonConfig(kind="season"),
    "analog": AnalogConfig(kind="analog"),
    "ensemble": EnsembleConfig(kind="ensemble"),
}
PLAYED = ("periodic", "exponential")
NOTHING = {Kind.NOISE: 0.0, Kind.LAG: 0.0, Kind.BIAS: 1.0}  # the size that changes nothing
SIZES = {
    Kind.NOISE: (0.0, 0.5, 1.0, 2.0, 4.0, math.inf),
    Kind.LAG: (0.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    Kind.BIAS: (0.25, 0.5, 1.0, 2.0, 4.0),
}
UNITS = {
    Kind.NOISE: "sd of the noise / sd of the count",
    Kind.LAG: "lag, ticks of 1 s",
    Kind.BIAS: "factor from tick 0 on",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    family: str
    replicate: int
    replicates: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Costs of one replicate; by error and policy."""

    random: float
    best: float
    worst: float
    paid: dict[tuple[Error, str], float]


def errors() -> list[Error]:
    return [Error(kind=kind, size=size) for kind, sizes in SIZES.items() for size in sizes]


def run(job: Job) -> Outcome:
    """Every policy under every error on one replicate, inside the bound or AssertionError."""
    made = traffic_of(job.family, job.replicate, replicates=job.replicates, seed=job.seed)
    best = CORRIDOR.best(made.cost, BUDGET)[0]
    worst = -CORRIDOR.best(-made.cost, BUDGET)[0]
    paid: dict[tuple[Error, str], float] = {}
    for error in errors():
        rng = stream(job.seed, f"forecast_error/{job.family}/{error.kind.value}", job.replicate)
        seen = altered(made.samples, error, rng=rng)
        for name, (starts, _) in play(company(POLICIES), made, free=False, altered=seen).items():
            cost = float(made.cost[starts].sum())
            if not best <= cost <= worst:
                raise AssertionError(f"{job}, {error}, {name}: {cost} outside {best} .. {worst}")
            paid[error, name] = cost
    return Outcome(
        random=float(CORRIDOR.start_marginals(BUDGET) @ made.cost),
        best=best,
        worst=worst,
        paid=paid,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    family: str
    outcomes: list[Outcome]

    def gain(self, costs: list[float]) -> Share:
        random = np.array([o.random for o in self.outcomes])
        return share(random - np.array(costs), random)

    def gain_of(self, error: Error, name: str) -> Share:
        return self.gain([o.paid[error, name] for o in self.outcomes])

    @property
    def most(self) -> Share:
        return self.gain([o.best for o in self.outcomes])

    @property
    def least(self) -> Share:
        return self.gain([o.worst for o in self.outcomes])


def evaluate(family: str, args: argparse.Namespace) -> Result:
    jobs = [
        Job(family=family, replicate=r, replicates=args.replicates, seed=args.seed)
        for r in range(args.replicates)
    ]
    with get_context("spawn").Pool(args.processes) as pool:
        return Result(family=family, outcomes=pool.map(run, jobs, chunksize=1))


# --- the page and the figure ---

PAGE = """# What a worse forecast costs

Question: how much of a forecasting policy's gain is left when what it forecasts from is wrong?
Overlap model, **simulated**: it ranks policies and licenses nothing. `make bench-forecast-error`
writes this page and the figure: seed {seed}, {replicates} replicates a family, {budget} merges.

Setting and cost as in `tests/benchmarks/README-policies.md`; gain = 1 - policy / exact random,
ratio of means, with its 90 % interval. The same traffic under every error. The error lies between
the traffic and the policy's samples (`tests/benchmarks/forecast_error.py`):

- noise: normal, added to arrivals and to requests in flight, sd as a multiple of each count's own
  sd, rounded, not below 0; from the first sample on. `inf`: the noise alone.
- lag: each tick shows what was true so many seconds before; from the first sample on.
- bias: counts times a factor, from tick 0 on, after 1800 s of true ones.

The bound. Whatever it sees, a policy pays no less than the oracle and no more than the worst
schedule of the corridor: here between {least} and {most} of random's cost saved; checked for each
replicate. With noise alone its placement is independent of traffic that is stationary, so its
expected cost is random's and its expected gain 0. Without error it is the policy's own gain.

![gain against noise, lag and bias](gain.png)

{tables}
## What it says

{findings}
"""


def interval(found: Share) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def rows_of(result: Result, kind: Kind) -> str:
    lines = [f"| {UNITS[kind]} | " + " | ".join(f"`{name}`" for name in POLICIES) + " |"]
    lines.append("|--:" * (1 + len(POLICIES)) + "|")
    for size in SIZES[kind]:
        error = Error(kind=kind, size=size)
        cells = [interval(result.gain_of(error, name)) for name in POLICIES]
        lines.append(f"| {size:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def findings(results: list[Result]) -> str:
    """One line a family: what noise alone leaves, and what the ensemble keeps under each error."""
    lines = []
    for r in results:
        alone = Error(kind=Kind.NOISE, size=math.inf)
        left = {name: r.gain_of(alone, name) for name in POLICIES}
        around = [name for name, g in left.items() if g.low <= 0 <= g.high]
        own = r.gain_of(Error(kind=Kind.NOISE, size=0.0), "ensemble").value
        kept = [
            f"{e.kind.value} {e.size:g}: {r.gain_of(e, 'ensemble').value / own:.2f}"
            for e in errors()
            if e.size != NOTHING[e.kind]
        ]
        lines.append(
            f"- {FAMILIES[r.family]}: with noise alone the interval holds 0 for {len(around)} of "
            f"{len(left)} policies (each does with probability 0.9, but they share the traffic and "
            f"err together). Of its own gain of {own:.3f} the `ensemble` keeps a share of: "
            f"{'; '.join(kept)}."
        )
    return "\n".join(lines)


def page(results: list[Result], *, seed: int, replicates: int) -> str:
    tables = "".join(
        f"## {FAMILIES[r.family]}\n\nOracle {interval(r.most)}, worst {interval(r.least)}.\n\n"
        + "".join(f"{rows_of(r, kind)}\n" for kind in Kind)
        for r in results
    )
    return PAGE.format(
        seed=seed,
        replicates=replicates,
        budget=BUDGET,
        least=f"{min(r.least.value for r in results):.2f}",
        most=f"{max(r.most.value for r in results):.2f}",
        tables=tables,
        findings=findings(results),
    )


def draw(results: list[Result], path: Path) -> None:
    figure, axes = plt.subplots(
        len(results), len(Kind), figsize=(12, 3.4 * len(results)), sharey="row", squeeze=False
    )
    for row, result in zip(axes, results, strict=True):
        for axis, kind in zip(row, Kind, strict=True):
            panel(axis, result, kind)
        row[0].set_ylabel(f"{FAMILIES[result.family]}\ngain over random")
    axes[0][-1].legend(fontsize=7)
    figure.suptitle("Overlap model, simulated: gain as the forecast gets worse (90 % intervals)")
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def panel(axis: Axes, result: Result, kind: Kind) -> None:
    at = np.arange(len(SIZES[kind]))
    for i, name in enumerate(POLICIES):
        found = [result.gain_of(Error(kind=kind, size=size), name) for size in SIZES[kind]]
        value = np.array([f.value for f in found])
        half = np.array([f.high - f.value for f in found])
        axis.errorbar(at + 0.06 * (i - 2.5), value, half, marker="o", ms=3, lw=1, label=name)
    axis.axhline(result.most.value, color="black", ls=":", lw=1)
    axis.axhline(0.0, color="black", lw=0.5)
    axis.annotate("oracle", (0, result.most.value), fontsize=7, va="bottom")
    axis.set_xticks(at, [f"{size:g}" for size in SIZES[kind]])
    axis.set_xlabel(UNITS[kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicates", type=int, default=40)
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    args = parser.parse_args()
    results = []
    for family in PLAYED:
        results.append(evaluate(family, args))
        sys.stderr.write(f"{family} done\n")
    args.out.mkdir(parents=True, exist_ok=True)
    text = page(results, seed=args.seed, replicates=args.replicates)
    (args.out / "README.md").write_text(text)
    draw(results, args.out / "gain.png")


if __name__ == "__main__":
    main()
