"""The inner optimizer: its rate by tokens, its state out and in, masters of rounded models."""

import math

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from actors.config import InnerConfig, LrScheduleConfig
from actors.island.flat import FlatParameters
from actors.island.inner import InnerOptimizer, learning_rate

pytestmark = pytest.mark.torch


def rates(kind: str, tokens: list[int], **changes: float) -> list[float]:
    fields: dict[str, object] = {"kind": kind, "warmup_tokens": 99, **changes}
    config = InnerConfig(lr=0.4, schedule=LrScheduleConfig(**fields))  # type: ignore[arg-type]
    return [learning_rate(config, n) for n in tokens]


def test_warmup_rises_linearly_and_the_first_step_does_something() -> None:
    told = rates("constant", [0, 49, 98, 99, 10**9])
    assert told == pytest.approx([0.004, 0.2, 0.396, 0.4, 0.4])


def test_linear_falls_to_its_floor_and_stays() -> None:
    told = rates("linear", [99, 599, 1099, 5000], total_tokens=1099, final_fraction=0.1)
    assert told == pytest.approx([0.4, 0.22, 0.04, 0.04])


def test_cosine_falls_slowly_fast_slowly() -> None:
    told = rates("cosine", [99, 349, 599, 1099, 9999], total_tokens=1099, final_fraction=0.0)
    quarter = 0.5 * (1 + math.cos(math.pi / 4))
    assert told == pytest.approx([0.4, 0.4 * quarter, 0.2, 0.0, 0.0])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "linear"}, "without total_tokens"),
        ({"kind": "constant", "total_tokens": 5}, "which has no end"),
        ({"kind": "cosine", "total_tokens": 5, "warmup_tokens": 5}, "not above warmup_tokens"),
    ],
)
def test_schedules_without_sense_are_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LrScheduleConfig(**fields)  # type: ignore[arg-type]


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)
        self.to(dtype)

    def loss(self, seed: int) -> torch.Tensor:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        y: torch.Tensor = self.norm(self.layer(x.to(self.layer.weight.dtype)))
        return (y.float() - x[:, :3]).square().mean()


def made(
    config: InnerConfig, dtype: torch.dtype = torch.float32
) -> tuple[Net, FlatParameters, InnerOptimizer]:
    net = Net(dtype)
    flat = FlatParameters(net, make=lambda n: torch.zeros(n))
    return net, flat, InnerOptimizer(flat, config)


def test_it_is_adamw_on_the_plain_model_to_the_bit() -> None:
    config = InnerConfig(lr=0.01, weight_decay=0.2, clip_norm=0.5)
    net, flat, inner = made(config)
    plain = Net()
    matrices = [p for p in plain.parameters() if p.ndim >= 2]
    vectors = [p for p in plain.parameters() if p.ndim < 2]
    adamw = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.2}, {"params": vectors, "weight_decay": 0.0}],
        lr=0.01,
        betas=(0.9, 0.95),
        fused=True,
    )
    for step in range(5):
        assert inner.step(net.loss(step), tokens=step) == 0.01
        plain.loss(step).backward()
        nn.utils.clip_grad_norm_(list(plain.parameters()), 0.5)
        adamw.step()
        adamw.zero_grad()
    for name, parameter in plain.named_parameters():
        assert torch.equal(flat.named(flat.vector)[name], parameter)
    assert all(p.grad is None for p in net.parameters())


def test_state_goes_out_and_in_to_the_bit() -> None:
    config = InnerConfig(lr=0.01)
    net, source, inner = made(config)
    for step in range(3):
        inner.step(net.loss(step), tokens=step)
    stored = {name: tensor.clone() for name, tensor in inner.tensors().items()}
    assert {name.split(".")[1] for name in stored} == {"step", "exp_avg", "exp_avg_sq"}
    other, flat, again = made(config)
    flat.vector.copy_(source.vector)
    again.load(stored)
    for step in range(3, 6):
        inner.step(net.loss(step), tokens=step)
        again.step(other.loss(step), tokens=step)
    for name, tensor in inner.tensors().items():
        assert torch.equal(again.tensors()[name], tensor)
    for left, right in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right)
    again.load({})  # as before the first step
    assert again.tensors() == {}


def test_a_rounded_model_learns_from_steps_too_small_for_it() -> None:
    net, flat, inner = made(InnerConfig(lr=1e-4, weight_decay=0.0), torch.bfloat16)
    before = flat.vector.clone()
    weight = net.layer.weight.detach().clone()
    for step in range(4):
        inner.step(net.loss(step), tokens=step)
        assert torch.equal(net.layer.weight, flat.masters[0].to(torch.bfloat16))
        assert all(p.grad is None for p in (*net.parameters(), *flat.masters))
    moved = (flat.vector - before).abs()
    assert 1e-4 < float(moved.max()) < 5e-4
    assert (net.layer.weight == weight).any()  # where the rounding hides it
