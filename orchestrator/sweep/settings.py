"""A setting: values of the parameters, the study that they make, and an id that is its content.

The id is a hash of the resolved study without seeds, arms, judge and words, so the order in which
settings are asked for, the machine and the sweep's name do not enter.
"""

import difflib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from orchestrator.arms import study_corridor
from orchestrator.config import StudyConfig
from orchestrator.report.mirror import short_hash
from orchestrator.study import explain
from orchestrator.sweep.config import ParameterConfig, SpaceConfig, Value
from policies.streams import stream
from policies.ticks import ticks_nearest

Values = dict[str, Value]
_NO_PART_OF_A_SETTING = (
    *("study", "question", "regime", "arms", "judge", "seeds", "gate", "load"),
    *("replay", "tuned_on", "on_fault", "resources"),
)
MOST_GRID_SETTINGS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Values asked for; ``study`` is None where they make no valid study, for ``refused``."""

    values: Values
    setting: str  # the id; of a refused one, a hash of its values
    study: StudyConfig | None
    refused: str | None


def make_setting(study: StudyConfig, space: SpaceConfig, values: Mapping[str, Value]) -> Setting:
    """The study with these values, checked as a whole, its corridor and budget included."""
    values = dict(values)
    try:
        made = _applied(study, space, values)
    except ValueError as error:
        key = f"refused-{short_hash(values)}"
        return Setting(values=values, setting=key, study=None, refused=" ".join(str(error).split()))
    return Setting(values=values, setting=setting_id(made), study=made, refused=None)


def setting_id(study: StudyConfig) -> str:
    """12 hex digits of all that decides a run but its load, seed and arm."""
    config = study.model_dump(mode="json")
    return short_hash({k: v for k, v in config.items() if k not in _NO_PART_OF_A_SETTING})


def controls_id(study: StudyConfig) -> str:
    """Like ``setting_id`` with the load, without policies: what a matched_random run depends on."""
    config = study.model_dump(mode="json")
    left_out = {*_NO_PART_OF_A_SETTING, "policies"} - {"load"}
    return short_hash({k: v for k, v in config.items() if k not in left_out})


def _applied(study: StudyConfig, space: SpaceConfig, values: Values) -> StudyConfig:
    raw = study.model_dump(mode="json")
    for path, value in values.items():
        parent, key = _place(raw, path, policy=space.policy)
        parent[key] = value
    if space.budget_from_target:
        raw["corridor"]["budget_merges"] = _budget_of_target(study, raw["corridor"])
    try:
        made = StudyConfig.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        raise ValueError(explain(error, where="setting")) from error
    study_corridor(made).require(made.corridor.budget_merges or 0)
    return made


def _budget_of_target(study: StudyConfig, corridor: Mapping[str, Any]) -> int:
    """Merges of the target cadence in the horizon; at least one."""
    gap_s = study.tick_s * ticks_nearest(
        corridor["target_steps"],
        step_interval_s=study.islands.step_interval_s,
        tick_s=study.tick_s,
    )
    return max(1, int(study.horizon_s / (study.merge.window_s + gap_s) + 1e-9))


def _place(raw: dict[str, Any], path: str, *, policy: str) -> tuple[dict[str, Any], str]:
    """The mapping and key at a dotted path; only the tuned policy, corridor and guards are in."""
    own = f"policies.{policy}."
    if path.startswith(own):
        current, rest, at = raw["policies"][policy], path.removeprefix(own), own.rstrip(".")
    elif path.startswith(("corridor.", "guards.")):
        at, _, rest = path.partition(".")
        current = raw[at]
    else:
        raise ValueError(
            f"{path}: is no setting of the policy; tune {own}..., corridor.... or guards...."
        )
    *sections, key = rest.split(".")
    for section in sections:
        current = _below(current, section, at=at)
        at = f"{at}.{section}"
    _below(current, key, at=at)
    return current, key


def _below(current: Any, key: str, *, at: str) -> Any:
    if current is None:
        raise ValueError(f"{at}: the study does not set it; give it a value there first")
    if not isinstance(current, dict):
        raise ValueError(f"{at}: is {current!r}, which has no {key!r}")
    if key not in current:
        close = difflib.get_close_matches(key, list(current), n=1, cutoff=0.5)
        known = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(current)}"
        raise ValueError(f"{at}.{key}: unknown key; {known}")
    return current[key]


def check_space(study: StudyConfig, space: SpaceConfig) -> None:
    """Every parameter has a place in the study and values of its type; ValueError with the key."""
    if space.policy not in study.policies:
        known = ", ".join(study.policies) or "none"
        raise ValueError(f"policy: {space.policy!r} is none of the study's policies: {known}")
    if study.free_cadence:
        raise ValueError(
            "the study's corridor.budget_merges is null (free cadence): without a budget there is "
            "no matched random to gain over; give a budget"
        )
    for path, parameter in space.parameters.items():
        try:
            whole = is_whole(study, space, path)
        except ValueError as error:
            raise ValueError(f"parameters: {error}") from error
        _check_values(path, parameter, whole=whole)
    if space.budget_from_target and "corridor.budget_merges" in space.parameters:
        raise ValueError(
            "parameters: corridor.budget_merges with budget_from_target: true; keep one of them"
        )


def is_whole(study: StudyConfig, space: SpaceConfig, path: str) -> bool | None:
    """Whether the parameter takes whole numbers; None when it takes no numbers."""
    parent, key = _place(study.model_dump(mode="json"), path, policy=space.policy)
    value = parent[key]
    if value is None:
        raise ValueError(f"{path}: the study does not set it; give it a value there first")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return isinstance(value, int)


def _check_values(path: str, parameter: ParameterConfig, *, whole: bool | None) -> None:
    if parameter.values is None:
        if whole is None:
            raise ValueError(f"parameters.{path}: takes no numbers; list its values")
        ends = (parameter.low, parameter.high)
        if whole and any(e is not None and e != int(e) for e in ends):
            raise ValueError(
                f"parameters.{path}: low={ends[0]:g}, high={ends[1]:g}; it takes whole numbers"
            )
    elif whole and not all(isinstance(v, int) for v in parameter.values):
        raise ValueError(
            f"parameters.{path}: values={list(parameter.values)}; it takes whole numbers"
        )


def grid_values(study: StudyConfig, space: SpaceConfig) -> Iterator[Values]:
    """Every combination, the last parameter fastest; ValueError when above ``settings``."""
    axes = {
        path: _points(p, whole=bool(is_whole(study, space, path)))
        for path, p in space.parameters.items()
    }
    count = 1
    for axis in axes.values():
        count *= len(axis)
    if count > min(space.settings, MOST_GRID_SETTINGS):
        sizes = " x ".join(str(len(axis)) for axis in axes.values())
        raise ValueError(
            f"settings={space.settings} is below the grid's {sizes} = {count}; raise settings, "
            "lower grid_points, or search by optuna or random"
        )
    for combination in itertools.product(*axes.values()):
        yield dict(zip(axes, combination, strict=True))


def _points(parameter: ParameterConfig, *, whole: bool) -> list[Value]:
    if parameter.values is not None:
        return list(parameter.values)
    assert parameter.low is not None
    assert parameter.high is not None
    space = np.geomspace if parameter.scale == "log" else np.linspace
    points = [float(x) for x in space(parameter.low, parameter.high, parameter.grid_points)]
    points[0], points[-1] = parameter.low, parameter.high
    return list(dict.fromkeys(round(x) for x in points)) if whole else list(points)


def random_values(study: StudyConfig, space: SpaceConfig) -> Iterator[Values]:
    """Independent draws without end, uniform in value or logarithm."""
    whole = {path: bool(is_whole(study, space, path)) for path in space.parameters}
    rng = stream(space.seed, "sweep-random")
    while True:
        yield {path: _drawn(p, whole[path], rng) for path, p in space.parameters.items()}


def _drawn(parameter: ParameterConfig, whole: bool, rng: np.random.Generator) -> Value:
    if parameter.values is not None:
        return parameter.values[int(rng.integers(len(parameter.values)))]
    assert parameter.low is not None
    assert parameter.high is not None
    low, high = parameter.low, parameter.high
    if whole and parameter.scale == "linear":
        return int(rng.integers(int(low), int(high), endpoint=True))
    if parameter.scale == "log":
        drawn = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        drawn = min(max(drawn, low), high)
        return round(drawn) if whole else drawn
    return float(rng.uniform(low, high))
