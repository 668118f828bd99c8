"""Every fault at random moments through the real command line: what the run did, what it lost.

Each trial is a run of tests/benchmarks/faults.yaml (three islands, nine merges, real training) on
one Ray cluster that this program starts. "Kill the driver" shows exact resume too: its column
`bit-equal` compares parameters, every step's loss and every decision with the run without a fault.
Run it by `make faults`; the table goes to tests/benchmarks/README-faults.md.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ray.cluster_utils import Cluster

from tests.benchmarks.faulting import FAULTS, Trial, reference_run, trial

PAGE = Path(__file__).with_name("README-faults.md")


def rows(trials: Sequence[Trial]) -> list[str]:
    """The table, one row a fault."""
    lines = [
        "| fault | trials | ended by itself | after --resume | not | recovery s, median (worst) "
        "| rounds lost, most | left out, back | islands equal | bit-equal to the run without |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        own = [t for t in trials if t.fault == fault]
        if not own:
            continue
        took = [t.recovered_s for t in own if t.recovered_s is not None]
        lost = [t.rounds_lost for t in own if t.rounds_lost is not None]
        compared = [t for t in own if t.bit_equal is not None]
        recovery = f"{statistics.median(took):.1f} ({max(took):.1f})" if took else "-"
        lines.append(
            f"| {fault} | {len(own)} | {_count(own, 'by itself')} "
            f"| {_count(own, 'after --resume')} | {_count(own, 'not')} "
            f"| {recovery} | {max(lost) if lost else '-'} "
            f"| {sum(t.left_out for t in own)}, {sum(t.back for t in own)} "
            f"| {sum(t.parameters_equal for t in own)} of {len(own)} "
            f"| {sum(bool(t.bit_equal) for t in compared)} of {len(compared)} |"
        )
    return lines


def _count(trials: Sequence[Trial], ended: str) -> int:
    return sum(t.ended == ended for t in trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--only", help="part of a fault's name")
    parser.add_argument("--out", type=Path, help="folder that keeps the runs")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    options = parser.parse_args()
    out = (options.out or Path(tempfile.mkdtemp(prefix="lull-faults-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    done = out / "trials.jsonl"  # a stopped program goes on from here
    lines = done.read_text().splitlines() if done.exists() else []
    trials = [Trial(**json.loads(line)) for line in lines]
    faults = [fault for fault in FAULTS if options.only is None or options.only in fault]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        place = out / f"reference-{len(trials)}"
        reference = reference_run(place, address=cluster.address)
        for seed in range(options.trials):
            for fault in faults:
                if sum(t.fault == fault for t in trials) > seed:
                    continue
                folder = out / f"{fault.replace(' ', '-')}-{seed}"
                one = trial(fault, folder, reference, seed=seed, address=cluster.address)
                trials.append(one)
                with done.open("a") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
                sys.stdout.write(f"{one}\n")
                sys.stdout.flush()
    finally:
        cluster.shutdown()
    table = "\n".join(rows(trials))
    sys.stdout.write(table + "\n")
    if not options.no_page:
        PAGE.write_text(
            "# What becomes of a run when something dies\n\n"
            "Written by `make faults`: three islands on the step clock, nine merges, quorum two, "
            "grace two seconds; each fault at random moments. Recovery: from the fault to the next "
            "merge on disk, in seconds; rounds lost: merges fewer than the run without a fault. "
            "Left out, back: how often an island was dropped, and joined again before the end; "
            "islands equal: those of the group, after every merge and at the end. Where one was "
            "left out, the run is another one and is not compared.\n\n" + table + "\n"
        )


if __name__ == "__main__":
    main()
