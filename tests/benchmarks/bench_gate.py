"""How often the gate is fooled, and how often it sees: false positives and power of all conditions.

Offline: judge_overlap on synthetic traffic, per family and number of seeds; a policy that places
merges uniformly at random, and one that dodges (the best of DODGE random schedules by what arrives
in them). Live: the whole gate on synthetic records, all conditions but the replay, which is taken
as present. Replay: the gate on the rows of replay.parquet, made up (only overlap and chance decide)
or from the player on a plant of round numbers, against K draws a seed; the plant is taken as one
that may stand for a server. Coverage: each 95 % bound of the relative gain. Rates stand with their
Clopper-Pearson 95 % interval. Run it by `make bench-gate`.

    python tests/benchmarks/bench_gate.py offline --runs 200 --seeds 5 7
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.gate import judge
from orchestrator.calibration.overlap import Block
from orchestrator.calibration.overlap_verdict import Case, judge_overlap
from orchestrator.calibration.statistics import relative_gain
from orchestrator.calibration.verdict import Condition, Status
from orchestrator.config import StudyConfig
from orchestrator.metrics import run_metrics
from orchestrator.replay.block import replay_seed
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.judge import judge_replay
from policies.corridor import Corridor
from policies.streams import stream
from tests.benchmarks.families import BUDGET, CORRIDOR, LAWS, arrivals_of, traffic
from tests.replayed import PLANT, ReplayWorld, fitted_plant, replay_rows, replay_study
from tests.synthetic import World, synthetic_records, synthetic_study

Floats = npt.NDArray[np.float64]
Rows = Iterator[list[str]]
GATE: GateConfig = synthetic_study().gate  # alpha .05, floor .05, ties +-.03
PLANT_THAT_STANDS = fitted_plant()
SLO = {"e2e_s": 0.2}  # that the plant keeps without merges
OFFLINE = ("matched_random", "not_yet_arrived", "exact_null")
POOL, DODGE, POLICIES = 200, 8, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many studies at most, and how long."""

    studies: int
    seconds: float


def rate(hits: int, trials: int) -> str:
    """Share with its Clopper-Pearson 95 % interval."""
    ends = stats.binomtest(hits, trials).proportion_ci(confidence_level=0.95, method="exact")
    return f"{hits / trials:.3f} [{ends.low:.3f}, {ends.high:.3f}]"


# --- offline: overlap on synthetic traffic ---


class Pool:
    """Traffic of one family, with the exact moments of each stretch kept."""

    def __init__(self, family: str, *, seed: int) -> None:
        made = [traffic(arrivals_of(family, r, replicates=POOL, seed=seed)) for r in range(POOL)]
        self.traffic = [(m.cost, m.new) for m in made]
        self.known: dict[int, tuple[float, float]] = {}

    def moments(self, corridor: Corridor, cost: Floats, budget: int) -> tuple[float, float]:
        if id(cost) not in self.known:
            self.known[id(cost)] = corridor.moments(cost, budget)
        return self.known[id(cost)]

    def blocks(self, n: int, *, dodge: int, rng: np.random.Generator) -> tuple[Block, ...]:
        """n different stretches; of ``dodge`` random schedules the one in which fewest arrive."""
        chosen = rng.choice(POOL, size=n, replace=False)
        drawn = CORRIDOR.sample(BUDGET, size=n * dodge, rng=rng).reshape(n, dodge, BUDGET)
        blocks = []
        for i, schedules in zip(chosen, drawn, strict=True):
            cost, new = self.traffic[i]
            starts = schedules[int(new[schedules].sum(axis=1).argmin())]
            blocks.append(
                Block(
                    name=f"stretch {i}",
                    cluster=f"stretch {i}",
                    corridor=CORRIDOR,
                    budget=BUDGET,
                    starts=tuple(starts.tolist()),
                    cost=cost,
                    new_cost=new,
                )
            )
        return tuple(blocks)


def offline(pool: Pool, family: str, n: int, *, dodge: int, runs: int, seed: int) -> list[str]:
    """One row: each condition alone, and all of them."""
    rng = stream(seed, f"bench gate {family}", n, dodge)
    met, passed, gains, flips, zs = dict.fromkeys(OFFLINE, 0), 0, 0.0, 0, 0
    for _ in range(runs):
        case = Case(policy="p", regime=family, blocks=pool.blocks(n, dodge=dodge, rng=rng))
        (verdict,) = judge_overlap([case], gate=GATE, label="overlap", moments=pool.moments)
        for condition in verdict.conditions:
            if condition.name in met:
                met[condition.name] += condition.status is Status.MET
        passed += verdict.verdict == "PASS"
        assert verdict.all_requests is not None
        gains += (verdict.all_requests.gain.estimate or 0.0) / runs
        flips += verdict.all_requests.flip.p_value <= GATE.alpha
        zs += (verdict.all_requests.z_p or 0.0) <= GATE.alpha
    shares = [flips, zs, *(met[name] for name in OFFLINE)]
    cells = [f"{share / runs:.3f}" for share in shares]
    return [family, str(n), str(runs), f"{100 * gains:.1f} %", *cells, rate(passed, runs)]


def offline_rows(families: Iterable[str], *, seeds: Sequence[int], runs: int, seed: int) -> Rows:
    for family in families:
        pool = Pool(family, seed=seed)
        for n in seeds:
            for dodge, count in ((1, runs), (DODGE, max(1, runs // 5))):
                row = offline(pool, family, n, dodge=dodge, runs=count, seed=seed)
                yield ["random" if dodge == 1 else "dodging", *row]


def family_rows(families: Sequence[str], *, n: int, runs: int, seed: int) -> Rows:
    """Six random policies on one traffic: how often any of them passes, with Holm and without."""
    for family in families:
        pool, rng = Pool(family, seed=seed), stream(seed, f"bench family {family}")
        any_holm = any_alone = 0
        for _ in range(runs):
            traffics = pool.blocks(n, dodge=1, rng=rng)
            cases = [
                Case(policy=f"p{k}", regime=family, blocks=_elsewhere(traffics, rng=rng))
                for k in range(POLICIES)
            ]
            every = judge_overlap(cases, gate=GATE, label="overlap", moments=pool.moments)
            any_holm += any(v.verdict == "PASS" for v in every)
            any_alone += any(
                o is not None and o.flip.p_value <= GATE.alpha
                for o in (v.all_requests for v in every)
            )
        yield [family, str(n), str(runs), rate(any_alone, runs), rate(any_holm, runs)]


def _elsewhere(blocks: Sequence[Block], *, rng: np.random.Generator) -> tuple[Block, ...]:
    drawn = CORRIDOR.sample(BUDGET, size=len(blocks), rng=rng)
    return tuple(replace(b, starts=tuple(s.tolist())) for b, s in zip(blocks, drawn, strict=True))


# --- live: the whole gate on synthetic records ---


def live(n: int, *, placement: str, limit_s: float, seed: int) -> tuple[list[str], list[list[str]]]:
    """As many studies of fresh seeds as fit into ``limit_s``; a row, and each condition's rate."""
    began, trial = time.monotonic(), 0
    met: dict[str, int] = {}
    passed = 0
    while trial < 2 or time.monotonic() - began < limit_s:
        first = seed * 10**6 + trial * n
        study = synthetic_study(seeds=list(range(first, first + n)), aa=True)
        records = list(synthetic_records(World(placement=placement), study))
        judgement = judge(study, records, [run_metrics(r) for r in records])
        conditions: Sequence[Condition] = judgement.verdicts[0].conditions
        for c in conditions:
            met[c.name] = met.get(c.name, 0) + (c.status is Status.MET)
        passed += all(c.status is Status.MET for c in conditions if c.name != "replay")
        trial += 1
    what = "random" if placement == "random" else "dodging"
    alone = [
        [what, str(n), name, rate(hits, trial)] for name, hits in met.items() if name != "replay"
    ]
    return [what, str(n), str(trial), rate(passed, trial)], alone


# --- replay: the gate on rows ---


def replayed(
    n: int,
    *,
    draws: int,
    placement: Literal["random", "dodge"],
    player: bool,
    limits: Limits,
    seed: int,
) -> list[str]:
    """Studies of fresh seeds: at most ``limits.studies``, within ``limits.seconds``."""
    began, passed, trial = time.monotonic(), 0, 0
    met: dict[str, int] = {}
    judge_s = 0.0
    while trial < 2 or (trial < limits.studies and time.monotonic() - began < limits.seconds):
        first = (seed * 1000 + trial) * n
        policy = {"wa_ewma": {"kind": "uniform_random"}} if placement == "random" else {}
        study = replay_study(
            seeds=list(range(first, first + n)), draws=draws, slo=SLO, **_policies(policy)
        )
        rows = list(
            _played(study) if player else replay_rows(study, ReplayWorld(placement=placement))
        )
        before = time.monotonic()
        verdict = judge_replay(study, rows, PLANT_THAT_STANDS).verdicts[0]
        judge_s += time.monotonic() - before
        for c in verdict.conditions:
            met[c.name] = met.get(c.name, 0) + (c.status is Status.MET)
        passed += verdict.verdict == "PASS"
        trial += 1
    names = ("matched_random", "not_yet_arrived", "exact_null", "negative_controls")
    others = min(hits for name, hits in met.items() if name not in names)
    return [
        "player" if player else "made up",
        "random" if placement == "random" else "dodging" if not player else "wa_ewma",
        *(str(v) for v in (n, draws, trial)),
        *(f"{met[name] / trial:.3f}" for name in names),
        f"{others / trial:.3f}",
        rate(passed, trial),
        f"{judge_s / trial:.2f} s",
    ]


def _policies(policies: dict[str, Any]) -> dict[str, Any]:
    return {"policies": policies} if policies else {}


def _played(study: StudyConfig) -> Iterator[ReplayFigures]:
    for seed in study.seeds:
        yield from replay_seed(study, seed=seed, plant=PLANT, study_dir=Path())


def replay_table_rows(
    *,
    seeds: Sequence[int],
    draws: int,
    studies: int,
    limit_s: float,
    made_by: Sequence[str],
    seed: int,
) -> Rows:
    limits = Limits(studies=studies, seconds=limit_s)
    few = Limits(studies=max(2, studies // 8), seconds=limit_s)
    both: tuple[tuple[Literal["random", "dodge"], Limits], ...] = (
        ("random", limits),
        ("dodge", few),
    )
    for player in (False, True):
        for n in seeds if ("player" if player else "rows") in made_by else ():
            for placement, most in both:
                yield replayed(
                    n, draws=draws, placement=placement, player=player, limits=most, seed=seed
                )


# --- coverage of the relative gain ---

Law = Callable[[np.random.Generator, int], tuple[Floats, Floats]]


def symmetric(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    level = rng.gamma(4.0, 0.05, size=n)
    return 0.7 * level * rng.uniform(0.5, 1.5, n), level * rng.uniform(0.5, 1.5, n)


def counts(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Few violations among 300 requests: many ties and zeros."""
    level = rng.gamma(4.0, 0.005, size=n)
    return rng.binomial(300, 0.7 * level) / 300, rng.binomial(300, level) / 300


def skewed(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Both sides heavy-tailed."""
    return 0.7 * rng.lognormal(-2.0, 0.8, n), rng.lognormal(-2.0, 0.8, n)


def one_sided(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Policy heavy-tailed against a control that is constant: as an exact mean may be."""
    return 0.7 * rng.lognormal(-0.32, 0.8, n), np.ones(n)


GAIN_LAWS: dict[str, Law] = {
    "symmetric": symmetric,
    "counts": counts,
    "skewed": skewed,
    "one_sided": one_sided,
}


def coverage_rows(*, seeds: Sequence[int], runs: int, seed: int) -> Rows:
    """Each bound of the 90 % interval against the true gain of 0.3."""
    for name, law in GAIN_LAWS.items():
        for n in seeds:
            rng, trials = stream(seed, f"bench coverage {name}", n), runs if n < 15 else runs // 5
            low = high = seen = 0
            for _ in range(trials):
                policy, control = law(rng, n)
                if not control.any():
                    continue
                gain = relative_gain(policy, control, confidence=0.90, draws=1, rng=rng)
                assert gain.low is not None
                assert gain.high is not None
                seen += 1
                low += gain.low <= 0.3
                high += gain.high >= 0.3
            yield [name, str(n), str(seen), rate(low, seen), rate(high, seen)]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Markdown, row by row as they come."""
    for line in (headings, ["---"] * len(headings)):
        sys.stdout.write("| " + " | ".join(line) + " |\n")
    for row in rows:
        sys.stdout.write("| " + " | ".join(row) + " |\n")
        sys.stdout.flush()
    sys.stdout.write("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = ["offline", "family", "live", "replay", "coverage"]
    parser.add_argument("parts", nargs="*", default=[], metavar="|".join(parts))
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[5, 7, 10, 12, 20])
    parser.add_argument("--families", nargs="*", default=list(LAWS))
    parser.add_argument("--live-seconds", type=float, default=180.0)
    parser.add_argument("--replay-seeds", type=int, nargs="*", default=[20, 100])
    parser.add_argument("--replay-studies", type=int, default=400)
    parser.add_argument("--replay-seconds", type=float, default=400.0, help="a row, at most")
    parser.add_argument("--replay-by", nargs="*", default=["rows", "player"])
    parser.add_argument("--draws", type=int, default=99)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chosen = args.parts or parts
    if "offline" in chosen:
        table(
            ["policy", "family", "n", "runs", "mean gain", "flip p", "z p", *OFFLINE, "PASS"],
            offline_rows(args.families, seeds=args.seeds, runs=args.runs, seed=args.seed),
        )
    if "family" in chosen:
        table(
            ["family", "n", "runs", f"any of {POLICIES} uncorrected", "any PASS"],
            family_rows(args.families, n=10, runs=args.runs, seed=args.seed),
        )
    if "live" in chosen:
        limit_s = args.live_seconds / 4
        found = [
            live(n, placement=placement, limit_s=limit_s, seed=args.seed)
            for placement in ("random", "dodge")
            for n in (7, 12)
        ]
        table(
            ["policy", "n", "studies", "all conditions but the replay"], [row for row, _ in found]
        )
        table(["policy", "n", "condition", "met"], [row for _, alone in found for row in alone])
    if "replay" in chosen:
        placed = ["matched_random", "not_yet_arrived", "exact_null", "negative_controls"]
        table(
            ["rows", "policy", "n", "draws", "studies", *placed, "the others", "PASS", "judging"],
            replay_table_rows(
                seeds=args.replay_seeds,
                draws=args.draws,
                studies=args.replay_studies,
                limit_s=args.replay_seconds,
                made_by=args.replay_by,
                seed=args.seed,
            ),
        )
    if "coverage" in chosen:
        table(
            ["law", "n", "runs", "lower bound covers", "upper bound covers"],
            coverage_rows(seeds=args.seeds, runs=2 * args.runs, seed=args.seed),
        )


if __name__ == "__main__":
    main()
