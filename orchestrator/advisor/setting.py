"""From the advice and the trainers' pace to what decides: built here alone, also to redecide.

Pure: the same advice and pace give the same wrapper, always.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.advisor.config import AdviceConfig, AdviceFile
from orchestrator.study import explain, read_mapping
from policies.build import build_policy, needs_probes
from policies.corridor import Corridor
from policies.frame import Frame
from policies.plugins import AnyPolicyConfig
from policies.wrapper import CorridorWrapper


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSetting:
    """An advice at a pace. ``tick_s`` is what a tick takes, the corridor does not depend on it."""

    step_s: float
    tick_s: float
    corridor: Corridor
    target_gap_ticks: int


def load_advice(path: Path) -> AdviceConfig:
    """Read and check one advice; ValueError names file, key, value and what to do."""
    raw = read_mapping(path, what="advice")
    try:
        config = AdviceFile.model_validate_json(json.dumps(raw, default=str)).advice
    except ValidationError as error:
        raise ValueError(explain(error, where=str(path), root=AdviceFile)) from error
    check_policy(config)
    return config


def check_policy(config: AdviceConfig) -> None:
    """ValueError where the policy cannot be built, which no learner should have to hear."""
    advice_wrapper(config, setting_at(config, step_s=config.step_s or 1.0))


def setting_at(config: AdviceConfig, *, step_s: float) -> AdviceSetting:
    """The advice at ``step_s`` seconds an inner step."""
    tick_s = step_s * config.tick_steps
    corridor = config.corridor_ticks(width_ticks=max(1, math.ceil(config.window_s / tick_s)))
    target = (2 * config.corridor.target_steps + config.tick_steps) // (2 * config.tick_steps)
    return AdviceSetting(
        step_s=step_s,
        tick_s=tick_s,
        corridor=corridor,
        target_gap_ticks=min(max(target, corridor.floor_ticks), corridor.ceiling_ticks),
    )


def advice_wrapper(
    config: AdviceConfig, setting: AdviceSetting, *, policy: AnyPolicyConfig | None = None
) -> CorridorWrapper:
    """The advice's policy, or another one, in its corridor."""
    policy = config.policy if policy is None else policy
    corridor, tick_s = setting.corridor, setting.tick_s
    frame = Frame(corridor=corridor, target_gap_ticks=setting.target_gap_ticks, tick_s=tick_s)
    return CorridorWrapper(
        corridor,
        budget=config.corridor.budget_merges,
        policy=build_policy(policy, step_interval_s=setting.step_s, tick_s=tick_s, frame=frame),
        tick_s=tick_s,
        target_gap_ticks=setting.target_gap_ticks,
        needs_probes=needs_probes(policy),
    )


def recorded(config: dict[str, Any], *, where: Path) -> tuple[AdviceConfig, AdviceSetting]:
    """Advice and setting of a record's config.json; ValueError names what is wrong in it."""
    try:
        advice = AdviceConfig.model_validate_json(json.dumps(config["advice"]))
        step_s = float(config["step_s"])
    except ValidationError as error:
        raise ValueError(explain(error, where=f"{where}: advice", root=AdviceConfig)) from error
    except (KeyError, TypeError, ValueError) as error:
        what = f"{where}: holds no advice and its pace ({error!r}); restore it"
        raise ValueError(what) from error
    return advice, setting_at(advice, step_s=step_s)
