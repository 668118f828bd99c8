"""A stand-in for the replay under a sweep: a law of one parameter in microseconds, on request slow.

``violation_rate`` of the policy has its least at ``half_life_s`` = 2 s; every block has its own
level, so that settings compare well in pairs and badly otherwise.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.config import StudyConfig
from orchestrator.replay.figures import ReplayFigures
from orchestrator.sweep.blocks import loads_of
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.figures import Bench, known_controls
from orchestrator.sweep.here import Plan
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.progress import Progress
from policies.streams import stream

BEST_HALF_LIFE_S = 2.0
HALF_LIFE = "policies.wa_ewma.half_life_s"
PlaySweep = Callable[..., tuple[Progress, Ledger]]


@dataclass(frozen=True, kw_only=True)
class FakeEvaluator:
    """``log``: a line for each policy run; ``work_s``: of CPU time for it, ``wait_s``: of waiting;
    ``fails_at_s``: a half-life at and above which the block cannot be played; ``flat``: every
    setting is one more random draw, so none is better than random.
    """

    log: Path | None = None
    work_s: float = 0.0
    wait_s: float = 0.0
    fails_at_s: float = math.inf
    flat: bool = False

    def play(
        self, study: StudyConfig, *, policy: str, seed: int, draws: int
    ) -> tuple[ReplayFigures, list[ReplayFigures]]:
        half_life_s = float(getattr(study.policies[policy], "half_life_s"))  # noqa: B009
        if half_life_s >= self.fails_at_s:
            raise ValueError(f"half_life_s={half_life_s:g} cannot be played")
        _work(self.work_s)
        time.sleep(self.wait_s)
        if self.log is not None:
            _line(self.log, f"{half_life_s!r} {seed} {draws}\n")
        level = float(stream(seed, "fake level").uniform(0.05, 0.15))
        own = stream(seed, "fake noise", round(1e6 * half_life_s))
        away = abs(math.log(half_life_s / BEST_HALF_LIFE_S))
        planted = level * (0.6 + 0.15 * away) + float(own.normal(0, 0.001))
        mine = row(seed, rate=level * float(own.uniform(0.9, 1.1)) if self.flat else planted)
        drawn = [
            row(seed, rate=level * float(stream(seed, "fake draw", d).uniform(0.9, 1.1)))
            for d in range(draws)
        ]
        return mine, drawn


def _work(work_s: float) -> None:
    end_s = time.process_time() + work_s
    while time.process_time() < end_s:
        math.sqrt(2.0)


def _line(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, text.encode())
    os.close(handle)


def plan_of(study: StudyConfig, space: SpaceConfig, ledger: Ledger, **fake: Any) -> Plan:
    bench = Bench(
        evaluator=FakeEvaluator(**fake),
        policy=space.policy,
        loads=loads_of(study, space.tuning),
        draws=space.tuning.draws,
        controls=known_controls(ledger.rows),
    )
    return Plan(study=study, space=space, bench=bench)


def row(seed: int, *, rate: float) -> ReplayFigures:
    return replace(_ROW, replicate=seed, violation_rate=rate)


_ROW = ReplayFigures(
    replicate=0,
    arm="wa_ewma",
    kind="policy",
    policy="wa_ewma",
    of=None,
    draw=None,
    position=None,
    request_hash="0" * 64,
    status="complete",
    requests_scheduled=100,
    violations=10,
    violation_rate=0.1,
    violations_not_yet_arrived=None,
    requests_in_windows=20,
    violations_in_windows=5,
    e2e_p50_s=0.1,
    e2e_p95_s=0.3,
    e2e_p99_s=0.4,
    ttft_p50_s=0.05,
    ttft_p95_s=0.1,
    tpot_p50_s=0.01,
    tpot_p95_s=0.02,
    goodput_rps=5.0,
    merge_count=3,
    marked_windows=0,
    merge_planned_s=3.0,
    starts=(10, 20, 30),
    forced_share=0.0,
    overlap=20.0,
    overlap_mean=25.0,
    overlap_variance=9.0,
    new_overlap=15.0,
    new_overlap_mean=18.0,
    new_overlap_variance=4.0,
    inside_p95_s=0.5,
    inside_p95_no_sync_s=0.2,
    pooled_requests=None,
    pooled_p95_s=None,
    pooled_p95_no_sync_s=None,
    excess_s=1.0,
)
