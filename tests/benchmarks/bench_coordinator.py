"""Time of one decision in the coordinator, and of its record, at 8, 512 and 4096 islands.

Coordinator.handle(Ticked) under wa_score (reads every island), stopping and ensemble, then the
tick's events as lines of events.jsonl; microseconds of CPU a tick (nothing here waits, and a shared
machine's waiting is not counted), from the tick at which the learners have their data.
h = 16..64 ticks of 1 s, W = 8, T = 600, 15 merges. Aim: below 20 000 at p99. In `make bench`.
"""

import json
import sys
import time
from typing import Any

import numpy as np

from actors.coordinator.coordinator import Coordinator
from actors.events import ArmStarted, MergeFinished, StartMerge, Ticked, to_record
from orchestrator.record_files import strict_json
from policies.build import build_policy, needs_probes
from policies.config import EnsembleConfig, PolicyConfig, StoppingConfig, WaScoreConfig
from policies.corridor import Corridor
from policies.frame import Frame
from policies.observation import IslandProgress, Reading, Sample
from policies.wrapper import CorridorWrapper

CORRIDOR = Corridor(floor_ticks=16, ceiling_ticks=64, width_ticks=8, horizon_ticks=600)
BUDGET, GAP_TICKS = 15, 32
ISLANDS = (8, 512, 4096)
POLICIES: tuple[PolicyConfig, ...] = (
    WaScoreConfig(kind="wa_score"),
    StoppingConfig(kind="stopping"),
    EnsembleConfig(kind="ensemble"),
)
FIRST_TICK = 300  # least_data_s is 240


def new_coordinator(config: PolicyConfig, islands: int) -> Coordinator:
    frame = Frame(corridor=CORRIDOR, target_gap_ticks=GAP_TICKS, tick_s=1.0)
    wrapper = CorridorWrapper(
        CORRIDOR,
        budget=BUDGET,
        policy=build_policy(config, step_interval_s=0.1, tick_s=1.0, frame=frame),
        tick_s=1.0,
        target_gap_ticks=GAP_TICKS,
        needs_probes=needs_probes(config),
    )
    made = Coordinator(wrapper, tick_s=1.0, width_ticks=8, horizon_ticks=600)
    made.handle(
        ArmStarted(
            event_id=made.next_id(), at_s=0.0, arm="bench", seed=0, islands=tuple(range(islands))
        )
    )
    return made


def samples(islands: int) -> list[Sample]:
    """Bursts of 30 s every 120 s; every island at its own loss."""
    rng = np.random.default_rng(7)
    drops = rng.normal(0.02, 0.02, size=(4, islands)).tolist()
    progress = [
        tuple(
            IslandProgress(
                island=i,
                steps_since_merge=40,
                tokens_since_merge=20_000 + i,
                loss_drop=drop,
                staleness_s=12.5,
            )
            for i, drop in enumerate(row)
        )
        for row in drops
    ]
    made = []
    for tick in range(CORRIDOR.horizon_ticks):
        arrivals = int(rng.poisson(20.0 if tick % 120 < 30 else 3.0))
        pressure = Reading(value=min(1.0, arrivals / 32), age_s=0.2)
        made.append(
            Sample(
                tick=tick,
                now_s=float(tick),
                arrivals=arrivals,
                in_flight=arrivals // 2,
                serving=pressure,
                network=pressure,
                checkpoint=pressure,
                islands=progress[tick % 4],
                blind=False,
            )
        )
    return made


def measure(config: PolicyConfig, islands: int) -> dict[str, Any]:
    coordinator = new_coordinator(config, islands)
    handled: list[float] = []
    written: list[float] = []
    line_bytes = 0
    merge: StartMerge | None = None
    for sample in samples(islands):
        if merge is not None and sample.tick == merge.tick + 8:
            coordinator.handle(finished(coordinator.next_id(), merge))
        coordinator.drain_log()
        event = Ticked(event_id=coordinator.next_id(), sample=sample)
        start_s = time.thread_time()
        commands = coordinator.handle(event)
        middle_s = time.thread_time()
        events = coordinator.drain_log()
        lines = [strict_json(to_record(e), where="bench") for e in events]
        end_s = time.thread_time()
        merge = next((c for c in commands if isinstance(c, StartMerge)), merge)
        if sample.tick >= FIRST_TICK:
            handled.append(middle_s - start_s)
            written.append(end_s - middle_s)
            line_bytes = max(line_bytes, sum(map(len, lines)))
    return {
        "policy": config.kind,
        "islands": islands,
        "handle_p50_us": _us(handled, 50),
        "handle_p99_us": _us(handled, 99),
        "record_p50_us": _us(written, 50),
        "record_p99_us": _us(written, 99),
        "record_bytes_most": line_bytes,
    }


def finished(event_id: int, merge: StartMerge) -> MergeFinished:
    return MergeFinished(
        event_id=event_id,
        cause_id=merge.cause_id,
        round=merge.round,
        at_s=merge.end_s,
        overran=False,
        parts=(),
    )


def _us(durations_s: list[float], q: float) -> float:
    return round(1e6 * float(np.percentile(durations_s, q)), 1)


def main() -> None:
    rows = [measure(config, islands) for config in POLICIES for islands in ISLANDS]
    sys.stdout.write(json.dumps({"coordinator": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
