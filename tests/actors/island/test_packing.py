"""Packed documents: a window of several is worth what they are worth alone, in both models."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor

from actors.config import HfModelConfig, ModelConfig
from actors.island.language_model import IGNORED, LanguageModel, labels_of, positions_in, visible
from actors.island.model import build_model
from tests.actors.island.tiny_hf import VOCABULARY, write_tiny_gpt2, write_tiny_llama

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),  # another library's own
]

SMALL = ModelConfig(hidden_size=32, layers=2, heads=4, kv_heads=2, ffn_size=48)
LENGTH = 24
DOCUMENTS = torch.tensor(
    [
        [0] * 5 + [1] * 3 + [2] + [3] * 16,  # a document of one token has no label
        [0] * 25,
        [0] * 24 + [1],
        [0] + [1] * 24,
    ],
    dtype=torch.int32,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf")
    write_tiny_llama(folder / "llama")
    write_tiny_gpt2(folder / "gpt2")
    return folder


MODELS = ("bytes", "llama", "llama bf16", "llama checkpointed", "gpt2")


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, folders: Path) -> LanguageModel:
    torch.set_num_threads(1)
    if request.param == "bytes":
        return build_model(SMALL, seed=0, max_len_tokens=LENGTH)
    config = HfModelConfig(
        kind="hf",
        path=str(folders / request.param.split()[0]),
        dtype="bfloat16" if request.param == "llama bf16" else "float32",
        activation_checkpointing=request.param == "llama checkpointed",
    )
    return build_model(config, seed=0, max_len_tokens=LENGTH)


@pytest.fixture(scope="module")
def close(model: LanguageModel) -> float:
    """Relative rounding of the model's numbers."""
    return 2e-2 if next(model.parameters()).dtype == torch.bfloat16 else 1e-4


def window(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, DOCUMENTS.shape, generator=generator)


def runs(row: Tensor) -> list[tuple[int, int]]:
    """First and one after the last token of each document of a window."""
    ends = [i for i in range(1, len(row)) if row[i] != row[i - 1]]
    return list(zip([0, *ends], [*ends, len(row)], strict=True))


def test_a_packed_loss_is_the_token_weighted_mean_of_its_documents_alone(
    model: LanguageModel, close: float
) -> None:
    tokens = window()
    total, labels = 0.0, 0
    with torch.no_grad():
        for row, documents in zip(tokens, DOCUMENTS, strict=True):
            for first, last in runs(documents):
                if last - first > 1:
                    total += model.loss(row[None, first:last]).item() * (last - first - 1)
                    labels += last - first - 1
        packed = model.loss(tokens, DOCUMENTS).item()
        crossing = model.loss(tokens).item()
    assert labels == 24 * 4 - 5  # one label less for each boundary
    assert packed == pytest.approx(total / labels, rel=close)
    assert packed != pytest.approx(crossing, rel=1e-6)


def test_one_document_in_each_window_is_no_packing(model: LanguageModel, close: float) -> None:
    tokens = window()
    with torch.no_grad():
        packed = model.loss(tokens, torch.zeros_like(DOCUMENTS)).item()
        assert packed == pytest.approx(model.loss(tokens).item(), rel=close)


def test_no_token_of_another_document_is_seen(model: LanguageModel) -> None:
    tokens = window()[:1]
    changed = tokens.clone()
    changed[:, :5] = (changed[:, :5] + 7) % VOCABULARY
    documents = DOCUMENTS[:1]
    with torch.no_grad():
        first, second = (model(w[:, :-1], documents[:, :-1]) for w in (tokens, changed))
    assert torch.equal(first[:, 5:], second[:, 5:])
    assert not torch.equal(first[:, :5], second[:, :5])


def test_gradients_are_those_of_the_documents_alone(model: LanguageModel, close: float) -> None:
    tokens, documents = window()[:1], DOCUMENTS[:1]
    model.zero_grad(set_to_none=True)
    model.loss(tokens, documents).backward()
    packed = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    spans = [(a, b) for a, b in runs(documents[0]) if b - a > 1]
    labels = sum(b - a - 1 for a, b in spans)
    for a, b in spans:
        share = model.loss(tokens[:, a:b]) * ((b - a - 1) / labels)
        share.backward()
    alone = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    assert len(packed) == len(alone) == len(list(model.parameters()))
    for a_grad, p_grad in zip(alone, packed, strict=True):
        scale = a_grad.float().norm().item()
        assert (a_grad.float() - p_grad.float()).norm().item() <= 5 * close * scale


def test_a_window_without_labels_is_worth_nothing(model: LanguageModel) -> None:
    documents = torch.arange(DOCUMENTS.shape[1], dtype=torch.int32)[None]
    with torch.no_grad():
        assert model.loss(window()[:1], documents).item() == 0.0


def test_labels_positions_and_sight_of_a_packed_window() -> None:
    documents = torch.tensor([[0, 0, 1, 1, 1]])
    tokens = torch.tensor([[7, 8, 9, 10, 11]])
    assert labels_of(tokens, documents).tolist() == [[8, IGNORED, 10, 11]]
    assert labels_of(tokens, None).tolist() == [[8, 9, 10, 11]]
    assert positions_in(documents).tolist() == [[0, 1, 0, 1, 2]]
    assert visible(documents)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
