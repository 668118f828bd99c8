"""How a vector goes over the network: as it is, in bfloat16, or in int8 by blocks.

int8: each block of 256 numbers is divided by its largest magnitude / 127 and rounded; the block's
factor travels as a float32 in front (4.06 bytes become 1.02 a number). What was rounded away is
kept and added to the next round's vector (error feedback: Seide et al. 2014; arXiv:1901.09847,
algorithm 1), so that it is late and never lost.
"""

from typing import Literal, assert_never

import torch
from torch import Tensor

BLOCK_NUMBERS = 256
_LEVELS = 127
_FACTOR_BYTES = 4

CodecName = Literal["fp32", "bf16", "int8"]


def encoded_bytes(codec: CodecName, numbers: int) -> int:
    """Length of what ``encode`` gives for so many numbers."""
    match codec:
        case "fp32":
            return 4 * numbers
        case "bf16":
            return 2 * numbers
        case "int8":
            return _blocks(numbers) * _FACTOR_BYTES + numbers
        case _:
            assert_never(codec)


@torch.no_grad()
def encode(codec: CodecName, vector: Tensor, *, out: Tensor) -> None:
    """Bytes of ``vector`` (float32 [numbers]) into ``out`` (uint8 [encoded_bytes])."""
    match codec:
        case "fp32":
            out.copy_(vector.view(torch.uint8))
        case "bf16":
            out.copy_(vector.to(torch.bfloat16).view(torch.uint8))
        case "int8":
            _encode_blocks(vector, out)
        case _:
            assert_never(codec)


@torch.no_grad()
def decode(codec: CodecName, encoded: Tensor, *, out: Tensor) -> None:
    """The numbers that ``encode`` wrote, into ``out`` (float32 [numbers])."""
    match codec:
        case "fp32":
            out.view(torch.uint8).copy_(encoded)
        case "bf16":
            # Through a copy: a slice of bytes need not begin at an even address.
            out.copy_(encoded.clone().view(torch.bfloat16))
        case "int8":
            _decode_blocks(encoded, out)
        case _:
            assert_never(codec)


def _encode_blocks(vector: Tensor, out: Tensor) -> None:
    numbers = vector.numel()
    blocks = _blocks(numbers)
    factors = torch.empty(blocks, device=vector.device)
    whole = numbers // BLOCK_NUMBERS * BLOCK_NUMBERS
    codes = out[blocks * _FACTOR_BYTES :].view(torch.int8)
    for first, last in ((0, whole), (whole, numbers)):
        if first == last:
            continue
        part = vector[first:last].view(-1, min(BLOCK_NUMBERS, last - first))
        factor = part.abs().amax(dim=1, keepdim=True) / _LEVELS  # [block, 1]
        factors[first // BLOCK_NUMBERS : _blocks(last)] = factor[:, 0]
        # A block of zeros has factor 0: whatever divides it, its codes are 0.
        divisor = torch.where(factor == 0, torch.ones_like(factor), factor)
        # Clamped: the factor of a block of denormal numbers may have been rounded down.
        level = (part / divisor).round_().clamp_(-_LEVELS, _LEVELS)
        codes[first:last] = level.to(torch.int8).flatten()
    out[: blocks * _FACTOR_BYTES].copy_(factors.view(torch.uint8))


def _decode_blocks(encoded: Tensor, out: Tensor) -> None:
    numbers = out.numel()
    blocks = _blocks(numbers)
    factors = encoded[: blocks * _FACTOR_BYTES].clone().view(torch.float32)
    codes = encoded[blocks * _FACTOR_BYTES :].view(torch.int8)
    whole = numbers // BLOCK_NUMBERS * BLOCK_NUMBERS
    for first, last in ((0, whole), (whole, numbers)):
        if first == last:
            continue
        part = codes[first:last].view(-1, min(BLOCK_NUMBERS, last - first))
        factor = factors[first // BLOCK_NUMBERS : _blocks(last), None]
        out[first:last] = (part * factor).flatten()


def _blocks(numbers: int) -> int:
    return -(-numbers // BLOCK_NUMBERS)


class Feedback:
    """What rounding took away from the vectors of earlier rounds; ``vector`` [numbers] float32.

    A round writes its own remainder beside, and ``commit`` puts it in place: a round that is
    aborted leaves everything as it was.
    """

    def __init__(self, like: Tensor) -> None:
        self.vector = torch.zeros_like(like)
        self._next = torch.zeros_like(like)

    def begin(self, owed: Tensor | None) -> None:
        """What is owed at the start; None: nothing."""
        if owed is None:
            self.vector.zero_()
        else:
            self.vector.copy_(owed)

    def send(self, codec: CodecName, vector: Tensor, *, at: int, out: Tensor) -> float:
        """Encode ``vector`` plus what is owed from [at, at + numbers); returns the squared error.

        ``vector`` holds afterwards what a receiver decodes.
        """
        owed = slice(at, at + vector.numel())
        vector.add_(self.vector[owed])
        encode(codec, vector, out=out)
        rest = self._next[owed]
        rest.copy_(vector)
        decode(codec, out, out=vector)
        rest.sub_(vector)
        return float(torch.dot(rest, rest))

    def add(self, rest: Tensor, *, at: int) -> None:
        """More that is owed from this round: what the sum lost when it was sent back."""
        self._next[at : at + rest.numel()].add_(rest)

    def commit(self, first: int, last: int) -> None:
        """This round's remainders are the owed ones now, in [first, last)."""
        self.vector[first:last].copy_(self._next[first:last])
