"""Where a study's requests come from: synthetic arrivals, slices of traces, or a closed loop."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from policies.units import (
    Count,
    FrozenModel,
    Positive,
    PositiveCount,
    PositiveSeconds,
    PositiveTokens,
    Repeats,
    Seconds,
)

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # requests/s


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


class SecondsRange(FrozenModel):
    """Uniform in [low_s, high_s]; equal ends fix the length."""

    low_s: PositiveSeconds
    high_s: PositiveSeconds

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low_s > self.high_s:
            raise ValueError(f"low_s={self.low_s} is above high_s={self.high_s}")
        return self


class UniformOnOffConfig(FrozenModel):
    """On and off periods of uniform length: bursts that come neither at a beat nor at random."""

    kind: Literal["onoff_uniform"]
    off_rate_per_s: Rate
    on_rate_per_s: Positive
    off: SecondsRange
    on: SecondsRange
    prompt_tokens: TokenRange
    output_tokens: TokenRange


class GammaConfig(FrozenModel):
    """A renewal process: gamma gaps of mean 1 / rate_per_s; cv 1 is Poisson, above 1 bursty."""

    kind: Literal["gamma"]
    rate_per_s: Positive
    cv: Annotated[float, Field(ge=0.05, le=20)]  # std / mean of the gaps
    prompt_tokens: TokenRange
    output_tokens: TokenRange


class MmppState(FrozenModel):
    rate_per_s: Rate
    mean_s: PositiveSeconds  # exponential sojourn


class MmppConfig(FrozenModel):
    """Markov-modulated Poisson: from each state to any other with equal probability."""

    kind: Literal["mmpp"]
    states: Annotated[tuple[MmppState, ...], Field(min_length=2)]
    prompt_tokens: TokenRange
    output_tokens: TokenRange

    @model_validator(mode="after")
    def _arrives(self) -> Self:
        if not any(state.rate_per_s > 0 for state in self.states):
            raise ValueError("every state has rate_per_s 0; give at least one a rate")
        return self


class DiurnalConfig(FrozenModel):
    """Poisson of rate mean_rate_per_s * (1 + depth * sin(2 pi (t - phase_s) / period_s))."""

    kind: Literal["diurnal"]
    mean_rate_per_s: Positive
    depth: Annotated[float, Field(ge=0, le=1)]
    period_s: PositiveSeconds
    phase_s: Seconds = 0.0
    random_phase: bool = False  # a phase uniform in [0, period), drawn from the seed
    prompt_tokens: TokenRange
    output_tokens: TokenRange


class CrowdConfig(FrozenModel):
    """More users, who ask only in [phase_s + k * period_s, ... + burst_s), for every whole k; what
    they have asked for is still answered when the burst is over.
    """

    users: Repeats
    period_s: PositiveSeconds
    burst_s: PositiveSeconds
    phase_s: Seconds = 0.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.burst_s > self.period_s:
            raise ValueError(
                f"burst_s={self.burst_s:g} is above period_s={self.period_s:g}; lengthen the "
                "period or shorten the burst"
            )
        return self


class ClosedLoopConfig(FrozenModel):
    """A fixed number of users, each asking again after its answer and a pause. Replay only: its
    arrivals depend on the answers, so no request file can be made beforehand.
    """

    kind: Literal["closed"]
    users: Repeats
    mean_think_s: Seconds = 0.0  # exponential pause; 0 asks again at once
    prompt_tokens: TokenRange
    output_tokens: TokenRange
    crowd: CrowdConfig | None = None  # users of bursts, beside those that are always there

    @property
    def all_users(self) -> int:
        """Users that ever ask; those of the crowd come last."""
        return self.users + (0 if self.crowd is None else self.crowd.users)

    @model_serializer(mode="wrap")
    def _without_an_absent_crowd(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """So that the hash of a study that knows nothing of crowds stays what it was."""
        values: dict[str, Any] = handler(self)
        return {k: v for k, v in values.items() if k != "crowd" or v is not None}


class HistoryConfig(FrozenModel):
    """Traffic before the run, of the same law or trace: told to the policies, sent to no server."""

    length_s: PositiveSeconds
    service_s: PositiveSeconds = Field(
        description="a request counts as in flight for so long: an assumption, nothing served it"
    )


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


class Columns(FrozenModel):
    """Names in a plain CSV, JSONL or Parquet file, and how its times are written."""

    time: str
    time_unit: Literal["iso", "s", "ms", "us", "ns"]  # iso: YYYY-MM-DD HH:MM:SS.fffffff[+hh:mm]
    prompt_tokens: str
    output_tokens: str

    @model_validator(mode="after")
    def _differ(self) -> Self:
        names = (self.time, self.prompt_tokens, self.output_tokens)
        if len(set(names)) != len(names):
            raise ValueError(f"columns {', '.join(names)}: one column cannot serve twice")
        return self


class ReadOptions(FrozenModel):
    """How a trace file is read; what is found in the file goes before its name."""

    format: Literal[
        "auto", "azure", "burstgpt", "mooncake", "servegen", "csv", "jsonl", "parquet"
    ] = "auto"
    columns: Columns | None = None  # for csv, jsonl and parquet
    failed: Literal["keep", "drop"] = "keep"  # BurstGPT: a request with 0 response tokens
    dequantise_seed: Count | None = None  # spread times on a coarse grid over its step
    dataset: str | None = None  # ServeGen: the token histograms, relative to the trace
    generate_seed: Count = 0  # ServeGen: requests are drawn from its windows
    generate_from_s: Seconds = 0.0
    generate_for_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _mapped(self) -> Self:
        if self.format in ("csv", "jsonl", "parquet") and self.columns is None:
            raise ValueError(
                f"format={self.format!r} needs columns; give time, time_unit, prompt_tokens and "
                "output_tokens"
            )
        if self.format in ("azure", "burstgpt", "mooncake", "servegen") and self.columns:
            raise ValueError(f"columns with format={self.format!r}; its columns are known")
        return self


class TraceSource(ReadOptions):
    """One more trace, laid over the first from the first request of each."""

    path: str  # relative to the study file


class TraceConfig(ReadOptions):
    """Slices of a trace; transformations in this order: superpose, rate, slice (with thin and time
    scale), tokens.
    """

    kind: Literal["trace"]
    path: str  # relative to the study file
    time_scale: Positive  # seconds of trace time for each second of the run
    slice: SliceRule
    token_scale: Positive
    prompt_tokens_clip: TokenRange
    output_tokens_clip: TokenRange
    thin: Annotated[float, Field(gt=0, le=1)] = 1.0  # each request kept with this probability
    superpose: tuple[TraceSource, ...] = ()
    rate_scale: Annotated[float, Field(gt=0, le=1000)] = 1.0  # copies for each request, on average
    rate_scale_spread_s: PositiveSeconds = 1.0  # trace time over which the copies are laid

    @model_serializer(mode="wrap")
    def _without_what_is_not_used(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Settings that came later are left out at their default, so that the hash of a study
        that knows nothing of them stays what it was.
        """
        later = {*ReadOptions.model_fields, "superpose", "rate_scale", "rate_scale_spread_s"}
        unused = {
            name for name in later if getattr(self, name) == type(self).model_fields[name].default
        }
        return {name: value for name, value in handler(self).items() if name not in unused}


SyntheticConfig = (
    PoissonConfig
    | BurstsConfig
    | OnOffConfig
    | UniformOnOffConfig
    | GammaConfig
    | MmppConfig
    | DiurnalConfig
)
LoadConfig = Annotated[
    PoissonConfig
    | BurstsConfig
    | OnOffConfig
    | UniformOnOffConfig
    | GammaConfig
    | MmppConfig
    | DiurnalConfig
    | TraceConfig
    | ClosedLoopConfig,
    Field(discriminator="kind"),
]
