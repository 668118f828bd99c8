"""What goes over the network: lengths, errors, and blocks that are zero, tiny or not finite."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from actors.island.codecs import (
    BLOCK_NUMBERS,
    CodecName,
    Feedback,
    decode,
    encode,
    encoded_bytes,
)

pytestmark = pytest.mark.torch

CODECS: tuple[CodecName, ...] = ("fp32", "bf16", "int8")


def there_and_back(codec: CodecName, vector: torch.Tensor, *, at: int = 0) -> torch.Tensor:
    """Through bytes that begin ``at`` bytes behind an aligned address."""
    size = encoded_bytes(codec, vector.numel())
    wire = torch.zeros(at + size + 3, dtype=torch.uint8)
    encode(codec, vector, out=wire[at : at + size])
    assert not wire[:at].any()
    assert not wire[at + size :].any()
    got = torch.empty_like(vector)
    decode(codec, wire[at : at + size], out=got)
    return got


def test_lengths() -> None:
    assert encoded_bytes("fp32", 1000) == 4000
    assert encoded_bytes("bf16", 1000) == 2000
    assert encoded_bytes("int8", 1000) == 4 * 4 + 1000  # four blocks of 256, the last of 232
    assert [encoded_bytes(codec, 0) for codec in CODECS] == [0, 0, 0]


@settings(deadline=None)
@given(
    numbers=st.sampled_from([0, 1, 15, 255, 256, 257, 512, 700]),
    seed=st.integers(0, 10),
    at=st.integers(0, 5),
    exponent=st.integers(-30, 30),
)
def test_errors_are_bounded_number_by_number(
    numbers: int, seed: int, at: int, exponent: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(numbers, generator=generator) * 2.0**exponent
    assert torch.equal(there_and_back("fp32", vector, at=at), vector)
    rounded = there_and_back("bf16", vector, at=at)
    assert torch.equal(rounded, vector.to(torch.bfloat16).float())
    assert ((rounded - vector).abs() <= 2.0**-8 * vector.abs()).all()
    blocks = there_and_back("int8", vector, at=at)
    for first in range(0, numbers, BLOCK_NUMBERS):
        block = slice(first, first + BLOCK_NUMBERS)
        half_step = float(vector[block].abs().max()) / 127 / 2
        assert float((blocks[block] - vector[block]).abs().max()) <= half_step * (1 + 1e-4)


def test_relative_error_of_random_numbers_is_what_the_widths_promise() -> None:
    vector = torch.randn(100_000, generator=torch.Generator().manual_seed(0))

    def error(codec: CodecName) -> float:
        return float((there_and_back(codec, vector) - vector).norm() / vector.norm())

    assert error("fp32") == 0.0
    assert 0.5e-3 < error("bf16") < 2.0**-9
    # A step is the largest of 256 (about 3 sigma) / 127; rounding to it errs by step / sqrt(12).
    assert error("int8") == pytest.approx(3.0 / 127 / math.sqrt(12), rel=0.1)


def test_zeros_stay_zeros_and_the_largest_of_a_block_comes_back() -> None:
    vector = torch.zeros(600)
    assert torch.equal(there_and_back("int8", vector), vector)
    vector[300] = -3.5
    got = there_and_back("int8", vector)
    assert float(got[300]) == pytest.approx(-3.5, rel=1e-6)
    assert int((got != 0).sum()) == 1


@given(st.lists(st.integers(-400, 400), min_size=1, max_size=300))
def test_denormal_numbers_keep_their_sign(multiples: list[int]) -> None:
    """A factor that was rounded down must not make a code wrap around."""
    vector = torch.from_numpy(np.array(multiples, dtype=np.float32) * np.float32(2.0**-149))
    got = there_and_back("int8", vector)
    assert (got * vector.sign() >= 0).all()
    assert float((got - vector).abs().max()) <= float(vector.abs().max())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    vector = torch.ones(10)
    vector[3] = bad
    for codec in CODECS:
        assert not torch.isfinite(there_and_back(codec, vector)).all()


def test_feedback_gives_back_what_was_rounded_away_after_the_commit_only() -> None:
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(500, generator=generator)
    feedback = Feedback(torch.zeros(1000))
    wire = torch.empty(encoded_bytes("int8", 500), dtype=torch.uint8)
    sent = vector.clone()
    error = feedback.send("int8", sent, at=400, out=wire)
    rest = vector - sent
    assert error == pytest.approx(float(rest.square().sum()), rel=1e-4)
    assert not feedback.vector.any()  # the round may still be aborted
    feedback.commit(400, 900)
    assert torch.equal(feedback.vector[400:900], rest)
    assert not feedback.vector[:400].any()
    again = torch.zeros(500)
    feedback.send("int8", again, at=400, out=wire)
    assert float((again - rest).abs().max()) <= float(rest.abs().max()) / 127
    feedback.begin(None)
    assert not feedback.vector.any()
