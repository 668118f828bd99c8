"""How much of a plant's error is luck of the split: many halves of a measured study's seeds.

Each split is drawn at random, fitted on one half and checked on the other, as `lull calibrate` does
with its one split. About 20 s of CPU a split. Outside `make bench`: it needs a measured study.

    PYTHONPATH=. python tests/benchmarks/bench_calibration.py runs/calibration_8s --splits 20
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from orchestrator.replay.calibrate import calibrate_runs
from orchestrator.replay.calibrated import AIMS, POINTS, FigureError, Transfer
from orchestrator.rundir import read_study
from policies.streams import stream

SEED = 20261130


def splits(seeds: Sequence[int], *, count: int) -> list[str]:
    """Halves of the seeds, drawn without replacement of a half."""
    rng = stream(SEED, "calibration splits")
    found: dict[str, None] = {}
    while len(found) < count:
        half = sorted(rng.choice(len(seeds), size=len(seeds) // 2, replace=False).tolist())
        found["seeds=" + ",".join(str(seeds[i]) for i in half)] = None
    return list(found)


def checked(folder: Path, selection: str) -> Transfer:
    study, records = read_study(folder)
    made = calibrate_runs(study, records, selection=selection, seed=0, study_dir=None)
    assert made.transfer is not None
    return made.transfer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the study run that `lull calibrate` measured")
    parser.add_argument("--splits", type=int, default=20)
    given = parser.parse_args()
    study, _ = read_study(given.folder)
    chosen = splits(study.seeds, count=given.splits)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = list(pool.map(checked, [given.folder] * len(chosen), chosen))
    lines = [
        f"{given.folder.name}: {len(found)} random halves of {len(study.seeds)} seeds",
        "| error on the other half | median | 5 to 95 % of the splits | aim | within |",
        "|---|--:|--:|--:|--:|",
        *(_row(found, f) for f in found[0].figures if f.aim is not None),
        f"every aim met: {sum(t.within is True for t in found)} of {len(found)}",
    ]
    times = [t.machine.times for t in found if t.machine is not None]
    if times:
        lines.append(
            "machine, other half against fitted one (10th percentile of TPOT in no_sync): "
            f"{min(times):.2f} to {max(times):.2f} times"
        )
    sys.stdout.write("\n".join(lines) + "\n")


def _row(found: Sequence[Transfer], figure: FigureError) -> str:
    same = [t.figure(figure.figure, group=figure.group) for t in found]
    known = [f.error for f in same if f is not None and f.error is not None]
    unit = "points" if figure.figure in POINTS else "%"
    low, middle, high = 100 * np.quantile(known, (0.05, 0.5, 0.95))
    inside = sum(f is not None and f.within is True for f in same)
    return (
        f"| {figure.figure}, {figure.group} | {middle:+.1f} {unit} | {low:+.1f} to {high:+.1f} "
        f"| {100 * AIMS[figure.figure]:.0f} {unit} | {inside} of {len(found)} |"
    )


if __name__ == "__main__":
    main()
