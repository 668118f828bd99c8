"""Which claims the offline gate gives the real policies, on the ten families of traffic.

Overlap model, no server: no tier. The family that Holm corrects for is policies x families, alpha
.01. Recorded hours are cut into as many disjoint windows as they hold, and flip as windows of one
trace; ServeGen is 50 windows of one generated day. Run it by `make bench-gate`.

    python tests/benchmarks/bench_claims.py --seeds 7
"""

import argparse
import sys

from orchestrator.calibration.overlap import Block
from orchestrator.calibration.overlap_verdict import Case, OverlapVerdict, judge_overlap
from orchestrator.calibration.phrase import percent
from policies.config import (
    EnsembleConfig,
    EwmaThresholdConfig,
    PolicyConfig,
    StoppingConfig,
    WaEwmaConfig,
)
from tests.benchmarks.families import (
    AFTER_S,
    BUDGET,
    CORRIDOR,
    FAMILIES,
    LAWS,
    Floats,
    azure_code,
    azure_conv,
    history_s_of,
    mooncake,
    slice_of,
    traffic,
    traffic_of,
)
from tests.benchmarks.playing import company, play
from tests.synthetic import synthetic_study

GATE = synthetic_study().gate.model_copy(update={"alpha": 0.01})
SERVEGEN_WINDOWS = 50
POLICIES: dict[str, PolicyConfig] = {
    "wa_ewma": WaEwmaConfig(kind="wa_ewma", half_life_s=8.0, mean_half_life_s=600.0),
    "ewma_threshold": EwmaThresholdConfig(kind="ewma_threshold"),
    "stopping": StoppingConfig(kind="stopping"),
    "ensemble": EnsembleConfig(kind="ensemble"),
}


def disjoint_windows(trace: Floats, *, history_s: int) -> list[Floats]:
    """Slices whose measured parts share no second."""
    room = float(trace[-1] - trace[0]) - history_s - AFTER_S
    number = int(room // AFTER_S) + 1
    return [slice_of(trace, history_s=history_s, share=k * AFTER_S / room) for k in range(number)]


def blocks_of(family: str, *, seeds: int, seed: int) -> dict[str, list[Block]]:
    """By policy: one block a seed or window."""
    history_s = history_s_of(family)
    if family in LAWS or family == "servegen":
        number = seeds if family in LAWS else SERVEGEN_WINDOWS
        made = [traffic_of(family, k, replicates=number, seed=seed) for k in range(number)]
    else:
        recorded = {"azure_code": azure_code, "azure_conv": azure_conv}
        trace = mooncake(seed) if family == "mooncake" else recorded[family]()
        windows = disjoint_windows(trace, history_s=history_s)
        made = [traffic(window, history_s=history_s) for window in windows]
    blocks: dict[str, list[Block]] = {name: [] for name in POLICIES}
    for k, stretch in enumerate(made):
        for name, (starts, _) in play(company(POLICIES), stretch, free=False).items():
            blocks[name].append(
                Block(
                    name=f"{family} {k}",
                    cluster=f"{family} {k}",
                    corridor=CORRIDOR,
                    budget=BUDGET,
                    starts=tuple(starts),
                    cost=stretch.cost,
                    new_cost=stretch.new,
                )
            )
    return blocks


def row(verdict: OverlapVerdict) -> list[str]:
    cells = [verdict.regime, f"`{verdict.policy}`", str(verdict.n)]
    for overlap, p in (
        (verdict.all_requests, verdict.p_holm),
        (verdict.not_yet_arrived, verdict.new_p_holm),
    ):
        assert overlap is not None
        bounds = overlap.gain.finite
        words = "-" if overlap.gain.estimate is None else percent(overlap.gain.estimate)
        if bounds is not None:
            words += f" [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]"
        cells += [words, "-" if p is None else f"{p:.2g}"]
    missed = [c.name for c in verdict.conditions if c.status != "met"]
    return [*cells, f"**{verdict.verdict}**", ", ".join(missed) or "-"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=201)
    args = parser.parse_args()
    cases = []
    for family, title in FAMILIES.items():
        trace = None if family in LAWS else title
        for policy, blocks in blocks_of(family, seeds=args.seeds, seed=args.seed).items():
            cases.append(Case(policy=policy, regime=title, blocks=blocks, trace=trace))
    headings = ["traffic", "policy", "n", "gain", "p", "gain, new", "p, new", "verdict", "not met"]
    for line in (headings, ["---"] * len(headings)):
        sys.stdout.write("| " + " | ".join(line) + " |\n")
    for verdict in judge_overlap(cases, gate=GATE, label="overlap model, simulated"):
        sys.stdout.write("| " + " | ".join(row(verdict)) + " |\n")


if __name__ == "__main__":
    main()
