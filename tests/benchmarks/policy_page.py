"""The page of the policy benchmark: what is aimed at, whether it is reached, and all figures."""

from dataclasses import dataclass

import numpy as np

from tests.benchmarks.families import BUDGET, CORRIDOR, FAMILIES
from tests.benchmarks.optimum import OnOffLaw, Sees, least_cost, random_cost
from tests.benchmarks.playing import Paid, Placement, Share, placement, share

TUNED = "ewma_threshold_tuned"
COMPARED = ("stopping", "stopping_forecast", "ensemble", TUNED)
# Closed and relative gain that the ensemble is to reach at the fixed budget.
TARGETS = {
    "periodic": (0.68, 0.30),
    "short": (0.72, 0.34),
    "exponential": (0.55, 0.21),
    "uniform": (0.63, 0.28),
    "sharp": (0.64, 0.44),
    "azure_code": (0.62, 0.62),
}
NEAR_TUNED = 0.02  # of closed
SHARE_OF_OPTIMUM = 0.90
MOST_MICROSECONDS = {"stopping": 10.0, "ensemble": 150.0}
LEAST_GAIN = 0.05  # a claim needs the lower bounds of the gain and of the new gain here
KNOWN_LAWS = {
    "exponential": OnOffLaw(off_ticks=90, on_ticks=30, low=2.0, high=8.0),
    "sharp": OnOffLaw(off_ticks=90, on_ticks=30, low=2.0, high=26.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All policies on one family; runs by policy: [replicate], fixed budget and own count."""

    family: str
    setting: str  # of the tuned threshold
    runs: dict[str, list[tuple[Paid, ...]]]
    us: dict[str, float]  # a tick, beyond fixed_h in the same wrapper

    def at(self, name: str, kind: int) -> Placement:
        return placement([run[kind] for run in self.runs[name]])


def interval(found: Share) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def yes(met: bool) -> str:
    return "yes" if met else "**no**"


def table(head: list[str], rows: list[list[str]]) -> str:
    ruled = ["---", *["--:" for _ in head[1:]]]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ruled, *rows]) + "\n"


def summary(results: list[Result]) -> str:
    """What was aimed at, and whether it was reached."""
    rows = []
    for r in results:
        ensemble, threshold = r.at("ensemble", 0), r.at(TUNED, 0)
        row = [FAMILIES[r.family]]
        row += [f"{r.at(name, 0).closed.value:.3f}" for name in COMPARED]
        if r.family in TARGETS:
            closed, gain = TARGETS[r.family]
            row += [f"{closed:.2f} {yes(ensemble.closed.value >= closed)}"]
            row += [f"{gain:.2f} {yes(ensemble.gain.value >= gain)} ({ensemble.gain.value:.3f})"]
            near = ensemble.closed.value >= threshold.closed.value - NEAR_TUNED
            row += [f"{yes(near)} ({ensemble.closed.value - threshold.closed.value:+.3f})"]
        else:
            claims = ensemble.gain.low >= LEAST_GAIN and ensemble.new_gain.low >= LEAST_GAIN
            row += ["no claim: " + yes(not claims), f"new {interval(ensemble.new_gain)}", "-"]
        rows.append(row)
    head = ["family", *(f"`{name}`" for name in COMPARED)]
    return table([*head, "closed aimed at", "gain aimed at", "within .02 of tuned"], rows)


def speed(results: list[Result]) -> str:
    rows = [
        [f"`{name}`", f"{us:.1f}", f"{most:g}", yes(us <= most)]
        for name, most in MOST_MICROSECONDS.items()
        for us in [max(r.us[name] for r in results)]
    ]
    return table(["policy", "microseconds a tick, most of any family", "at most", "met"], rows)


def optima(results: list[Result]) -> str:
    """Share of what the optimum gains, by what it knows and which cost counts."""
    rows = []
    for r in results:
        for sees in Sees if r.family in KNOWN_LAWS else ():
            law = KNOWN_LAWS[r.family]
            best = least_cost(law, CORRIDOR, BUDGET, sees=sees)
            chance = random_cost(law, budget=BUDGET, width_ticks=CORRIDOR.width_ticks, sees=sees)
            row = [FAMILIES[r.family], sees.value, f"{1 - best / chance:.3f}"]
            for name in COMPARED:
                runs = [run[0] for run in r.runs[name]]
                new = sees is Sees.NEW
                saved = [x.new_random - x.new if new else x.random - x.cost for x in runs]
                row += [interval(share(np.array(saved), np.full(len(runs), chance - best)))]
            rows.append(row)
    head = ["family", "cost and knowledge", "gain of the optimum"]
    return table([*head, *(f"`{name}`" for name in COMPARED)], rows)


def details(results: list[Result]) -> str:
    rows = []
    for r in results:
        for name in r.runs:
            fixed, own = r.at(name, 0), r.at(name, 1)
            us = f"{r.us[name]:.1f}" if name in r.us else "-"
            row = [FAMILIES[r.family], f"`{name}`", us]
            for p in (fixed, own):
                row += [f"{p.merges:.1f}", interval(p.closed), interval(p.gain)]
                row += [interval(p.new_gain)]
            rows.append(row)
    kinds = [
        f"{x} {kind}" for kind in ("fixed", "own") for x in ("merges", "closed", "gain", "new")
    ]
    return table(["family", "policy", "us/tick", *kinds], rows)


def settings(results: list[Result]) -> str:
    return table(["family", "setting"], [[FAMILIES[r.family], r.setting] for r in results])


PAGE = """# Policies on ten families of traffic

Written by `make bench-policies` (`tests/benchmarks/bench_policies.py`): seed {seed}, {replicates}
replicates a family, {budget} merges; the threshold's setting was tuned by family on seed
{tuning_seed} with {tuning_replicates} replicates. An overlap model, no server: it ranks policies
and licenses nothing. One parameter set for all families, that of `policies/config.py`.

- Floor 16 s, ceiling 64 s, W 8 s, T 600 s, tick 1 s, cadence 40 s; 1800 s of earlier traffic
  (Azure conversation: 1200 s, more it does not have).
- Cost of a merge: requests in flight at its start + requests that arrive in it; *new* counts the
  latter alone.
- closed = (random - policy) / (random - oracle), gain = 1 - policy / random, ratios of means over
  replicates. Random and oracle are exact, for the number of merges that was played. 90 % intervals
  over replicates (delta method, t).
- *fixed*: {budget} merges, as every judged run has. *own*: no budget, the corridor alone; such
  figures compare placement within a count that the policy chose itself and carry no claim.
- Azure code, Azure conversation and Mooncake are one recorded hour each, ServeGen one day: their
  replicates overlap, so their intervals are too narrow and are no evidence. Of Azure code nothing
  else was recorded, so its threshold is tuned in sample.
- `wa_ewma_16s` is `wa_ewma` asked every 16 s. Microseconds are CPU time of observe and decide
  beyond that of `fixed_h`.

## Aims

Closed at the fixed budget; the aims are the `ensemble`'s.

{summary}
No claim: not both lower bounds, of the gain and of the new gain, at 5 %, as the gate asks.

{speed}
## Where an aim is missed, why

- Azure code: the tuned threshold is chosen on the very hour that it is judged on. `analog` alone is
  near it; what the `ensemble` loses it loses by its choice of a leader on a handful of bursts.
- Exponential and uniform: `stopping` and the tuned threshold are close to what the optimum leaves
  (next table); the `ensemble` pays for following other members part of the time.
- Microseconds: read on a busy machine; alone on its core `stopping` took 8.8 to 9.4.

## Against the computed optimum

Share of the optimum's expected saving over random that a policy reaches at the fixed budget (aim:
{share:g}). The optimum knows the law and, at every tick, whether it is on or off; what else it
knows, and which cost counts, stands in the second column. `full, sees arrivals` and `new` are
bounds that no causal policy can pass in expectation; `full, sees the state alone` is none, for it
does not see what is in flight. Derivation: `tests/benchmarks/optimum.py`.

{optima}
## All policies

{details}
## Settings of the tuned threshold

{settings}"""


def page(
    results: list[Result],
    *,
    seed: int,
    replicates: int,
    tuning_seed: int,
    tuning_replicates: int,
) -> str:
    """The whole page, markdown."""
    return PAGE.format(
        seed=seed,
        replicates=replicates,
        budget=BUDGET,
        tuning_seed=tuning_seed,
        tuning_replicates=tuning_replicates,
        summary=summary(results),
        speed=speed(results),
        share=SHARE_OF_OPTIMUM,
        optima=optima(results),
        details=details(results),
        settings=settings(results),
    )
