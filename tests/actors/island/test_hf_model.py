"""Hugging Face folders as islands' models: the stored weights, or the seed's; nothing else runs."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from actors.config import HfModelConfig
from actors.island.hf_model import HfLM, build_hf_model
from actors.island.outer import parameter_hash
from tests.actors.island.tiny_hf import (
    POSITIONS,
    VOCABULARY,
    change_config,
    write_tiny_bert,
    write_tiny_llama,
)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),  # another library's own
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "llama")


def built(folder: Path, *, seed: int = 0, length: int = 16, **changes: Any) -> HfLM:
    config = HfModelConfig(kind="hf", path=str(folder), **changes)
    return build_hf_model(config, seed=seed, max_len_tokens=length)


def window(length: int = 17) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, VOCABULARY, (3, length), generator=generator)


def test_stored_weights_are_loaded_under_their_names_whatever_the_seed(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    model = built(folder, seed=5)
    found = {n.removeprefix("network."): p for n, p in model.named_parameters()}
    assert set(found) == set(stored)
    assert all(torch.equal(found[name], stored[name]) for name in stored)
    assert all(p.requires_grad for p in model.parameters())
    assert parameter_hash(model) == parameter_hash(built(folder, seed=6))


def test_the_loss_is_that_of_transformers(folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        theirs = model(input_ids=window(), labels=window()).loss.item()
        assert built(folder).loss(window()).item() == pytest.approx(theirs, rel=1e-5)


def test_from_scratch_the_weights_are_those_of_the_seed(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    state = torch.get_rng_state()
    first, again, other = (built(folder, seed=s, from_scratch=True) for s in (1, 1, 2))
    assert parameter_hash(first) == parameter_hash(again) != parameter_hash(other)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert parameter_hash(built(folder, seed=1, from_scratch=True)) == parameter_hash(first)


@pytest.mark.parametrize("from_scratch", [False, True])
def test_bf16_is_the_same_model_rounded(folder: Path, from_scratch: bool) -> None:
    model = built(folder, dtype="bfloat16", from_scratch=from_scratch)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    loss = model.loss(window())
    assert loss.dtype == torch.float32
    if not from_scratch:
        full = built(folder).loss(window()).item()
        assert loss.item() == pytest.approx(full, rel=2e-2)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_activation_checkpointing_gives_the_same_loss_and_gradients(folder: Path) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = built(folder, activation_checkpointing=checkpointing)
        model.loss(window()).backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert plain is not None
        assert checkpointed is not None
        assert torch.allclose(plain, checkpointed, rtol=1e-5, atol=1e-7)


def test_compile_is_asked_for_and_changes_no_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def compile_(call: Any, *_: Any, **__: Any) -> Any:
        compiled.append(call)
        return call

    monkeypatch.setattr(torch, "compile", compile_)
    plain, model = built(folder), built(folder, compile=True)
    assert len(compiled) == 1
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in plain.named_parameters()]
    with torch.no_grad():
        assert model.loss(window()).item() == plain.loss(window()).item()


def test_dropout_is_off(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "llama", attention_dropout=0.5)
    model = built(folder)
    assert model.training
    with torch.no_grad():
        assert model.loss(window()).item() == model.loss(window()).item()


def test_no_code_of_the_folder_runs(folder: Path) -> None:
    marker = folder / "ran"
    (folder / "modeling_own.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    auto_map = {
        "AutoConfig": "modeling_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnModel",
    }
    change_config(folder, auto_map=auto_map)
    assert built(folder).loss(window()).isfinite()
    change_config(folder, model_type="own_llama")
    with pytest.raises(ValueError, match=r"llama': no causal language model can be made of it \("):
        built(folder)
    assert not marker.exists()


def test_missing_weights_are_refused_by_name(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    del stored["model.layers.1.mlp.up_proj.weight"]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"no weights for model\.layers\.1\.mlp\.up_proj\.weight"):
        built(folder)


def test_tied_weights_are_none_that_are_missing(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "llama", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    model = built(folder)
    assert model.network.lm_head.weight is model.network.model.embed_tokens.weight


def test_damaged_and_foreign_folders_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"no causal language model can be made of it") as raised:
        built(folder)
    assert "\n" not in str(raised.value)
    weights.unlink()
    with pytest.raises(ValueError, match=r"no causal language model can be made of it"):
        built(folder)
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        built(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ValueError, match=r"no causal language model can be made of it"):
        built(other)


def test_a_quantized_folder_is_refused(folder: Path) -> None:
    change_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ValueError, match="its weights are quantized"):
        built(folder)


def test_more_positions_than_the_model_has_are_refused(folder: Path) -> None:
    built(folder, length=POSITIONS)
    with pytest.raises(ValueError, match=r"takes 48 positions .*, seq_len_tokens=49 is above it"):
        built(folder, length=POSITIONS + 1)


def test_a_model_that_mixes_packed_documents_is_refused(folder: Path) -> None:
    model = built(folder)
    forward = model.network.forward
    documents = torch.zeros_like(window(), dtype=torch.int32)
    documents[:, 9:] = 1
    for mixing, said in (
        (lambda input_ids, **_: forward(input_ids=input_ids), "moves its logits by"),
        (lambda input_ids: forward(input_ids=input_ids), "takes no position_ids"),
    ):
        model.network.forward = mixing
        with pytest.raises(ValueError, match=rf"LlamaForCausalLM cannot keep .*{said}"):
            model.loss(window(), documents)
        assert model.loss(window()).isfinite()  # a stream needs no such thing
    model.network.forward = forward
    assert model.loss(window(), documents).isfinite()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("from_scratch", [False, True])
def test_a_model_that_sees_later_tokens_is_refused(
    tmp_path: Path, dtype: str, from_scratch: bool
) -> None:
    folder = write_tiny_bert(tmp_path / "bert")
    change_config(folder, initializer_range=0.02)  # fresh weights: little attention
    with pytest.raises(ValueError, match=r"BertLMHeadModel is not causal .* is_decoder: true"):
        built(folder, dtype=dtype, from_scratch=from_scratch)
    change_config(folder, is_decoder=True)
    model = built(folder, dtype=dtype, from_scratch=from_scratch)
    assert model(window()).isfinite().all()
    assert {str(p.dtype) for p in model.parameters()} == {f"torch.{dtype}"}


def test_another_library_s_message_is_cut_between_words(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="no causal language model can be made of it") as caught:
        built(folder)
    assert len(str(caught.value)) < 600
