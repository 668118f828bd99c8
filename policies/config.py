"""One frozen config class for each policy, discriminated by ``kind``; and the corridor's own.

Published defaults of the workload-aware score: arXiv artifact of Twelftree et al. 2026,
``wa_diloco`` (see experiments/NOTICE-paper.md for source and licence).
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from policies.units import (
    Finite,
    Fraction,
    FrozenModel,
    Positive,
    PositiveCount,
    PositiveSeconds,
    PositiveSteps,
    Steps,
    Weight,
)


class CorridorConfig(FrozenModel):
    """Corridor in inner steps; converted once to ticks (floor up, ceiling down)."""

    floor_steps: Steps = Field(description="H_min: least inner steps between merges")
    ceiling_steps: PositiveSteps = Field(description="H_max: most inner steps between merges")
    target_steps: PositiveSteps = Field(description="inner steps per round of the target cadence")
    budget_merges: PositiveCount | None = Field(
        description="B: merges of every run; null: free cadence, which shows rate effects only"
    )

    @model_validator(mode="after")
    def _ordered(self) -> "CorridorConfig":
        if self.floor_steps > self.ceiling_steps:
            raise ValueError(
                f"floor_steps={self.floor_steps} is above ceiling_steps={self.ceiling_steps}; "
                "lower the floor or raise the ceiling"
            )
        if not self.floor_steps <= self.target_steps <= self.ceiling_steps:
            raise ValueError(
                f"target_steps={self.target_steps} lies outside "
                f"[floor_steps={self.floor_steps}, ceiling_steps={self.ceiling_steps}]; "
                "choose a target inside the corridor"
            )
        return self


class GuardsConfig(FrozenModel):
    """Guard rails beside the corridor, around every policy; one that is not given is off."""

    max_gap_s: PositiveSeconds | None = Field(
        default=None,
        description="run-clock seconds from a merge's end at which the next one is forced",
    )
    max_overlap_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="largest share of the merge overlap that one of several sidecars may carry",
    )


class FixedHConfig(FrozenModel):
    """Merge every ``h_steps`` inner steps (end to start), as far as corridor and budget allow."""

    kind: Literal["fixed_h"]
    h_steps: PositiveSteps


class PressureGateConfig(FrozenModel):
    """Merge when the largest known pressure is at or below the threshold."""

    kind: Literal["pressure_gate"]
    pressure_threshold: Fraction


class WaScoreConfig(FrozenModel):
    """Workload-aware score (design: section 3); merge when the islands' mean exceeds threshold."""

    kind: Literal["wa_score"]
    threshold: Finite = 0.0
    w_loss: Weight = 0.5
    w_tok: Weight = 0.5
    w_net: Weight = 0.5
    w_srv: Weight = 0.75
    w_ckpt: Weight = 0.25
    w_stale: Weight = 0.25
    loss_scale: Positive = 0.05
    token_scale_tokens: Positive = 1_000_000
    stale_scale_s: PositiveSeconds = 1800.0


class WaEwmaConfig(FrozenModel):
    """One-step EWMA forecast of the request rate scores candidate windows by expected overlap."""

    kind: Literal["wa_ewma"]
    half_life_s: PositiveSeconds = Field(description="half-life of the rate EWMA")
    mean_half_life_s: PositiveSeconds = Field(description="half-life of the long-run mean rate")
    w_stale: Weight = Field(
        default=0.0, description="price of waiting, per candidate window's share of the range"
    )


class _LearningConfig(FrozenModel):
    """What every policy that learns from counts needs. One set of defaults for all traffic."""

    half_life_s: PositiveSeconds = Field(
        default=1.0, description="half-life of the arrivals' mean in the signal"
    )
    memory_s: PositiveSeconds = Field(default=1800.0, description="how far back it learns from")
    least_data_s: PositiveSeconds = Field(
        default=240.0, description="known seconds before it may act; until then target cadence"
    )
    refit_s: PositiveSeconds = Field(default=60.0, description="time between two fits")


class EwmaThresholdConfig(_LearningConfig):
    """Merge when the signal is at or below a quantile of its own past that grows with the gap."""

    kind: Literal["ewma_threshold"]
    quantile: Fraction = Field(default=0.3, description="quantile that will do at the paced gap")
    pace: Weight = Field(default=2.0, description="exponent of gap / paced gap; 0: one limit")


class StoppingConfig(_LearningConfig):
    """Optimal stopping on quantile bins of the signal, with a price on leaving the cadence."""

    kind: Literal["stopping"]
    levels_of: Literal["signal", "forecast"] = Field(
        default="signal",
        description="signal: load now; forecast: arrivals expected in a window (slower, better)",
    )
    bins: PositiveCount = 10
    memory_half_life_s: PositiveSeconds = 1800.0
    w_cadence: Weight = Field(
        default=0.3,
        description="price, in mean costs, of a gap that is off by the paced gap; signal only",
    )


class SeasonConfig(_LearningConfig):
    """Plan the merges ahead on the profile of a period found by autocorrelation."""

    kind: Literal["season"]
    memory_half_life_s: PositiveSeconds = 1800.0
    least_correlation: Fraction = Field(
        default=0.3, description="of W-sums at the period; below it there is no season"
    )


class AnalogConfig(_LearningConfig):
    """Merge when what came after the nearest past contexts says that waiting does not pay."""

    kind: Literal["analog"]
    neighbours: PositiveCount = 40
    context_s: PositiveSeconds = Field(default=128.0, description="length of a context")
    bins: PositiveCount = 10
    memory_half_life_s: PositiveSeconds = 1800.0
    w_cadence: Weight = 0.3


MemberConfig = Annotated[
    EwmaThresholdConfig | StoppingConfig | SeasonConfig | AnalogConfig,
    Field(discriminator="kind"),
]


class EnsembleConfig(FrozenModel):
    """Follow the member with the best decayed gain of its shadow placements."""

    kind: Literal["ensemble"]
    members: tuple[MemberConfig, ...] = Field(
        default=(
            StoppingConfig(kind="stopping"),
            EwmaThresholdConfig(kind="ewma_threshold"),
            SeasonConfig(kind="season"),
            AnalogConfig(kind="analog"),
        ),
        min_length=1,
    )
    gain_half_life_s: PositiveSeconds = 1800.0


class UniformRandomConfig(FrozenModel):
    """Control, never deployable: a schedule uniform over the feasible set, under a policy's name.

    Judged like a policy, it shows that the gate stays silent for chance.
    """

    kind: Literal["uniform_random"]


PolicyConfig = Annotated[
    FixedHConfig
    | PressureGateConfig
    | WaScoreConfig
    | WaEwmaConfig
    | EwmaThresholdConfig
    | StoppingConfig
    | SeasonConfig
    | AnalogConfig
    | EnsembleConfig
    | UniformRandomConfig,
    Field(discriminator="kind"),
]
