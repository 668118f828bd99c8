"""Small decoder-only byte-level language model in the Llama shape.

Weights depend on the seed alone: drawn on the CPU from a local generator, never the global one.
"""

import math
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor, nn
from torch.nn import functional

from actors.config import AnyModelConfig, HfModelConfig, ModelConfig
from actors.island.data.text import BYTE_VALUES
from actors.island.language_model import LanguageModel, labels_of, mean_loss, visible
from policies.streams import stream

if TYPE_CHECKING:
    from actors.island.hf_model import HfLM

_INIT_STD = 0.02


class Linear(nn.Module):
    """Bias-free; unlike nn.Linear it draws nothing from the global generator when built."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def rope_table(head_size: int, *, length: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles (RoFormer, arXiv:2104.09864).  # [length, head]"""
    rates = theta ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rates)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    """Causal attention; kv_heads < heads share keys and values (GQA, arXiv:2305.13245)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.head_size = config.hidden_size // config.heads
        self.query = Linear(config.hidden_size, self.heads * self.head_size)
        self.key = Linear(config.hidden_size, self.kv_heads * self.head_size)
        self.value = Linear(config.hidden_size, self.kv_heads * self.head_size)
        self.out = Linear(self.heads * self.head_size, config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            project(x).view(batch, length, heads, self.head_size).transpose(1, 2)
            for project, heads in (
                (self.query, self.heads),
                (self.key, self.kv_heads),
                (self.value, self.kv_heads),
            )
        )  # [batch, head, length, head_size]
        mixed = functional.scaled_dot_product_attention(
            _rotate(query, cos, sin),
            _rotate(key, cos, sin),
            value,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
        projected: Tensor = self.out(mixed)
        return projected


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Linear(config.hidden_size, config.ffn_size)
        self.up = Linear(config.hidden_size, config.ffn_size)
        self.down = Linear(config.ffn_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return projected


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.hidden_size)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class ByteLM(LanguageModel):
    """Next-byte model; ``forward`` gives logits, ``loss`` the mean cross-entropy in nats."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, *, max_len_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size)
        self.head = Linear(config.hidden_size, config.vocab_size)
        if config.tie_embeddings:
            self.head.weight = self.embedding
        cos, sin = rope_table(
            config.hidden_size // config.heads, length=max_len_tokens, theta=config.rope_theta
        )
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        x = functional.embedding(tokens, self.embedding)  # [batch, length, hidden]
        # Rotary positions tell distances alone, so they need not begin anew in a document.
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        mask = None if documents is None else visible(documents)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def loss(self, window: Tensor, documents: Tensor | None = None) -> Tensor:
        if documents is None:
            logits = self(window[:, :-1])
            return functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        logits = self(window[:, :-1], documents[:, :-1])
        return mean_loss(logits, labels_of(window, documents))


@overload
def build_model(config: ModelConfig, *, seed: int, max_len_tokens: int) -> ByteLM: ...


@overload
def build_model(config: HfModelConfig, *, seed: int, max_len_tokens: int) -> "HfLM": ...


def build_model(config: AnyModelConfig, *, seed: int, max_len_tokens: int) -> LanguageModel:
    """The model on the CPU; what is random in its weights depends on ``seed`` alone."""
    if isinstance(config, HfModelConfig):
        from actors.island.hf_model import build_hf_model  # loads transformers

        return build_hf_model(config, seed=seed, max_len_tokens=max_len_tokens)
    return _build_byte_model(config, seed=seed, max_len_tokens=max_len_tokens)


def _build_byte_model(config: ModelConfig, *, seed: int, max_len_tokens: int) -> ByteLM:
    _check(config)
    model = ByteLM(config, max_len_tokens=max_len_tokens)
    generator = torch.Generator().manual_seed(int(stream(seed, "weights").integers(2**63)))
    # Projections back into the residual stream shrink with depth, as in GPT-2.
    residual_std = _INIT_STD / math.sqrt(2 * config.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue  # norms start at one
            std = residual_std if name.endswith(("out.weight", "down.weight")) else _INIT_STD
            parameter.normal_(0.0, std, generator=generator)
    return model


def _check(config: ModelConfig) -> None:
    if config.vocab_size < BYTE_VALUES:
        raise ValueError(
            f"model.vocab_size={config.vocab_size} cannot hold the {BYTE_VALUES} byte values; "
            f"give at least {BYTE_VALUES}"
        )
    if (config.hidden_size // config.heads) % 2:
        raise ValueError(
            f"model: hidden_size={config.hidden_size} over heads={config.heads} gives an odd head "
            "size, which rotary positions cannot split; choose an even one"
        )


def parameter_count(model: nn.Module) -> int:
    """Trainable numbers; tied weights count once."""
    return sum(parameter.numel() for parameter in model.parameters())
