"""A model's trainable parameters as one float32 vector, so that a merge is a pass over memory.

A float32 parameter is a view of the vector: no copy in a merge. A parameter of another type has
its float32 master there; ``to_model`` rounds the master into it.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

ALIGN_NUMBERS = 16  # every parameter begins at a cache line; the gaps stay zero


class FlatParameters:
    """``vector`` [numbers] float32 on the model's device; ``masters`` are what the optimizer steps.

    Tied weights stand there once. Frozen parameters and buffers do not stand there: nobody changes
    the former, and the latter (running statistics, counters) belong to the island alone.
    """

    def __init__(self, model: nn.Module, *, make: Callable[[int], Tensor]) -> None:
        """``make(numbers)`` gives the zeroed vector; ValueError when there is nothing to train."""
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        if not self.parameters:
            raise ValueError("the model has no trainable parameter; there is nothing to merge")
        self._ranges = _ranges([p.numel() for p in self.parameters])
        self.vector = make(self._ranges[-1][1])
        self.masters = [
            self._master(p, r) for p, r in zip(self.parameters, self._ranges, strict=True)
        ]

    @torch.no_grad()
    def _master(self, parameter: nn.Parameter, range_: tuple[int, int]) -> nn.Parameter:
        first, _ = range_
        view = self.vector[first : first + parameter.numel()].view(parameter.shape)
        view.copy_(parameter)
        if parameter.dtype != torch.float32:
            return nn.Parameter(view)
        parameter.data = view  # its own memory is free from here on
        return parameter

    @property
    def numbers(self) -> int:
        return self.vector.numel()

    @property
    def rounds_to_model(self) -> bool:
        """Some parameters are rounded copies of their masters."""
        return any(m is not p for m, p in zip(self.masters, self.parameters, strict=True))

    @torch.no_grad()
    def grads_to_masters(self) -> None:
        """Gradients of rounded parameters, in float32 on their masters; frees the former."""
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
                parameter.grad = None

    @torch.no_grad()
    def to_model(self, *, first: int = 0, last: int | None = None) -> None:
        """Round the masters that overlap [first, last) into the model."""
        end = self.numbers if last is None else last
        for master, parameter, (begins, ends) in zip(
            self.masters, self.parameters, self._ranges, strict=True
        ):
            if master is not parameter and begins < end and ends > first:
                parameter.copy_(master)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """``vector`` [numbers] as parameters by name, shaped and typed like the model's."""
        return {
            name: vector[first : first + p.numel()].view(p.shape).to(p.dtype)
            for name, p, (first, _) in zip(self.names, self.parameters, self._ranges, strict=True)
        }


def _ranges(sizes: list[int]) -> list[tuple[int, int]]:
    """[begins, ends) of each parameter with its gap; the ends are multiples of ALIGN_NUMBERS."""
    ranges, begins = [], 0
    for size in sizes:
        ends = begins + -(-size // ALIGN_NUMBERS) * ALIGN_NUMBERS
        ranges.append((begins, ends))
        begins = ends
    return ranges


def cut(numbers: int, *, parts: int, index: int) -> tuple[int, int]:
    """[first, last) of part ``index``: disjoint, together all, equal but for a cache line."""
    lines = -(-numbers // ALIGN_NUMBERS)
    first = lines * index // parts * ALIGN_NUMBERS
    last = lines * (index + 1) // parts * ALIGN_NUMBERS
    return min(first, numbers), min(last, numbers)
