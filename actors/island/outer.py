"""DiLoCo outer optimizer: pseudo-gradient = global - local, then Nesterov SGD (arXiv:2311.08105).

    delta_i = global - local_i                            one island, float32
    delta   = sum_i weight_i * delta_i                    by the communicator, between the two calls
    buffer  = momentum * buffer + delta
    global  = global - lr * (delta + momentum * buffer)   torch.optim.SGD(nesterov=True)

Parameters only: buffers (running statistics, counters) stay as they are on each island.
"""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from actors.config import OuterConfig


class OuterStep:
    """Global parameters and momentum in flat float32 vectors, updated in place.

    ``measure`` leaves this island's weighted share in ``delta``; the caller sums ``delta`` over
    the islands in place; ``apply`` moves the global parameters and loads them into the model.
    Until ``apply`` nothing but ``delta`` changes, so a lost peer leaves the island as it was.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], config: OuterConfig) -> None:
        # A tied weight met twice would count twice in the norm and move twice.
        self._parameters = list({id(p): p for p in parameters}.values())
        self._config = config
        flat = torch.cat([p.detach().float().flatten() for p in self._parameters])
        self.anchor = flat.clone()
        self.buffer = torch.zeros_like(flat)
        self.delta = torch.zeros_like(flat)
        self._anchor_parts = self._parts(self.anchor)
        self._delta_parts = self._parts(self.delta)

    def _parts(self, flat: Tensor) -> list[Tensor]:
        sizes = [p.numel() for p in self._parameters]
        views = torch.split(flat, sizes)
        return [view.view_as(p) for view, p in zip(views, self._parameters, strict=True)]

    @torch.no_grad()
    def measure(self, *, weight: float) -> None:
        """delta <- weight * (global - local)."""
        for delta, anchor, parameter in zip(
            self._delta_parts, self._anchor_parts, self._parameters, strict=True
        ):
            torch.sub(anchor, parameter, out=delta)
        self.delta.mul_(weight)

    @torch.no_grad()
    def apply(self, *, alone: bool) -> float:
        """One outer step on the summed ``delta``; returns the norm of the mean pseudo-gradient."""
        lr, momentum = self._config.lr, self._config.momentum
        norm = float(self.delta.norm())
        if alone and lr == 1.0 and momentum == 0.0:
            # global - (global - local) is local, but for a rounding error that we need not make.
            for anchor, parameter in zip(self._anchor_parts, self._parameters, strict=True):
                anchor.copy_(parameter)
            return norm
        self.buffer.mul_(momentum).add_(self.delta)
        self.anchor.add_(self.delta.add_(self.buffer, alpha=momentum), alpha=-lr)
        for anchor, parameter in zip(self._anchor_parts, self._parameters, strict=True):
            parameter.copy_(anchor)
        return norm


def token_weight(tokens: list[int], *, rank: int) -> float:
    """Share of ``rank`` in the mean; equal shares when nobody has trained since the last merge."""
    total = sum(tokens)
    return tokens[rank] / total if total else 1.0 / len(tokens)


def parameter_hash(model: nn.Module) -> str:
    """SHA-256 over name, type, shape and raw bytes of each parameter; tied weights once."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name}:{parameter.dtype}:{tuple(parameter.shape)};".encode())
        # Through uint8, because numpy has no bfloat16.
        raw = parameter.detach().contiguous().flatten().view(torch.uint8).cpu()
        digest.update(raw.numpy().data)
    return digest.hexdigest()
