"""The outer step against its references and in its limits, over both transports."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from actors.config import OuterConfig
from actors.coordinator.quorum import merge_weights
from actors.island.checkpoint import merged_tensors
from actors.island.outer import parameter_hash, vector_hash
from tests.actors.island.numpy_diloco import NumpyDiLoCo
from tests.actors.island.teams import TRANSPORTS, Team, Vectors

pytestmark = pytest.mark.torch

ROUNDS = 5
SIZE = 7  # of the islands' one parameter; the gap behind it, up to a cache line, stays zero
over_both = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def team_of(
    start: npt.ArrayLike, *, islands: int, config: OuterConfig, transport: str = "shared_memory"
) -> Team:
    sizes = [len(np.asarray(start))]
    models = [Vectors(start, sizes) for _ in range(islands)]
    return Team(models, config, transport=transport)


def values(team: Team) -> npt.NDArray[np.float32]:
    """Without the gap, which must be zero."""
    (parameter,) = team.flats[0].parameters
    whole = team.values()
    assert not whole[parameter.numel() :].any()
    return whole[: parameter.numel()]


def drift(round_: int, island: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng([round_, island]).normal(size=SIZE).astype(np.float32)


def drifted(round_: int, island: int, x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(drift(round_, island))


@over_both
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_five_rounds_equal_the_numpy_reference(transport: str, clip_norm: float | None) -> None:
    config = OuterConfig(lr=0.7, momentum=0.9, clip_norm=clip_norm)
    weights, start = (0.5, 0.3, 0.2), np.linspace(-1, 1, SIZE)
    team = team_of(start, islands=3, config=config, transport=transport)
    reference = NumpyDiLoCo(start, islands=3, lr=0.7, momentum=0.9)
    for round_ in range(ROUNDS):
        team.train(partial(drifted, round_))
        for island, local in enumerate(reference.locals):
            local += drift(round_, island)
        norm = team.merge(weights, round_=round_)
        expected = reference.merge(weights, clip_norm=np.inf if clip_norm is None else clip_norm)
        assert norm == pytest.approx(expected, rel=1e-5)  # before it is clipped
        assert norm > 0.5
        np.testing.assert_allclose(values(team), reference.anchor, rtol=1e-4, atol=1e-5)


@over_both
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_five_rounds_equal_torch_sgd(transport: str, momentum: float) -> None:
    config = OuterConfig(lr=0.7, momentum=momentum)
    start = [0.3, -0.2, 0.5, 1.0, -2.0, 0.0, 4.0]
    team = team_of(start, islands=2, config=config, transport=transport)
    reference = nn.Parameter(torch.tensor(start))
    sgd = torch.optim.SGD([reference], lr=config.lr, momentum=momentum, nesterov=momentum > 0)
    for round_ in range(ROUNDS):
        team.train(partial(drifted, round_))
        mean = torch.zeros(SIZE)
        for flat in team.flats:
            mean += 0.5 * (reference.detach() - flat.vector[:SIZE])
        reference.grad = mean
        sgd.step()
        team.merge((0.5, 0.5), round_=round_)
        expected = reference.detach().numpy()
        np.testing.assert_allclose(values(team), expected, rtol=1e-6, atol=1e-6)


@over_both
@pytest.mark.parametrize("config", [OuterConfig(lr=1.0, momentum=0.0), OuterConfig(kind="none")])
def test_rate_one_without_momentum_is_the_weighted_mean(
    transport: str, config: OuterConfig
) -> None:
    team = team_of([1.0, 2.0], islands=2, config=config, transport=transport)
    targets = torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    team.train(lambda i, _x: targets[i])
    team.merge((0.75, 0.25))
    np.testing.assert_allclose(values(team), [3.0, 2.0], rtol=1e-6)


@over_both
def test_equal_islands_average_to_themselves(transport: str) -> None:
    config = OuterConfig(lr=1.0, momentum=0.0)
    team = team_of([1.0, -3.0], islands=3, config=config, transport=transport)
    team.train(lambda _, x: x * 1.01)
    team.merge((0.2, 0.3, 0.5))
    np.testing.assert_allclose(values(team), [1.01, -3.03], rtol=1e-6)


@over_both
@pytest.mark.parametrize("config", [OuterConfig(lr=1.0, momentum=0.0), OuterConfig(kind="none")])
def test_one_island_at_rate_one_keeps_its_parameters_to_the_bit(
    transport: str, config: OuterConfig
) -> None:
    new = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e-3
    team = team_of([0.02] * 1000, islands=1, config=config, transport=transport)
    team.train(lambda _i, _x: new)
    team.merge((1.0,))
    assert np.array_equal(values(team), new.numpy())
    assert torch.equal(team.mergers[0].anchor()[:1000], new)


def test_without_an_outer_step_the_mean_is_exact_in_shared_memory_and_momentum_stays_zero() -> None:
    team = team_of([1e4, 1e4], islands=2, config=OuterConfig(kind="none"))
    # Through global - local the small one would lose most of its digits.
    targets = torch.tensor([[1e4, 1.0000001], [-1e4, 1.0000001]])
    team.train(lambda i, _x: targets[i])
    team.merge((0.5, 0.5))
    assert values(team).tolist() == [0.0, targets[0, 1].item()]
    assert not team.mergers[0].buffer().any()


@over_both
def test_convex_toy_falls_and_reaches_the_mean_of_the_islands_minima(transport: str) -> None:
    """Island i minimises (x - minimum_i)^2; a wrong sign of the pseudo-gradient would climb."""
    minima = torch.tensor([[1.0, 5.0], [3.0, -1.0], [2.0, 2.0]])
    config = OuterConfig(lr=0.7, momentum=0.5)
    team = team_of([10.0, -10.0], islands=3, config=config, transport=transport)
    best = minima.mean(0)

    def distance() -> float:
        return float(np.linalg.norm(values(team) - best.numpy()))

    distances = [distance()]
    for round_ in range(40):
        team.train(lambda i, x: x - 0.2 * (x - minima[i]))
        team.merge((1 / 3, 1 / 3, 1 / 3), round_=round_)
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


@over_both
def test_tied_weights_move_once_and_buffers_stay_untouched(transport: str) -> None:
    models = [TiedWithBatchNorm(), TiedWithBatchNorm()]
    team = Team(models, OuterConfig(lr=0.5, momentum=0.0), transport=transport)
    assert team.flats[0].names == ["embedding", "norm.weight", "norm.bias"]
    assert team.flats[0].numbers == 16 + 16 + 16  # 15, 3 and 3, each up to a cache line
    with torch.no_grad():
        for model in models:
            model.embedding.add_(1.0)
    for seed, model in enumerate(models):
        model.norm(torch.randn(8, 3, generator=torch.Generator().manual_seed(seed)))
    buffers = [{n: b.clone() for n, b in model.named_buffers()} for model in models]
    assert team.merge((0.5, 0.5)) == pytest.approx(15**0.5)  # not 30
    for model, before in zip(models, buffers, strict=True):
        assert model.head.weight is model.embedding
        assert torch.allclose(model.head.weight, torch.full((5, 3), 1.5))
        assert before["norm.num_batches_tracked"].item() == 1
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, before[name])
    assert not torch.equal(buffers[0]["norm.running_mean"], buffers[1]["norm.running_mean"])
    stored = merged_tensors(models[0], team.flats[0], team.mergers[0].anchor())
    assert list(stored) == ["embedding", "norm.weight", "norm.bias"]
    assert stored["embedding"].shape == (5, 3)


@over_both
def test_nothing_moves_before_the_commit_and_a_reduction_can_be_done_again(transport: str) -> None:
    team = team_of([1.0, 2.0], islands=2, config=OuterConfig(), transport=transport)
    team.train(lambda i, x: x + 1 + i)
    before = [team.vector(0), team.vector(1)]
    plan = team.plan((0.5, 0.5))
    first = team.reduce(plan)
    again = team.reduce(plan)
    for island, merger in enumerate(team.mergers):
        assert merger.anchor()[:2].tolist() == [1.0, 2.0]
        assert not merger.buffer().any()
        assert np.array_equal(team.vector(island), before[island])
    squares = [[work.sum_squares for work in works] for works in (first, again)]
    assert squares[0] == squares[1]
    team.each(lambda merger: merger.commit(plan, mixing=0.0))
    once = team_of([1.0, 2.0], islands=2, config=OuterConfig(), transport=transport)
    once.train(lambda i, x: x + 1 + i)
    once.merge((0.5, 0.5))
    assert np.array_equal(values(team), values(once))


@over_both
def test_a_bfloat16_model_follows_float32_masters(transport: str) -> None:
    start = np.full(SIZE, 1.0)
    models = [Vectors(start, [SIZE]).to(torch.bfloat16) for _ in range(2)]
    team = Team(models, OuterConfig(lr=1.0, momentum=0.0), transport=transport)
    small = 2.0**-10  # is lost in bfloat16 beside 1, and not in its master
    for round_ in range(6):
        team.train(lambda _i, x: x + small)
        team.merge((0.5, 0.5), round_=round_)
    assert values(team).dtype == np.float32
    np.testing.assert_array_equal(values(team), np.float32(1 + 6 * small))
    for model in models:
        assert model.parts[0].dtype == torch.bfloat16
        assert model.parts[0].tolist() == [1.0078125] * SIZE  # 1.005859375 rounded


def shares(tokens: Sequence[int], missed: Sequence[int], **config: Any) -> list[float]:
    return list(merge_weights(tokens, missed, OuterConfig(**config)))


def test_weights_are_shares_of_tokens_less_for_the_stale_and_equal_when_nobody_trained() -> None:
    assert shares([300, 100], [0, 0]) == [0.75, 0.25]
    assert shares([0, 0, 0], [0, 0, 0]) == pytest.approx([1 / 3] * 3)
    assert shares([200, 200], [0, 2], staleness_half_life_rounds=2.0) == pytest.approx(
        [2 / 3, 1 / 3]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hash_sees_one_changed_bit(dtype: torch.dtype) -> None:
    layer = nn.Linear(4, 4).to(dtype)
    before = parameter_hash(layer)
    assert parameter_hash(layer) == before
    with torch.no_grad():
        layer.weight[0, 0] = torch.nextafter(layer.weight[0, 0], torch.tensor(9.0, dtype=dtype))
    assert parameter_hash(layer) != before


def test_hash_of_a_vector_sees_one_changed_bit() -> None:
    vector = torch.linspace(0, 1, 100)
    before = vector_hash(vector)
    assert vector_hash(vector.clone()) == before
    vector[50] = torch.nextafter(vector[50], torch.tensor(9.0))
    assert vector_hash(vector) != before
