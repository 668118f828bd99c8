"""SPACE.yaml: what is tuned, over which values, on which blocks, and which blocks are held out.

A block is one load with one seed. Tuning and judging blocks share no seed and no trace window.
"""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from orchestrator.config import Name
from orchestrator.record_files import strict_json
from orchestrator.study import explain, read_mapping
from orchestrator.workload.config import LoadConfig
from policies.units import (
    MOST_SEEDS,
    Count,
    Draws,
    Finite,
    FrozenModel,
    PositiveCount,
    Repeats,
    Seed,
)

Value = int | float | str | bool


class ParameterConfig(FrozenModel):
    """Either ``values``, or a range [low, high]; whole numbers where the study's own value is."""

    values: tuple[Value, ...] | None = None
    low: Finite | None = None
    high: Finite | None = None
    scale: Literal["linear", "log"] = "linear"
    grid_points: Annotated[int, Field(ge=2, le=1000)] = 5  # of a range, with search: grid

    @model_validator(mode="after")
    def _one_of_both(self) -> "ParameterConfig":
        if self.values is not None:
            if self.low is not None or self.high is not None:
                raise ValueError("values and low/high both stand here; keep one of them")
            if not self.values or len(set(self.values)) != len(self.values):
                raise ValueError(f"values={list(self.values)}; give at least one, each once")
            if any(isinstance(v, float) and not math.isfinite(v) for v in self.values):
                raise ValueError(f"values={list(self.values)}; give finite numbers")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give values: [...], or low and high")
        if self.low >= self.high:
            raise ValueError(f"low={self.low:g} is not below high={self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"low={self.low:g} with scale: log; give a number above 0")
        return self


class SeedRange(FrozenModel):
    """Seeds first, first + 1, ..., count of them."""

    first: Seed
    count: Annotated[int, Field(ge=1, le=MOST_SEEDS)]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(range(self.first, self.first + self.count))


class TuningConfig(FrozenModel):
    seeds: SeedRange
    loads: tuple[LoadConfig, ...] = ()  # empty: the study's load
    draws: Draws  # K: matched_random runs a block, the control of the gain
    seeds_at_once: PositiveCount = 5  # a worker's batch; a setting may be stopped between two


class JudgingConfig(FrozenModel):
    seeds: SeedRange
    loads: tuple[LoadConfig, ...] = ()
    draws: Draws = 99


class EarlyStoppingConfig(FrozenModel):
    """Paired over blocks: a setting that is clearly worse than the best so far is stopped."""

    after_seeds: Annotated[int, Field(ge=2)] = 5
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.99  # one-sided, for one look


class SpaceConfig(FrozenModel):
    """One sweep."""

    policy: Name  # a key of the study's ``policies``
    parameters: Annotated[dict[str, ParameterConfig], Field(min_length=1)]
    budget_from_target: bool = False  # budget_merges = floor(horizon / (window + target gap))
    search: Literal["optuna", "grid", "random"] = "optuna"
    settings: Repeats
    seed: Count  # of the search
    ask_at_once: PositiveCount = 8  # settings asked for before results are looked at
    tuning: TuningConfig
    judging: JudgingConfig
    stopping: EarlyStoppingConfig | None = None

    @model_validator(mode="after")
    def _held_out(self) -> "SpaceConfig":
        both = sorted(set(self.tuning.seeds.seeds) & set(self.judging.seeds.seeds))
        if both:
            raise ValueError(
                f"tuning.seeds and judging.seeds share {_few(both)}; judge on seeds that took no "
                "part in tuning"
            )
        return self


def _few(seeds: list[int]) -> str:
    shown = ", ".join(str(s) for s in seeds[:5])
    return shown if len(seeds) <= 5 else f"{shown}, ... ({len(seeds)} seeds)"


def load_space(path: Path) -> SpaceConfig:
    """Read and check SPACE.yaml; ValueError names file, key, value and what to do."""
    raw = read_mapping(path, what="a space")
    try:
        return SpaceConfig.model_validate_json(strict_json(raw, where=str(path)))
    except ValidationError as error:
        raise ValueError(explain(error, where=str(path), root=SpaceConfig)) from error
