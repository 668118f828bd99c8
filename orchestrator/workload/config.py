"""Where a study's requests come from; each kind open loop, each seeded by the study's seed."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from policies.units import (
    Count,
    FrozenModel,
    Positive,
    PositiveCount,
    PositiveSeconds,
    PositiveTokens,
    Seconds,
)


class TokenRange(FrozenModel):
    """Uniform whole numbers in [low, high]; low == high fixes the length."""

    low: PositiveTokens
    high: PositiveTokens

    @model_validator(mode="after")
    def _ordered(self) -> "TokenRange":
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}")
        return self


class PoissonConfig(FrozenModel):
    kind: Literal["poisson"]
    rate_per_s: Positive
    prompt_tokens: TokenRange
    output_tokens: TokenRange


class BurstsConfig(FrozenModel):
    """Periodic bursts: ``burst_rate_per_s`` for ``burst_s`` of each ``period_s``, from phase on."""

    kind: Literal["bursts"]
    quiet_rate_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    burst_rate_per_s: Positive
    period_s: PositiveSeconds
    burst_s: PositiveSeconds
    phase_s: Seconds = 0.0
    random_phase: bool = False  # a phase uniform in [0, period), drawn from the seed
    prompt_tokens: TokenRange
    output_tokens: TokenRange


class OnOffConfig(FrozenModel):
    """Exponential on and off periods."""

    kind: Literal["onoff"]
    off_rate_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    on_rate_per_s: Positive
    mean_off_s: PositiveSeconds
    mean_on_s: PositiveSeconds
    prompt_tokens: TokenRange
    output_tokens: TokenRange


class SliceRule(FrozenModel):
    """Seed k takes the k-th window, in trace order, that meets the rule. Windows are disjoint:
    [offset + i * L, offset + (i + 1) * L) with L = horizon_s * time_scale of trace time.
    """

    offset_s: Seconds = 0.0
    min_requests: Count
    max_requests: PositiveCount
    max_burst_requests: PositiveCount  # most arrivals in any burst_s of run time
    burst_s: PositiveSeconds = 1.0
    min_quiet_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of 1 s bins below mean/2


class TraceConfig(FrozenModel):
    """A slice of an Azure-format CSV (TIMESTAMP, ContextTokens, GeneratedTokens)."""

    kind: Literal["trace"]
    path: str  # relative to the study file
    time_scale: Positive  # seconds of trace time for each second of the run
    slice: SliceRule
    token_scale: Positive
    prompt_tokens_clip: TokenRange
    output_tokens_clip: TokenRange
    thin: Annotated[float, Field(gt=0, le=1)] = 1.0  # each request kept with this probability


LoadConfig = Annotated[
    PoissonConfig | BurstsConfig | OnOffConfig | TraceConfig, Field(discriminator="kind")
]
