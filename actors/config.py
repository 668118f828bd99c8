"""Config of everything that touches the world: islands, sidecars, load, telemetry, merges."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from policies.units import (
    Bytes,
    Count,
    Fraction,
    FrozenModel,
    Members,
    Positive,
    PositiveCount,
    PositiveSeconds,
    PositiveTokens,
    Seconds,
    Weight,
)


class ModelConfig(FrozenModel):
    """Decoder-only byte-level language model in the Llama shape."""

    hidden_size: PositiveCount
    layers: PositiveCount
    heads: PositiveCount
    kv_heads: PositiveCount
    ffn_size: PositiveCount
    vocab_size: PositiveCount = 260  # 256 bytes + 4 special tokens
    rope_theta: Positive = 10_000.0
    tie_embeddings: bool = True

    @model_validator(mode="after")
    def _shape(self) -> "ModelConfig":
        if self.hidden_size % self.heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is no multiple of heads={self.heads}; "
                "choose a hidden size that the heads divide"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads={self.heads} is no multiple of kv_heads={self.kv_heads}; "
                "choose kv_heads that divide heads"
            )
        return self


class DataConfig(FrozenModel):
    """Text to train on: the standard library's sources, or a user's folder of text files."""

    source: Literal["stdlib", "folder"]
    folder: str | None = None
    max_bytes: Bytes = 64_000_000

    @model_validator(mode="after")
    def _folder_named(self) -> "DataConfig":
        if (self.source == "folder") != (self.folder is not None):
            raise ValueError(
                f"source={self.source!r} with folder={self.folder!r}; "
                "give folder exactly when source is 'folder'"
            )
        return self


class InnerConfig(FrozenModel):
    """Inner AdamW; its state is kept across rounds."""

    lr: Positive
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    weight_decay: Weight = 0.1
    clip_norm: Positive | None = 1.0


class OuterConfig(FrozenModel):
    """Outer Nesterov SGD on the mean pseudo-gradient (DiLoCo, arXiv:2311.08105, algorithm 1)."""

    lr: Positive = 0.7
    momentum: Fraction = 0.9


class IslandsConfig(FrozenModel):
    """K learner islands; each is one Ray actor."""

    count: Members
    model: ModelConfig
    data: DataConfig
    inner: InnerConfig
    outer: OuterConfig = OuterConfig()
    batch_size: PositiveCount
    seq_len_tokens: PositiveTokens
    step_interval_s: Seconds = Field(
        description="paced: one inner step starts each interval; 0 = unpaced"
    )
    device: Literal["cpu", "cuda"] = "cpu"
    torch_threads: PositiveCount = 1
    autogroup_nice: Annotated[int, Field(ge=0, le=19)] = Field(
        default=0, description="CPU priority of the island's own scheduler group (Linux autogroup)"
    )
    num_cpus: Weight = 1.0
    num_gpus: Weight = 0.0


class FillConfig(FrozenModel):
    """Synthetic load that fills a merge window from the end of the real work up to W."""

    kind: Literal["none", "matmul"]
    threads: Count = Field(default=1, description="one-thread burner processes for each island")
    matrix_size: PositiveCount = 384
    core_fraction: Annotated[float, Field(gt=0, le=0.9)] | None = Field(
        default=None,
        description="share of one core that each burner takes, by real-time priority; null: it "
        "competes as an ordinary process, and how much it gets varies from window to window",
    )

    @model_validator(mode="after")
    def _has_threads(self) -> "FillConfig":
        if self.kind != "none" and self.threads == 0:
            raise ValueError(f"fill kind={self.kind!r} with threads=0; give at least 1 thread")
        return self


class MergeConfig(FrozenModel):
    """The merge window: real work (all-reduce, codec, outer step, checkpoint), then fill."""

    window_s: PositiveSeconds
    fill: FillConfig
    codec: Literal["fp32", "bf16"] = "fp32"
    checkpoint: bool = True
    timeout_s: PositiveSeconds = 30.0  # a peer that does not answer within this is lost


ISLANDS = "islands"  # engine.model: the islands' own architecture, from a folder of their weights
BYTE_LEVEL_VOCAB = 260  # 256 bytes and the tokenizer's 4 special tokens


def check_servable(model: ModelConfig) -> None:
    """ValueError for islands whose model no server could take."""
    if model.vocab_size < BYTE_LEVEL_VOCAB:
        raise ValueError(
            f"islands.model.vocab_size={model.vocab_size} is below {BYTE_LEVEL_VOCAB}: a server's "
            f"tokenizer has 256 bytes and 4 special tokens; give at least {BYTE_LEVEL_VOCAB}"
        )


class VllmConfig(FrozenModel):
    """A real vLLM OpenAI server owned by the sidecar."""

    kind: Literal["vllm"]
    model: str = Field(
        description="'tiny' builds a byte-level Llama; 'islands' serves what the islands train; "
        "else a model id or folder"
    )
    max_model_len_tokens: PositiveTokens
    max_num_seqs: PositiveCount
    dtype: str = "float32"
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    port: Annotated[int, Field(ge=0, le=65535)] = 0  # 0: any free port
    start_timeout_s: PositiveSeconds = 300.0


class MockConfig(FrozenModel):
    """A mock server with the same wire protocol and /metrics; results say engine=mock."""

    kind: Literal["mock"]
    max_model_len_tokens: PositiveTokens = 1024
    max_num_seqs: PositiveCount = 16
    prefill_s_per_token: Seconds = 0.00002
    decode_step_s: Seconds = 0.004
    decode_step_per_seq_s: Seconds = 0.0002
    merge_slowdown: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    start_timeout_s: PositiveSeconds = 60.0


class AttachConfig(FrozenModel):
    """An already running vLLM OpenAI server, reached by URL and never stopped by us."""

    kind: Literal["attach"]
    url: str
    model: str | None = None  # None: the server's only model
    max_model_len_tokens: PositiveTokens
    max_num_seqs: PositiveCount


EngineConfig = Annotated[VllmConfig | MockConfig | AttachConfig, Field(discriminator="kind")]


class RefreshConfig(FrozenModel):
    """Merged weights for the server: after which merges, and how."""

    kind: Literal["none", "in_place", "restart"] = Field(
        default="none",
        description="in_place: the server pauses for the reload, requests in flight go on with the "
        "new weights; restart: it is gone meanwhile, requests fail or wait",
    )
    every_merges: PositiveCount = 1
    timeout_s: PositiveSeconds = 30.0  # of one in place; a restart has engine.start_timeout_s
    keep_rounds: PositiveCount = 2  # folders of exported weights that stay on disk


class SidecarsConfig(FrozenModel):
    """Serving sidecars; every one gets its own arrival stream."""

    count: Members
    engine: EngineConfig
    refresh: RefreshConfig = RefreshConfig()
    warmup_requests: Count = 8  # sent before every arm, never measured
    num_cpus: Weight = 1.0
    num_gpus: Weight = 0.0

    @model_validator(mode="after")
    def _can_be_refreshed(self) -> "SidecarsConfig":
        engine, kind = self.engine, self.refresh.kind
        if kind == "none":
            return self
        if isinstance(engine, AttachConfig):
            raise ValueError(
                f"refresh.kind={kind!r} with engine.kind='attach': a server that is not ours keeps "
                "its weights; use engine.kind 'vllm', or leave refresh out"
            )
        if isinstance(engine, VllmConfig) and engine.model != ISLANDS:
            raise ValueError(
                f"refresh.kind={kind!r} with engine.model={engine.model!r}: the islands train "
                f"another model; give engine.model: {ISLANDS}, or leave refresh out"
            )
        return self


class ClientConfig(FrozenModel):
    """The open-loop client."""

    request_timeout_s: PositiveSeconds = 30.0
    drain_timeout_s: PositiveSeconds = 30.0
    token_low: Count = 32  # prompts are random token ids in [token_low, token_high)
    token_high: PositiveCount = 127
    num_cpus: Weight = 0.0

    @model_validator(mode="after")
    def _range(self) -> "ClientConfig":
        if self.token_low >= self.token_high:
            raise ValueError(
                f"token_low={self.token_low} is not below token_high={self.token_high}"
            )
        return self


class TelemetryConfig(FrozenModel):
    """Probes; a pressure is a rate or count divided by the stated full scale, clipped to [0, 1]."""

    interval_s: PositiveSeconds = 0.5
    max_age_s: PositiveSeconds = 3.0  # older readings make the policy blind
    serving_full_requests: PositiveCount = Field(description="requests in the system at pressure 1")
    network_full_bytes_per_s: Positive
    checkpoint_full_bytes_per_s: Positive
    num_cpus: Weight = 0.0
