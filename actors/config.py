"""Config of everything that touches the world: islands, sidecars, load, telemetry, merges."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

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

    kind: Literal["llama"] = "llama"
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


class HfModelConfig(FrozenModel):
    """A causal language model in a Hugging Face folder on disk; no code of the folder runs."""

    kind: Literal["hf"]
    path: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    compile: bool = Field(default=False, description="torch.compile; needs a C++ compiler")
    activation_checkpointing: bool = Field(
        default=False, description="less memory, one more forward pass"
    )
    from_scratch: bool = Field(
        default=False, description="its config.json alone: random weights of the seed"
    )


def _model_kind(value: Any) -> str | None:
    """A config without a kind is the byte-level model: there was no other."""
    if isinstance(value, dict):
        kind = value.get("kind", "llama")
        return kind if isinstance(kind, str) else None
    return getattr(value, "kind", None)


AnyModelConfig = Annotated[
    Annotated[ModelConfig, Tag("llama")] | Annotated[HfModelConfig, Tag("hf")],
    Discriminator(_model_kind),
]


class FileTokenizerConfig(FrozenModel):
    """A tokenizer.json, or a Hugging Face tokenizer folder that holds one."""

    kind: Literal["file"]
    path: str
    eos_token: str | None = Field(
        default=None, description="ends a document; null: what the folder names, or a usual one"
    )


def _tokenizer_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "bytes"
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind if isinstance(kind, str) else None


TokenizerConfig = Annotated[
    Annotated[Literal["bytes"], Tag("bytes")] | Annotated[FileTokenizerConfig, Tag("file")],
    Discriminator(_tokenizer_kind),
]


class DataConfig(FrozenModel):
    """Text to train on, how it becomes tokens, and in which order they are trained on."""

    source: Literal["stdlib", "folder", "jsonl", "parquet", "hf"]
    folder: str | None = Field(default=None, description="of text files; source: folder")
    path: str | None = Field(
        default=None, description="jsonl, parquet: a file or a folder of them; hf: its folder"
    )
    column: str | None = Field(
        default=None, description="field that holds the text of jsonl, parquet, hf; null: text"
    )
    split: str | None = Field(default=None, description="of an hf folder that holds several")
    max_bytes: Bytes | None = Field(
        default=None,
        description="of text, its first; null: 64 MB of stdlib and folder, all of the others",
    )
    tokenizer: TokenizerConfig = "bytes"
    cache_dir: str | None = Field(
        default=None, description="of token files; null: lull/tokens in the user's cache"
    )
    validation_fraction: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = Field(
        default=0.0, description="of the tokens, their end: in no island's shard"
    )
    order: Literal["random", "shuffled"] = Field(
        default="random",
        description="random: windows start anywhere; shuffled: each window once an epoch",
    )
    packing: Literal["stream", "documents"] = Field(
        default="stream",
        description="documents: neither attention nor labels cross from one to the next",
    )

    @property
    def limit_bytes(self) -> int | None:
        """First bytes of the text that are taken; None: all."""
        if self.max_bytes is None and self.source in ("stdlib", "folder"):
            return 64_000_000
        return self.max_bytes

    @model_validator(mode="after")
    def _folder_named(self) -> "DataConfig":
        if (self.source == "folder") != (self.folder is not None):
            raise ValueError(
                f"source={self.source!r} with folder={self.folder!r}; "
                "give folder exactly when source is 'folder'"
            )
        return self

    @model_validator(mode="after")
    def _path_named(self) -> "DataConfig":
        rows = self.source in ("jsonl", "parquet", "hf")
        if rows != (self.path is not None):
            raise ValueError(
                f"source={self.source!r} with path={self.path!r}; "
                "give path exactly when source is 'jsonl', 'parquet' or 'hf'"
            )
        if self.column is not None and not rows:
            raise ValueError(
                f"source={self.source!r} with column={self.column!r}: a text file has no columns; "
                "leave column out"
            )
        if self.split is not None and self.source != "hf":
            raise ValueError(
                f"source={self.source!r} with split={self.split!r}: only a Hugging Face dataset "
                "folder has splits; leave split out"
            )
        return self


class LrScheduleConfig(FrozenModel):
    """Inner learning rate by the tokens of its shard that an island has passed, not by merges."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup_tokens: Count = 0
    total_tokens: PositiveTokens | None = Field(
        default=None, description="the rate is at its floor from here on; needed unless constant"
    )
    final_fraction: Fraction = Field(default=0.1, description="floor, as a share of inner.lr")

    @model_validator(mode="after")
    def _has_an_end(self) -> "LrScheduleConfig":
        if self.kind == "constant":
            if self.total_tokens is not None:
                raise ValueError(
                    f"total_tokens={self.total_tokens} with kind='constant', which has no end; "
                    "leave it out, or choose linear or cosine"
                )
            return self
        if self.total_tokens is None:
            raise ValueError(f"kind={self.kind!r} without total_tokens; say where the floor begins")
        if self.total_tokens <= self.warmup_tokens:
            raise ValueError(
                f"total_tokens={self.total_tokens} is not above warmup_tokens="
                f"{self.warmup_tokens}; nothing is left to decay over"
            )
        return self


class InnerConfig(FrozenModel):
    """Inner AdamW; its state is kept across rounds."""

    lr: Positive
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    weight_decay: Weight = 0.1
    clip_norm: Positive | None = 1.0
    schedule: LrScheduleConfig = LrScheduleConfig()


class OuterConfig(FrozenModel):
    """Outer step on the mean pseudo-gradient (DiLoCo, arXiv:2311.08105, algorithm 1).

    ``none`` keeps the weighted mean of the islands itself: local SGD with periodic averaging.
    """

    kind: Literal["nesterov", "none"] = "nesterov"
    lr: Positive = 0.7
    momentum: Fraction = 0.9
    clip_norm: Positive | None = Field(
        default=None, description="largest norm of the mean pseudo-gradient; a larger one is scaled"
    )
    weighting: Literal["tokens", "equal"] = "tokens"
    staleness_half_life_rounds: Positive | None = Field(
        default=None,
        description="an island's weight halves for every so many merges that it missed; null: no",
    )

    @model_validator(mode="before")
    @classmethod
    def _none(cls, given: Any) -> Any:
        return {"kind": "none"} if given == "none" else given

    @model_validator(mode="after")
    def _none_has_no_step(self) -> "OuterConfig":
        if self.kind == "none" and self.clip_norm is not None:
            raise ValueError(
                f"clip_norm={self.clip_norm:g} with kind='none', which takes no outer step; "
                "leave it out"
            )
        return self


class ElasticConfig(FrozenModel):
    """A round goes on without islands that died or are late, while ``quorum`` of them are there."""

    quorum: PositiveCount
    grace_s: PositiveSeconds = Field(
        default=5.0, description="longest wait for a late island once the first is ready"
    )
    grace_factor: Positive = Field(
        default=4.0,
        description="adaptive: so many times the usual spread of arrival, at most grace_s",
    )
    late: Literal["rebase", "adopt"] = Field(
        default="rebase",
        description="what a late island does with the steps that missed the round: carry them "
        "over onto the merged parameters, or drop them",
    )


PlannedPhase = Literal["inner_step", "ready", "reduce", "commit", "checkpoint"]


class PlannedFault(FrozenModel):
    """A fault that an island does to itself, to see what becomes of the run; never judged."""

    island: Count
    at: PlannedPhase
    round: Count | None = Field(default=None, description="merge in which, unless at inner_step")
    step: PositiveCount | None = Field(default=None, description="inner step, at inner_step only")
    do: Literal["kill", "freeze"]
    freeze_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _complete(self) -> "PlannedFault":
        by_step = self.at == "inner_step"
        if by_step != (self.step is not None) or by_step == (self.round is not None):
            raise ValueError(
                f"at={self.at!r} with round={self.round}, step={self.step}; give step exactly for "
                "inner_step, else round"
            )
        if (self.do == "freeze") != (self.freeze_s is not None):
            raise ValueError(
                f"do={self.do!r} with freeze_s={self.freeze_s}; give freeze_s exactly for freeze"
            )
        return self


class IslandsConfig(FrozenModel):
    """K learner islands; each is one Ray actor."""

    count: Members
    model: AnyModelConfig
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
    replicas: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1,
        description="processes of one island that average their gradients at every step, one for "
        "each of its GPUs (give num_gpus as many); each takes batch_size windows of its own",
    )
    shards: PositiveCount | None = Field(
        default=None,
        description="disjoint parts of the text; null: one for each island. More leave room for "
        "islands that join",
    )
    elastic: ElasticConfig | None = Field(
        default=None, description="null: the loss of an island ends the run"
    )
    faults: tuple[PlannedFault, ...] = ()

    @model_validator(mode="after")
    def _members(self) -> "IslandsConfig":
        if self.shards is not None and self.shards < self.count:
            raise ValueError(
                f"shards={self.shards} is below count={self.count}; every island needs its own part"
            )
        if self.elastic is not None and self.elastic.quorum > self.count:
            raise ValueError(
                f"elastic.quorum={self.elastic.quorum} is above count={self.count}; no round could "
                "ever be merged"
            )
        for i, fault in enumerate(self.faults):
            if fault.island >= self.count:
                raise ValueError(
                    f"faults[{i}].island={fault.island}, but the islands are 0..{self.count - 1}"
                )
        return self


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
    """The merge window: real work (all-reduce, codec, outer step, checkpoint), then fill.

    ``fragments``: a merge takes one of so many equal parts of the parameters, in turn, and
    ``overlap_steps`` (tau) lets training go on for so many inner steps between the moment when an
    island's part is measured and the moment when the merged one is taken over (Streaming DiLoCo,
    arXiv:2501.18512, section 2). The local part keeps ``overlap_mixing`` of itself then (alpha).
    """

    window_s: PositiveSeconds
    fill: FillConfig
    codec: Literal["fp32", "bf16", "int8"] = Field(
        default="fp32", description="what goes over the network; int8 is blockwise, with feedback"
    )
    transport: Literal["auto", "shared_memory", "network"] = Field(
        default="auto",
        description="auto: shared memory where all islands are on one host, on CPUs, in fp32",
    )
    fragments: Annotated[int, Field(ge=1, le=1000)] = 1
    overlap_steps: Count = 0
    overlap_mixing: Fraction = 0.5
    outer_on: Literal["device", "host"] = Field(
        default="device",
        description="where a GPU island keeps what is global; host: its memory is free of it, Gloo "
        "carries the merge, and buckets are copied while others are on their way",
    )
    checkpoint: bool = True
    checkpoint_content: Literal["model", "full"] = Field(
        default="model", description="full: all that a run needs to go on to the bit"
    )
    checkpoint_every_merges: PositiveCount = 1
    checkpoint_keep: PositiveCount = 1
    checkpoint_in_background: bool = Field(
        default=False, description="written while training goes on; it still ends before the next"
    )
    timeout_s: PositiveSeconds = 30.0  # a peer that does not answer within this is lost

    @property
    def leaves_islands_equal(self) -> bool:
        """A merge takes all parameters over as they are: every island has the same ones then."""
        return self.fragments == 1 and self.overlap_steps == 0

    @model_validator(mode="after")
    def _codec_needs_a_network(self) -> "MergeConfig":
        if self.transport == "shared_memory" and self.codec != "fp32":
            raise ValueError(
                f"codec={self.codec!r} with transport='shared_memory', over which nothing is sent; "
                "leave the codec at fp32, or choose transport: network"
            )
        return self


ISLANDS = "islands"  # engine.model: the islands' own architecture, from a folder of their weights
BYTE_LEVEL_VOCAB = 260  # 256 bytes and the tokenizer's 4 special tokens


def check_servable(model: AnyModelConfig) -> None:
    """ValueError for islands whose model no server could take."""
    if isinstance(model, HfModelConfig):
        raise ValueError(
            f"engine.model: {ISLANDS} with islands.model.kind='hf': only the byte-level model is "
            "exported for a server; serve the folder itself (engine.model: its path), no refresh"
        )
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
