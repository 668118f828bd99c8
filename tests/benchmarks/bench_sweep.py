"""A sweep of 60 settings x 10 seeds by Ray Tune against a bare loop of the same work, in one run.

Two sizes: the replay as it is (600 s runs, about half a second of work a setting), and 30 s of CPU
time a setting (``--wait``: of waiting, which shows what the sweep itself costs where the machine
has other work too).
Efficiency: seconds of the bare loop / (workers * seconds of the sweep), with the start of the
workers and without it (from the first setting's end on). On a machine that is not alone the loop
has its core more often than two workers have theirs, so the share of the workers' time that was
spent in playing blocks, as they measured it, stands beside it. Aim: 0.9 at 30 s of work a setting.

    python tests/benchmarks/bench_sweep.py --settings 60 --long-settings 24 --workers 2
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from orchestrator.cluster.sweep_cluster import STORE_BYTES, python_path
from orchestrator.cluster.tuning import run_trials
from orchestrator.config import StudyConfig
from orchestrator.replay.config import PlantConfig
from orchestrator.study import load_study
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.drive import proposer
from orchestrator.sweep.figures import Bench, Evaluator, ReplayEvaluator
from orchestrator.sweep.here import Plan
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.progress import Progress
from orchestrator.sweep.settings import make_setting, random_values
from tests.fake_sweep import HALF_LIFE, FakeEvaluator

ROOT = Path(__file__).parents[2]
PLANTED = ROOT / "experiments" / "gate_check" / "planted.yaml"
HORIZON_S, MERGES, SEEDS, DRAWS = 600.0, 150, 10, 20
LONG_S = 30.0  # a setting
PLANT = PlantConfig(
    slots=8,
    step_base_s=0.01,
    step_per_seq_s=0.0,
    prefill_per_token_s=0.0,
    overhead_s=0.003,
    merge_factor=8.0,
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An evaluator that notes how long it played."""

    inner: Evaluator
    log: Path

    def play(self, study: StudyConfig, *, policy: str, seed: int, draws: int) -> Any:
        began_s = time.perf_counter()
        played = self.inner.play(study, policy=policy, seed=seed, draws=draws)
        with self.log.open("a") as file:
            file.write(f"{time.perf_counter() - began_s}\n")
        return played


@dataclass(frozen=True, kw_only=True)
class Timed:
    settings: int
    seeds: int
    workers: int
    loop_s: float
    sweep_s: float
    first_result_s: float  # after the sweep began
    played_s: float  # in the workers, all together

    def line(self, name: str) -> str:
        """Both efficiencies; the second counts what was played after the first result."""
        whole = self.loop_s / (self.workers * self.sweep_s)
        left = (self.settings - self.workers) / self.settings
        steady = left * self.loop_s / (self.workers * (self.sweep_s - self.first_result_s))
        return (
            f"{name}: {self.settings} settings x {self.seeds} seeds on {self.workers} workers: "
            f"loop {self.loop_s:.1f} s ({self.loop_s / self.settings:.2f} s a setting), sweep "
            f"{self.sweep_s:.1f} s, {self.settings / self.sweep_s:.2f} trials/s, efficiency "
            f"{whole:.2f}, from the first setting's end on {steady:.2f}; workers played for "
            f"{self.played_s:.1f} s, {self.played_s / (self.workers * self.sweep_s):.2f} of theirs"
        )


def study() -> StudyConfig:
    made = load_study(PLANTED)
    corridor = made.corridor.model_copy(update={"budget_merges": MERGES})
    return made.model_copy(update={"horizon_s": HORIZON_S, "corridor": corridor})


def space(settings: int) -> SpaceConfig:
    raw: dict[str, Any] = {
        "policy": "wa_ewma",
        "parameters": {HALF_LIFE: {"low": 0.1, "high": 30.0, "scale": "log"}},
        "search": "random",
        "settings": settings,
        "seed": 0,
        "tuning": {"seeds": {"first": 0, "count": SEEDS}, "draws": DRAWS},
        "judging": {"seeds": {"first": 1000, "count": 1}},
    }
    return SpaceConfig.model_validate_json(json.dumps(raw))


def loop(made: StudyConfig, wanted: SpaceConfig, evaluator: Evaluator) -> float:
    """No sweep at all: settings, seeds, and the controls of each seed once."""
    evaluator.play(made, policy="wa_ewma", seed=10_000, draws=1)  # compile first, as workers do
    began_s = time.perf_counter()
    values = random_values(made, wanted)
    for i in range(wanted.settings):
        setting = make_setting(made, wanted, next(values)).study
        assert setting is not None
        for seed in wanted.tuning.seeds.seeds:
            evaluator.play(setting, policy="wa_ewma", seed=seed, draws=0 if i else DRAWS)
    return time.perf_counter() - began_s


def sweep(
    made: StudyConfig, wanted: SpaceConfig, evaluator: Evaluator, folder: Path
) -> tuple[float, float]:
    """Seconds of the sweep, and to the end of the first setting."""
    ledger = Ledger(folder / "results.jsonl", identity="test")
    progress = Progress(made, wanted, ledger=ledger, proposer=proposer(made, wanted))
    bench = Bench(
        evaluator=evaluator, policy="wa_ewma", loads=(made.load,), draws=DRAWS, controls={}
    )
    moments: list[float] = []
    began_s = time.perf_counter()
    run_trials(
        progress,
        plan=Plan(study=made, space=wanted, bench=bench),
        storage=folder,
        name="bench",
        say=lambda _line: moments.append(time.perf_counter()),
    )
    ended_s = time.perf_counter()
    ledger.close()
    assert len(ledger.rows) == wanted.settings * SEEDS
    return ended_s - began_s, moments[1] - began_s  # the first line tells of the workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=60)
    parser.add_argument("--long-settings", type=int, default=24)
    parser.add_argument("--wait", action="store_true", help="the long ones wait and do not work")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    ray.init(
        address="local",
        num_cpus=given.workers,
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
        runtime_env={"env_vars": {"PYTHONPATH": python_path()}},
    )
    made = study()
    replay = ReplayEvaluator(plant=PLANT, study_dir=PLANTED.parent)
    each_s = LONG_S / SEEDS
    long_evaluator = FakeEvaluator(wait_s=each_s) if given.wait else FakeEvaluator(work_s=each_s)
    with tempfile.TemporaryDirectory() as folder:
        for name, count, evaluator in (
            ("replay", given.settings, replay),
            ("waiting" if given.wait else "working", given.long_settings, long_evaluator),
        ):
            if not count:
                continue
            wanted, place = space(count), Path(folder) / name
            place.mkdir()
            # A known length of time needs no loop to be known.
            loop_s = loop(made, wanted, evaluator) if name == "replay" else count * LONG_S
            noted = Measured(inner=evaluator, log=place / "seconds")
            sweep_s, first_s = sweep(made, wanted, noted, place)
            timed = Timed(
                settings=count,
                seeds=SEEDS,
                workers=given.workers,
                loop_s=loop_s,
                sweep_s=sweep_s,
                first_result_s=first_s,
                played_s=sum(float(line) for line in noted.log.read_text().split()),
            )
            sys.stdout.write(timed.line(name) + "\n")
            sys.stdout.flush()
    ray.shutdown()


if __name__ == "__main__":
    main()
