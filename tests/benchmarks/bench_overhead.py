"""Inner steps/s of one unpaced island under the full system against the same loop outside Ray.

The system has no load and no merges: coordinator ticking, telemetry polling, load client idle, a
mock server (simulated). A machine's speed drifts by more than what is measured, so both alternate:
each round under the system, Ray started for it and stopped after it, stands between two outside.
The figure is the median over rounds of inside / mean of its two neighbours, aim at least 0.95.
Run it by `make bench`.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ray

from actors.clock import MonotonicClock
from actors.island.runner import IslandRunner
from actors.load.request import Request
from actors.priority import take_priority
from orchestrator.cluster.stage import Stage
from orchestrator.config import StudyConfig
from orchestrator.study import load_study

ROOT = Path(__file__).parents[2]
RUN_S, SKIP_S, ROUNDS = 18.0, 3.0, 7


def unpaced_study() -> StudyConfig:
    """The quickstart's island, alone and unpaced, beside a mock server."""
    quick = load_study(ROOT / "experiments" / "quickstart" / "study.yaml")
    mock = load_study(ROOT / "experiments" / "gate_check" / "planted.yaml")
    islands = quick.islands.model_copy(update={"count": 1, "step_interval_s": 0.0})
    return quick.model_copy(update={"islands": islands, "sidecars": mock.sidecars})


def steps_per_s(rows: list[dict[str, float]]) -> float:
    """Steps that ended in [SKIP_S, RUN_S) of the run clock, per second."""
    inside = [r for r in rows if SKIP_S <= r["at_s"] < RUN_S]
    return len(inside) / (RUN_S - SKIP_S)


def outside() -> float:
    """The island's own loop in this process, no Ray."""
    study = unpaced_study()
    runner = IslandRunner(
        study.islands,
        study.merge,
        0,
        clock=MonotonicClock(),
        priority=take_priority(study.islands.autogroup_nice),
    )
    runner.reset(seed=0, folder=None)
    zero_s = time.monotonic() + 0.5
    runner.start(zero_monotonic_s=zero_s)
    while time.monotonic() < zero_s + RUN_S:
        runner.progress()
        time.sleep(1.0)  # as often as the coordinator asks
    rows = runner.finish()["rows"]
    runner.shutdown()
    return steps_per_s(rows)


def outside_in_own_process() -> float:
    """A fresh process for each round, as an actor is one."""
    done = subprocess.run(
        [sys.executable, __file__, "outside"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return float(json.loads(done.stdout))


def inside(stage: Stage, study: StudyConfig) -> float:
    """One no_sync arm of RUN_S under the whole system."""
    ray.get(stage.islands[0].reset.remote(seed=0, checkpoint_dir=None))
    one = Request(
        request_id=0,
        sidecar=0,
        scheduled_at_s=0.0,
        prompt_tokens=8,
        output_tokens=2,
        prompt_seed=0,
    )
    urls, models = [i.url for i in stage.infos], [i.model for i in stage.infos]
    ray.get(stage.load.prepare.remote([one], urls, models))
    zero_s = time.monotonic() + 1.0
    offsets = stage.offsets_s
    ray.get(
        [
            stage.islands[0].start.remote(zero_s + offsets["island-0"]),
            stage.telemetry.start.remote(zero_s + offsets["telemetry"]),
        ]
    )
    load = stage.load.run.remote(zero_s + offsets["load"])
    arm = stage.coordinator.run_arm.remote(
        arm="no_sync",
        seed=0,
        wrapper=None,
        telemetry=study.telemetry,
        offsets_s=offsets,
        zero_monotonic_s=zero_s + offsets["coordinator"],
        tick_s=1.0,
        width_ticks=1,
        horizon_ticks=int(RUN_S),
        suppressed=False,
    )
    ray.get([load, arm])
    return steps_per_s(ray.get(stage.islands[0].finish.remote())["rows"])


def inside_on_a_new_stage(study: StudyConfig) -> float:
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(study, Path(folder), say=lambda _line: None)
        try:
            stage.start()
            return inside(stage, study)
        finally:
            stage.stop()
            ray.shutdown()


def main() -> None:
    study = unpaced_study()
    plain, system = [outside_in_own_process()], []
    for _ in range(ROUNDS):
        system.append(inside_on_a_new_stage(study))
        plain.append(outside_in_own_process())
    neighbours = [statistics.mean(pair) for pair in itertools.pairwise(plain)]
    ratios = [a / b for a, b in zip(system, neighbours, strict=True)]
    drift = [b / a for a, b in itertools.pairwise(plain)]
    result = {
        "bench": "orchestration_overhead",
        "engine": "mock (simulated)",
        "outside_steps_per_s": plain,
        "inside_steps_per_s": system,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "outside_against_the_one_before": drift,
        "aim": 0.95,
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["outside"]:
        sys.stdout.write(json.dumps(outside()) + "\n")
    else:
        main()
