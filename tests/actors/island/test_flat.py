"""Parameters as one vector: views, masters, gaps, and models at the edge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
from torch import nn

from actors.island.flat import ALIGN_NUMBERS, FlatParameters, cut

pytestmark = pytest.mark.torch


def zeros(numbers: int) -> torch.Tensor:
    return torch.zeros(numbers)


def test_a_parameter_is_a_view_of_the_vector() -> None:
    layer = nn.Linear(3, 5)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    flat = FlatParameters(layer, make=zeros)
    assert not flat.rounds_to_model
    assert flat.numbers == 32
    assert torch.equal(flat.vector[:15].view(5, 3), weight)
    assert torch.equal(flat.vector[16:21], bias)
    layer(torch.ones(2, 3)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=1.0).step()
    assert torch.equal(flat.vector[16:21], bias - 2.0)
    flat.vector[:15] = 7.0
    assert (layer.weight == 7.0).all()
    assert layer.weight.is_leaf
    assert layer.weight.requires_grad


def test_gaps_stay_zero_while_an_optimizer_steps() -> None:
    layer = nn.Linear(3, 5)
    flat = FlatParameters(layer, make=zeros)
    adamw = torch.optim.AdamW(flat.masters, lr=0.1, fused=True)
    for _ in range(3):
        layer(torch.ones(2, 3)).square().sum().backward()
        adamw.step()
        adamw.zero_grad()
    assert flat.vector[15].item() == 0.0
    assert not flat.vector[21:].any()
    assert flat.vector[:15].all()


def test_every_parameter_begins_at_a_cache_line() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1), nn.Linear(1, 40))
    flat = FlatParameters(model, make=zeros)
    base = flat.vector.data_ptr()
    offsets = [(p.data_ptr() - base) % (4 * ALIGN_NUMBERS) for p in model.parameters()]
    assert offsets == [0] * 6
    assert flat.numbers % ALIGN_NUMBERS == 0


def test_a_model_with_nothing_to_train_is_refused_by_name() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    for model in (frozen, nn.Identity()):
        with pytest.raises(ValueError, match="no trainable parameter"):
            FlatParameters(model, make=zeros)


def test_frozen_parameters_and_buffers_keep_their_own_memory() -> None:
    linear, norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
    linear.weight.requires_grad_(False)
    frozen = linear.weight.data_ptr()
    model = nn.Sequential(linear, norm)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    flat = FlatParameters(model, make=zeros)
    assert flat.names == ["0.bias", "1.weight", "1.bias"]
    flat.vector.fill_(3.0)
    assert linear.weight.data_ptr() == frozen
    assert not (linear.weight == 3.0).any()
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])


def test_a_bfloat16_model_has_float32_masters_that_are_rounded_into_it() -> None:
    layer = nn.Linear(3, 5).to(torch.bfloat16)
    flat = FlatParameters(layer, make=zeros)
    assert flat.rounds_to_model
    assert torch.equal(flat.masters[0], layer.weight.float())
    layer(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    flat.grads_to_masters()
    assert layer.bias.grad is None
    bias = flat.masters[1]
    assert bias.grad is not None
    assert bias.grad.dtype == torch.float32
    assert bias.grad.tolist() == [2.0] * 5
    before = layer.bias.detach().clone()
    flat.vector.add_(1.0)
    assert torch.equal(layer.bias, before)
    flat.to_model(first=0, last=16)  # the weight alone
    assert torch.equal(layer.bias, before)
    assert torch.equal(layer.weight, flat.masters[0].to(torch.bfloat16))
    flat.to_model(first=20, last=21)  # cuts into the bias, which is taken whole
    assert torch.equal(layer.bias, flat.masters[1].to(torch.bfloat16))
    named = flat.named(flat.vector)
    assert named["weight"].dtype == torch.bfloat16
    assert named["weight"].shape == (5, 3)


def test_a_mixed_model_copies_only_what_is_rounded() -> None:
    model = nn.Sequential(nn.Linear(3, 3).to(torch.bfloat16), nn.LayerNorm(3))
    flat = FlatParameters(model, make=zeros)
    same = [m is p for m, p in zip(flat.masters, flat.parameters, strict=True)]
    assert same == [False, False, True, True]


@given(numbers=st.integers(0, 3000), parts=st.integers(1, 40), scale=st.sampled_from([1, 16, 64]))
def test_cuts_are_disjoint_whole_and_even(numbers: int, parts: int, scale: int) -> None:
    numbers *= scale
    found = [cut(numbers, parts=parts, index=index) for index in range(parts)]
    assert [first for first, _ in found] == [0, *(last for _, last in found)][:-1]
    assert found[-1][1] == numbers
    lengths = [last - first for first, last in found]
    assert min(lengths) >= 0
    assert max(lengths) <= numbers / parts + 2 * ALIGN_NUMBERS
    assert all(first % ALIGN_NUMBERS == 0 or first == numbers for first, _ in found)


def test_the_maker_is_asked_once_for_all() -> None:
    asked: list[int] = []

    def counted(numbers: int) -> torch.Tensor:
        asked.append(numbers)
        return torch.zeros(numbers)

    FlatParameters(nn.Linear(100, 3), make=counted)
    assert asked == [304 + 16]
