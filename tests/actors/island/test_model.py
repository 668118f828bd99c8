"""The byte-level model: shape, seeded weights, and that it can learn."""

import pytest

pytest.importorskip("torch")

import torch

from actors.config import ModelConfig
from actors.island.model import build_model, parameter_count
from actors.island.outer import parameter_hash

pytestmark = pytest.mark.torch

SMALL = ModelConfig(hidden_size=32, layers=2, heads=4, kv_heads=2, ffn_size=48)


def test_weights_depend_on_the_seed_and_leave_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = (build_model(SMALL, seed=s, max_len_tokens=16) for s in (1, 1, 2))
    assert parameter_hash(first) == parameter_hash(again) != parameter_hash(other)
    torch.manual_seed(99)
    assert parameter_hash(build_model(SMALL, seed=1, max_len_tokens=16)) == parameter_hash(first)
    torch.set_rng_state(state)
    build_model(SMALL, seed=1, max_len_tokens=16)
    assert torch.equal(torch.get_rng_state(), state)


def test_tied_embedding_counts_once() -> None:
    tied = parameter_count(build_model(SMALL, seed=0, max_len_tokens=16))
    untied_config = SMALL.model_copy(update={"tie_embeddings": False})
    untied = parameter_count(build_model(untied_config, seed=0, max_len_tokens=16))
    attention = 32 * 32 * 2 + 32 * 16 * 2
    assert tied == 260 * 32 + 2 * (attention + 3 * 32 * 48 + 2 * 32) + 32
    assert untied - tied == 260 * 32


def test_a_token_sees_itself_and_its_past_only() -> None:
    model = build_model(SMALL, seed=0, max_len_tokens=16)
    tokens = torch.arange(16)[None, :]
    changed = tokens.clone()
    changed[0, 10] = 200
    difference = (model(tokens) - model(changed)).abs().amax(dim=-1)[0]
    assert torch.all(difference[:10] == 0)
    assert torch.all(difference[10:] > 0)


def test_positions_matter() -> None:
    model = build_model(SMALL, seed=0, max_len_tokens=16)
    logits = model(torch.tensor([[65, 66, 67], [66, 65, 67]]))[:, -1]
    assert not torch.allclose(logits[0], logits[1])


def test_first_loss_is_that_of_a_uniform_guess() -> None:
    model = build_model(SMALL, seed=0, max_len_tokens=64)
    window = torch.randint(0, 256, (8, 65), generator=torch.Generator().manual_seed(0))
    assert model.loss(window).item() == pytest.approx(torch.tensor(260.0).log().item(), abs=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 255}, "vocab_size=255"),
        ({"hidden_size": 12, "heads": 4, "kv_heads": 2}, "odd head size"),
    ],
)
def test_shapes_that_cannot_work_are_refused(changes: dict[str, int], message: str) -> None:
    config = ModelConfig(**(SMALL.model_dump() | changes))
    with pytest.raises(ValueError, match=message):
        build_model(config, seed=0, max_len_tokens=16)
