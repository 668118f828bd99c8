"""Exposure matched: policies that see the load, held to one count, beside random placement."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.config import StudyConfig
from orchestrator.replay.block import replay_seed
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.figures import ReplayFigures
from orchestrator.study import load_study

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """One arm over all seeds; of random, every draw of every seed is a run."""

    arm: str
    rates: tuple[float, ...]  # violations / requests of each run
    requests: float
    windows: float
    per_window: float  # violations

    @property
    def rate(self) -> float:
        return float(np.mean(self.rates))

    @property
    def middle(self) -> tuple[float, float]:
        """Where 90 % of the runs lie."""
        low, high = np.quantile(self.rates, (0.05, 0.95))
        return float(low), float(high)


def study_of(name: str) -> StudyConfig:
    return load_study(HERE / f"{name}.yaml")


def replay_matched(study: StudyConfig, plant: PlantConfig) -> tuple[Matched, ...]:
    """The study's policies in its order, then ``random``: all draws together."""
    rows = [
        row
        for seed in study.seeds
        for row in replay_seed(study, seed=seed, plant=plant, study_dir=HERE)
    ]
    arms = [arm for arm in dict.fromkeys(r.arm for r in rows if r.kind == "policy")]
    found = [matched(arm, [r for r in rows if r.arm == arm]) for arm in arms]
    return (*found, matched("random", [r for r in rows if r.kind == "matched_random"]))


def matched(arm: str, rows: list[ReplayFigures]) -> Matched:
    """ValueError for a run without requests or without windows."""
    if not rows or any(r.requests_scheduled == 0 or r.merge_count == 0 for r in rows):
        raise ValueError(f"{arm}: a run has no request or no window")
    return Matched(
        arm=arm,
        rates=tuple(r.violations / r.requests_scheduled for r in rows),
        requests=float(np.mean([r.requests_scheduled for r in rows])),
        windows=float(np.mean([r.merge_count for r in rows])),
        per_window=float(np.mean([r.violations / r.merge_count for r in rows])),
    )
