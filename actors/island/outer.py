"""DiLoCo's outer step on flat vectors: pseudo-gradient = global - local, then Nesterov SGD.

    delta  = sum_i weight_i * (global - local_i)                (arXiv:2311.08105, algorithm 1)
    buffer = momentum * buffer + scale * delta
    global = global - lr * (scale * delta + momentum * buffer)  torch.optim.SGD(nesterov=True)

``scale`` is below 1 where the norm of delta is above ``outer.clip_norm``. With ``kind: none`` the
new global parameters are the weighted mean of the islands itself.
"""

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from actors.config import OuterConfig

_CHUNK_NUMBERS = 128 * 1024  # two scratch vectors of it stay in a core's cache


def keeps_locals(config: OuterConfig, *, islands: int) -> bool:
    """One island, rate 1, no momentum: global - (global - local) is local but for a rounding."""
    if islands != 1 or config.clip_norm is not None:
        return False
    return config.kind == "none" or (config.lr == 1.0 and config.momentum == 0.0)


@torch.no_grad()
def merge_locals(
    config: OuterConfig,
    *,
    anchor: Tensor,
    buffer: Tensor,
    sources: Sequence[Tensor],
    weights: Sequence[float],
    scale: float,
    new_anchor: Tensor,
    new_buffer: Tensor,
) -> float:
    """Mean pseudo-gradient and outer step in one pass; returns delta's sum of squares.

    All vectors [numbers], float32; ``sources`` are the islands' parameters in rank order. Inputs
    stay as they are, so that it can be done again.
    """
    if keeps_locals(config, islands=len(sources)):
        new_anchor.copy_(sources[0])
        new_buffer.copy_(buffer)
        return _sum_squares_between(anchor, sources[0])
    squares = []
    delta, spare = _scratch(anchor), _scratch(anchor)
    for part in chunks(anchor):
        d, s = delta[: part.stop - part.start], spare[: part.stop - part.start]
        torch.sub(anchor[part], sources[0][part], out=d).mul_(weights[0])
        for source, weight in zip(sources[1:], weights[1:], strict=True):
            d.add_(torch.sub(anchor[part], source[part], out=s), alpha=weight)
        squares.append(torch.dot(d, d))
        if config.kind == "none":
            _mean(new_anchor[part], [source[part] for source in sources], weights, s)
            new_buffer[part].copy_(buffer[part])
            continue
        if scale != 1.0:
            d.mul_(scale)
        step(config, d, anchor[part], buffer[part], new_anchor[part], new_buffer[part])
    return _total(squares)


def step(
    config: OuterConfig,
    delta: Tensor,
    anchor: Tensor,
    buffer: Tensor,
    new_anchor: Tensor,
    new_buffer: Tensor,
) -> None:
    """One step from (anchor, buffer) to the new ones, which may be the same; delta is lost."""
    torch.mul(buffer, config.momentum, out=new_buffer).add_(delta)
    delta.add_(new_buffer, alpha=config.momentum)
    torch.sub(anchor, delta, alpha=config.lr, out=new_anchor)


def _mean(out: Tensor, parts: list[Tensor], weights: Sequence[float], spare: Tensor) -> None:
    torch.mul(parts[0], weights[0], out=spare)
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        spare.add_(part, alpha=weight)
    out.copy_(spare)


@torch.no_grad()
def sum_squares(vector: Tensor) -> float:
    """Chunk by chunk, so that float32 keeps its digits over many millions of numbers."""
    return _total([torch.dot(vector[part], vector[part]) for part in chunks(vector)])


def _sum_squares_between(left: Tensor, right: Tensor) -> float:
    spare = _scratch(left)
    squares = []
    for part in chunks(left):
        gap = torch.sub(left[part], right[part], out=spare[: part.stop - part.start])
        squares.append(torch.dot(gap, gap))
    return _total(squares)


def _total(squares: list[Tensor]) -> float:
    return float(torch.stack(squares).double().sum()) if squares else 0.0


def _scratch(like: Tensor) -> Tensor:
    return torch.empty(min(_chunk_numbers(like), like.numel()), device=like.device)


def chunks(vector: Tensor) -> Iterator[slice]:
    """Parts that stay in a core's cache between the passes over them; on a GPU large ones."""
    size = _chunk_numbers(vector)
    for first in range(0, vector.numel(), size):
        yield slice(first, min(first + size, vector.numel()))


def _chunk_numbers(vector: Tensor) -> int:
    # A GPU wants few and large launches.
    return _CHUNK_NUMBERS if vector.device.type == "cpu" else 64 * _CHUNK_NUMBERS


def parameter_hash(model: nn.Module) -> str:
    """SHA-256 over name, type, shape and raw bytes of each parameter; tied weights once."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name}:{parameter.dtype}:{tuple(parameter.shape)};".encode())
        # Through uint8, because numpy has no bfloat16.
        raw = parameter.detach().contiguous().flatten().view(torch.uint8).cpu()
        digest.update(raw.numpy().data)
    return digest.hexdigest()


def vector_hash(vector: Tensor) -> str:
    """SHA-256 over the raw bytes of a flat vector."""
    return hashlib.sha256(vector.contiguous().view(torch.uint8).cpu().numpy().data).hexdigest()
