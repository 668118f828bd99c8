"""Small decoder-only byte-level language model in the Llama shape.

Weights depend on the seed alone: drawn on the CPU from a local generator, never the global one.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from actors.config import ModelConfig
from actors.island.data import BYTE_VALUES
from policies.streams import stream

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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
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
            _rotate(query, cos, sin), _rotate(key, cos, sin), value, is_causal=True, enable_gqa=True
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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class ByteLM(nn.Module):
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

    def forward(self, tokens: Tensor) -> Tensor:
        x = functional.embedding(tokens, self.embedding)  # [batch, length, hidden]
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def loss(self, window: Tensor) -> Tensor:
        logits = self(window[:, :-1])  # window: [batch, length + 1]
        return functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


def build_model(config: ModelConfig, *, seed: int, max_len_tokens: int) -> ByteLM:
    """The model with the weights of ``seed``, in float32 on the CPU."""
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
