"""CPU time of a replayed run of 600 s by policy, tick by tick and at once, and of its row.

One sidecar, bursts of 20 requests a second in traffic of 2 (about 3900 a run), two islands, h =
16..64 ticks of 1 s, W = 8, 15 merges; CPU time: waiting on a shared machine is not the program's.
Aim: a tick with its server at most 20 us (what a policy learns comes on top), an arm whose windows
are known at most 2 ms. In `make bench`.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.config import StudyConfig
from orchestrator.replay.block import NO_SYNC, Block, replayed_arms
from orchestrator.replay.measure import make_base, run_figures
from orchestrator.replay.player import make_scene
from tests.replaying import PLANT, POLICIES, replay_study

SEEDS = 20
ISLANDS = (1, 2, 4, 8, 16)
LEARNERS = ("ewma_threshold", "stopping", "season", "analog", "ensemble")


def bench_study() -> StudyConfig:
    policies: dict[str, Any] = {
        **POLICIES,
        "fixed_h": {"kind": "fixed_h", "h_steps": 320},
        "pressure_gate": {"kind": "pressure_gate", "pressure_threshold": 0.25},
        **{kind: {"kind": kind} for kind in LEARNERS},
    }
    arms = [
        {"kind": "no_sync"},
        *({"kind": "policy", "policy": name} for name in policies),
        {"kind": "matched_random", "of": "wa_ewma"},
        {"kind": "oracle", "of": "wa_ewma"},
    ]
    return replay_study(
        horizon_s=600.0,
        merge={"window_s": 8.0},
        corridor={
            "floor_steps": 160,
            "ceiling_steps": 640,
            "target_steps": 320,
            "budget_merges": 15,
        },
        policies=policies,
        arms=arms,
        judge=["wa_ewma"],
    )


class Spent:
    """CPU milliseconds by what they were spent on."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = {}

    def on(self, what: str, work: Callable[[], Any]) -> Any:
        start_s = time.thread_time()
        found = work()
        self.ms.setdefault(what, []).append(1e3 * (time.thread_time() - start_s))
        return found

    def mean(self, what: str) -> float:
        return sum(self.ms[what]) / len(self.ms[what])


def play_seed(study: StudyConfig, seed: int, spent: Spent) -> int:
    """Every arm of one seed; how many requests a run has."""
    scene = spent.on("traffic", lambda: make_scene(study, seed=seed, plant=PLANT, study_dir=Path()))
    block = Block(scene)
    plain = spent.on("no_sync", lambda: block.played(NO_SYNC))
    base = spent.on(
        "exact law", lambda: make_base(study, plain, seed=seed, corridor=scene.corridor)
    )
    for arm in replayed_arms(study, None):
        if arm.kind != "no_sync":
            played = spent.on(arm.label, partial(block.played, arm))
            spent.on("row", partial(run_figures, arm, played, base))
    return len(plain.answers.at_s)


def growth_with_islands() -> dict[str, Any]:
    """Milliseconds of a policy's run, tick by tick, by number of islands; aim: linear at most."""
    made, ms = bench_study(), {}
    for islands in ISLANDS:
        counted = made.islands.model_copy(update={"count": islands})
        study, spent = made.model_copy(update={"islands": counted}), Spent()
        arm = next(a for a in replayed_arms(study, None) if a.label == "wa_score")
        for seed in range(1, SEEDS + 1):
            scene = make_scene(study, seed=seed, plant=PLANT, study_dir=Path())
            spent.on("run", partial(Block(scene).played, arm))
        ms[islands] = spent.mean("run")
    least, most = ISLANDS[0], ISLANDS[-1]
    exponent = math.log(ms[most] / ms[least]) / math.log(most / least)
    return {
        "ms": {islands: round(mean, 3) for islands, mean in ms.items()},
        "exponent": round(exponent, 2),
    }


def main() -> None:
    study, spent = bench_study(), Spent()
    play_seed(study, 0, Spent())  # what is loaded and compiled once
    requests = [play_seed(study, seed, spent) for seed in range(1, SEEDS + 1)]
    mean, ticks = sum(requests) / len(requests), study.horizon_s / study.tick_s
    rows = [
        {
            "what": what,
            "ms": round(spent.mean(what), 3),
            "us_per_tick": round(1e3 * spent.mean(what) / ticks, 2)
            if what in study.policies
            else None,
            "requests_per_s": round(mean / spent.mean(what) * 1e3)
            if what not in ("traffic", "exact law", "row")
            else None,
        }
        for what in spent.ms
    ]
    shown = {
        "seeds": SEEDS,
        "requests_per_run": round(mean),
        "rows": rows,
        "growth with islands": growth_with_islands(),
    }
    sys.stdout.write(json.dumps({"player": shown}, indent=1) + "\n")


if __name__ == "__main__":
    main()
