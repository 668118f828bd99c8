"""All six regimes replayed, judged, and written to experiments/REGIMES.md with their plot.

Run it by `make regimes`. The product's own commands do the work (`lull replay`, and the gate); a
replay that is there already is used again.

    PYTHONPATH=. python tests/benchmarks/bench_regimes.py --plant plant.json --replicates 5
"""

import argparse
import subprocess
import sys
from pathlib import Path

from orchestrator.replay.calibrated import load_plant
from orchestrator.replay.judge import judge_replay_folder
from orchestrator.study import load_study
from orchestrator.workload.config import TraceConfig
from tests.benchmarks.regimes import EXPERIMENTS, REGIMES, read_regime, study_path
from tests.benchmarks.regimes_page import draw, page

FIGURE = "regimes.png"


def lull(*words: str) -> None:
    """One command of the product; its own message is all there is to say when it fails."""
    done = subprocess.run([sys.executable, "-m", "orchestrator", *words], stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)


def replayed(regime: str, args: argparse.Namespace) -> Path:
    """The folder of a replay that is judged; a trace has no seeds but its study's own."""
    path = study_path(regime)
    study = load_study(path)
    seeds = [] if isinstance(study.load, TraceConfig) else ["--replicates", str(args.replicates)]
    given = ["--plant", str(args.plant), "--draws", str(args.draws), "--out", str(args.out)]
    workers = [] if args.workers is None else ["--workers", str(args.workers)]
    lull("replay", str(path), *given, *workers, *seeds)
    folder: Path = args.out / f"{study.study}-replay"
    judge_replay_folder(folder)  # what `lull gate` does
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plant", type=Path, required=True)
    parser.add_argument("--replicates", type=int, default=100)
    parser.add_argument("--draws", type=int, default=99)
    parser.add_argument("--workers", type=int, help="1: this process alone, without Ray")
    parser.add_argument("--regimes", nargs="*", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--out", type=Path, default=Path("runs/regimes"), help="of the replays")
    parser.add_argument("--page", type=Path, default=EXPERIMENTS / "REGIMES.md")
    args = parser.parse_args()
    found = []
    for name in args.regimes:
        found.append(read_regime(name, replayed(name, args)))
        verdicts = {p: v["verdict"] for p, v in found[-1].verdicts.items()}
        sys.stderr.write(f"{name}: {verdicts}\n")
    draw(found, args.page.with_name(FIGURE))
    args.page.write_text(page(found, plant=load_plant(args.plant), figure=FIGURE))


if __name__ == "__main__":
    main()
