"""The outer step against its references and in its limits."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from actors.config import OuterConfig
from actors.island.outer import OuterStep, parameter_hash, token_weight

pytestmark = pytest.mark.torch

ROUNDS = 5


class Team:
    """K islands with one parameter vector each, merged in this process."""

    def __init__(self, start: Sequence[float], *, islands: int, config: OuterConfig) -> None:
        self.locals = [
            nn.Parameter(torch.tensor(start, dtype=torch.float32)) for _ in range(islands)
        ]
        self.outers = [OuterStep([local], config) for local in self.locals]

    def merge(self, weights: Sequence[float]) -> float:
        for outer, weight in zip(self.outers, weights, strict=True):
            outer.measure(weight=weight)
        total = torch.stack([outer.delta for outer in self.outers]).sum(0)
        norms = set()
        for outer in self.outers:
            outer.delta.copy_(total)
            norms.add(outer.apply(alone=len(self.outers) == 1))
        assert len(norms) == 1
        return norms.pop()

    def train(self, move: Callable[[int, torch.Tensor], torch.Tensor]) -> None:
        with torch.no_grad():
            for i, local in enumerate(self.locals):
                local.copy_(move(i, local))

    def values(self) -> np.ndarray:
        first, *others = [local.detach().numpy().copy() for local in self.locals]
        assert all(np.array_equal(first, other) for other in others)
        return np.asarray(first)


def drift(round_: int, island: int) -> np.ndarray:
    return np.random.default_rng([round_, island]).normal(size=7).astype(np.float32)


def drifted(round_: int, island: int, x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(drift(round_, island))


def test_five_rounds_equal_the_numpy_reference() -> None:
    config, weights = OuterConfig(lr=0.7, momentum=0.9), (0.5, 0.3, 0.2)
    start = np.linspace(-1, 1, 7)
    team = Team(start.tolist(), islands=3, config=config)
    expected, buffer = start.copy(), np.zeros(7)
    for round_ in range(ROUNDS):
        team.train(partial(drifted, round_))
        norm = team.merge(weights)
        delta = sum(w * -drift(round_, i).astype(float) for i, w in enumerate(weights))
        buffer = 0.9 * buffer + delta
        expected = expected - 0.7 * (delta + 0.9 * buffer)
        assert norm == pytest.approx(float(np.linalg.norm(delta)), rel=1e-5)
        np.testing.assert_allclose(team.values(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_five_rounds_equal_torch_sgd(momentum: float) -> None:
    config = OuterConfig(lr=0.7, momentum=momentum)
    start = [0.3, -0.2, 0.5, 1.0, -2.0, 0.0, 4.0]
    team = Team(start, islands=2, config=config)
    reference = nn.Parameter(torch.tensor(start))
    sgd = torch.optim.SGD([reference], lr=config.lr, momentum=momentum, nesterov=momentum > 0)
    for round_ in range(ROUNDS):
        team.train(partial(drifted, round_))
        mean = sum(0.5 * (reference.detach() - local.detach()) for local in team.locals)
        reference.grad = torch.as_tensor(mean)
        sgd.step()
        team.merge((0.5, 0.5))
        np.testing.assert_allclose(team.values(), reference.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_rate_one_without_momentum_is_the_weighted_mean() -> None:
    team = Team([1.0, 2.0], islands=2, config=OuterConfig(lr=1.0, momentum=0.0))
    targets = torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    team.train(lambda i, _x: targets[i])
    team.merge((0.75, 0.25))
    np.testing.assert_allclose(team.values(), [3.0, 2.0], rtol=1e-6)


def test_equal_islands_average_to_themselves() -> None:
    team = Team([1.0, -3.0], islands=3, config=OuterConfig(lr=1.0, momentum=0.0))
    team.train(lambda _, x: x * 1.01)
    team.merge((0.2, 0.3, 0.5))
    np.testing.assert_allclose(team.values(), [1.01, -3.03], rtol=1e-6)


def test_one_island_at_rate_one_keeps_its_parameters_to_the_bit() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e-3
    team = Team([0.02] * 1000, islands=1, config=OuterConfig(lr=1.0, momentum=0.0))
    team.train(lambda _i, _x: values)
    team.merge((1.0,))
    assert np.array_equal(team.values(), values.numpy())
    assert torch.equal(team.outers[0].anchor, values)


def test_convex_toy_falls_and_reaches_the_mean_of_the_islands_minima() -> None:
    """Island i minimises (x - minimum_i)^2; a wrong sign of the pseudo-gradient would climb."""
    minima = torch.tensor([[1.0, 5.0], [3.0, -1.0], [2.0, 2.0]])
    team = Team([10.0, -10.0], islands=3, config=OuterConfig(lr=0.7, momentum=0.5))
    best = minima.mean(0)

    def distance() -> float:
        return float(np.linalg.norm(team.values() - best.numpy()))

    distances = [distance()]
    for _ in range(40):
        team.train(lambda i, x: x - 0.2 * (x - minima[i]))
        team.merge((1 / 3, 1 / 3, 1 / 3))
        distances.append(distance())
    assert distances[1] < distances[0]
    assert distances[-1] < 0.01 * distances[0]


class TiedWithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.ones(5, 3))
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding
        self.norm = nn.BatchNorm1d(3)


def test_tied_weights_move_once_and_buffers_stay_untouched() -> None:
    model = TiedWithBatchNorm()
    # state_dict names the tied weight twice, and a careless caller hands it over twice.
    twice = [*model.parameters(), model.embedding]
    outer = OuterStep(twice, OuterConfig(lr=0.5, momentum=0.0))
    assert outer.anchor.numel() == 5 * 3 + 3 + 3
    with torch.no_grad():
        model.embedding.add_(1.0)
    model.norm(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outer.measure(weight=1.0)
    assert outer.apply(alone=False) == pytest.approx(15**0.5)  # not 30
    assert torch.allclose(model.head.weight, torch.full((5, 3), 1.5))
    assert buffers["norm.num_batches_tracked"].item() == 1
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name])


def test_nothing_moves_before_apply() -> None:
    team = Team([1.0, 2.0], islands=1, config=OuterConfig())
    team.train(lambda _, x: x + 1)
    outer = team.outers[0]
    outer.measure(weight=0.5)
    assert outer.anchor.tolist() == [1.0, 2.0]
    assert outer.buffer.tolist() == [0.0, 0.0]
    assert team.values().tolist() == [2.0, 3.0]


def test_a_bfloat16_model_follows_float32_globals() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    outer = OuterStep([parameter], OuterConfig(lr=0.5, momentum=0.0))
    with torch.no_grad():
        parameter.add_(1.0)
    outer.measure(weight=1.0)
    outer.apply(alone=False)
    assert outer.anchor.dtype == torch.float32
    assert outer.anchor.tolist() == [1.5, 2.5]
    assert parameter.tolist() == [1.5, 2.5]


def test_token_weights_are_shares_and_equal_when_nobody_trained() -> None:
    assert [token_weight([300, 100], rank=rank) for rank in (0, 1)] == [0.75, 0.25]
    assert token_weight([0, 0, 0], rank=2) == pytest.approx(1 / 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hash_sees_one_changed_bit(dtype: torch.dtype) -> None:
    layer = nn.Linear(4, 4).to(dtype)
    before = parameter_hash(layer)
    assert parameter_hash(layer) == before
    with torch.no_grad():
        layer.weight[0, 0] = torch.nextafter(layer.weight[0, 0], torch.tensor(9.0, dtype=dtype))
    assert parameter_hash(layer) != before
