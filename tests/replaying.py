"""Studies and plants for the tests of the replay: a minute of traffic, all kinds of arms."""

from typing import Any

import numpy as np

from orchestrator.arms import study_corridor
from orchestrator.config import StudyConfig
from orchestrator.replay.plant import PlantConfig
from policies.corridor import Corridor
from tests.synthetic import synthetic_study

PLANT = PlantConfig(
    slots=4,
    step_base_s=0.004,
    step_per_seq_s=0.0005,
    prefill_per_token_s=0.00005,
    overhead_s=0.003,
    overhead_log_sd=0.2,
    merge_factor=2.5,
    merge_factor_log_sd=0.1,
)
POLICIES: dict[str, Any] = {
    "wa_ewma": {"kind": "wa_ewma", "half_life_s": 2.0, "mean_half_life_s": 20.0},
    "wa_score": {"kind": "wa_score", "token_scale_tokens": 3000, "stale_scale_s": 12.0},
    "fixed_h": {"kind": "fixed_h", "h_steps": 120},
}
ARMS: list[dict[str, Any]] = [
    {"kind": "no_sync"},
    {"kind": "policy", "policy": "wa_ewma"},
    {"kind": "policy", "policy": "wa_score"},
    {"kind": "matched_random", "of": "wa_ewma", "draws": 2},
    {"kind": "placebo", "of": "wa_ewma"},
    {"kind": "oracle", "of": "wa_ewma"},
    {"kind": "aa", "of": "wa_ewma"},
]


def replay_study(**changes: Any) -> StudyConfig:
    """The synthetic study with every kind of arm; keys as in tests/synthetic.py."""
    return synthetic_study(
        **{"policies": POLICIES, "arms": ARMS, "judge": ["wa_ewma", "wa_score"], **changes}
    )


def random_study(rng: np.random.Generator) -> StudyConfig:
    """Another corridor, budget, tick, number of sidecars, guard rails, each time."""
    tick_s = float(rng.choice([0.5, 1.0]))
    floor = int(rng.integers(0, 80))
    reach = int(rng.integers(20, 200))
    corridor = {"floor_steps": floor, "ceiling_steps": floor + reach, "target_steps": floor + 10}
    free = replay_study(
        tick_s=tick_s,
        horizon_s=float(rng.integers(20, 40)),
        warmup_s=float(rng.integers(0, 4)),
        merge={"window_s": float(rng.integers(1, 5))},
        sidecars={"count": int(rng.integers(1, 4))},
        corridor={**corridor, "budget_merges": None},
        arms=[{"kind": "no_sync"}],
        judge=[],
    )
    budgets = study_corridor(free).budgets()
    if not budgets:
        return random_study(rng)
    budget = int(rng.choice(budgets))
    raw = {
        "corridor": free.corridor.model_copy(update={"budget_merges": budget}),
        "arms": replay_study().arms,
        "guards": None,
    }
    found = free.model_copy(update=raw)
    gap_s = (study_corridor(found).ceiling_ticks - int(rng.integers(0, 3))) * tick_s
    guarded = StudyConfig.model_validate_json(
        found.model_copy(update={"guards": None}).model_dump_json()
    )
    if rng.random() < 0.5 and _still_feasible(guarded, gap_s=gap_s, budget=budget):
        return StudyConfig.model_validate(guarded.model_dump() | {"guards": {"max_gap_s": gap_s}})
    return guarded


def _still_feasible(study: StudyConfig, *, gap_s: float, budget: int) -> bool:
    c = study_corridor(study)
    ceiling = int(gap_s / study.tick_s)
    if ceiling < max(1, c.floor_ticks):
        return False
    cut = Corridor(
        floor_ticks=c.floor_ticks,
        ceiling_ticks=ceiling,
        width_ticks=c.width_ticks,
        horizon_ticks=c.horizon_ticks,
    )
    return budget in cut.budgets()
