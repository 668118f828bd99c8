"""Exported weights are the islands' model to whoever loads them, and there whole or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file

from actors.config import ModelConfig
from actors.island.export import export_checkpoint, export_initial, llama_name
from actors.island.model import ByteLM, build_model
from actors.island.state_file import DiskFull
from actors.serving.exported import INITIAL_ROUND, read_exported
from actors.serving.llama_folder import WEIGHTS

pytestmark = pytest.mark.torch

SMALL = ModelConfig(hidden_size=32, layers=2, heads=4, kv_heads=2, ffn_size=48, rope_theta=500.0)


def drawn(config: ModelConfig, *, seed: int = 0) -> ByteLM:
    """Weights like trained ones: norms that are not one, logits that differ clearly."""
    model = build_model(config, seed=seed, max_len_tokens=48)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model


def export(model: ByteLM, config: ModelConfig, folder: Path, *, round_: int = 0) -> Path:
    tensors = dict(model.named_parameters())
    return export_checkpoint(tensors, config, folder, round_=round_, max_len_tokens=64)


@pytest.mark.filterwarnings("default")  # another library's own
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "head of its own"])
def test_transformers_gives_the_same_logits(tmp_path: Path, tied: bool) -> None:
    transformers: Any = pytest.importorskip("transformers")
    config = SMALL.model_copy(update={"tie_embeddings": tied})
    model = drawn(config)
    folder = export(model, config, tmp_path)
    loaded = transformers.LlamaForCausalLM.from_pretrained(str(folder)).float().eval()
    tokens = torch.randint(0, 260, (3, 48), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        ours, theirs = model(tokens), loaded(tokens).logits
    assert ours.abs().max() > 0.5  # or the tolerance below says nothing
    assert torch.allclose(theirs, ours, rtol=0, atol=5e-5)  # a wrong name or turn: above 0.1


def test_the_probe_is_what_the_model_says_after_the_prompt(tmp_path: Path) -> None:
    model = drawn(SMALL)
    probe = read_exported(export(model, SMALL, tmp_path)).probe
    longer = build_model(SMALL, seed=0, max_len_tokens=64)
    longer.load_state_dict(model.state_dict())
    with torch.no_grad():
        logits = longer(torch.tensor([probe.prompt]))[0, -1]
    expected = torch.log_softmax(logits, dim=-1)
    assert len(probe.prompt) == 63
    assert torch.allclose(torch.tensor(probe.logprobs), expected, rtol=0, atol=1e-5)


def test_every_parameter_is_stored_to_the_bit_and_the_tied_head_written_out(
    tmp_path: Path,
) -> None:
    model = drawn(SMALL)
    folder = export(model, SMALL, tmp_path)
    stored = load_file(folder / WEIGHTS)
    for name, parameter in model.named_parameters():
        assert torch.equal(stored.pop(llama_name(name)), parameter)
    assert set(stored) == {"lm_head.weight"}
    assert torch.equal(stored["lm_head.weight"], model.embedding)
    assert read_exported(folder).config["tie_word_embeddings"] is False


def test_narrow_weights_stay_narrow(tmp_path: Path) -> None:
    model = drawn(SMALL).to(torch.bfloat16)
    found = read_exported(export(model, SMALL, tmp_path))
    assert {dtype for dtype, _ in found.tensors.values()} == {"BF16"}
    assert found.config["torch_dtype"] == "bfloat16"


def test_parameters_that_are_parts_of_one_vector_are_exported_too(tmp_path: Path) -> None:
    parameters = dict(drawn(SMALL).named_parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters.values()])
    sizes = [p.numel() for p in parameters.values()]
    parts = dict(zip(parameters, torch.split(flat, sizes), strict=True))
    views = {name: part.view_as(parameters[name]) for name, part in parts.items()}
    folder = export_checkpoint(views, SMALL, tmp_path, round_=0, max_len_tokens=64)
    stored = load_file(folder / WEIGHTS)
    assert torch.equal(stored["model.norm.weight"], parameters["norm.weight"])


def test_the_newest_rounds_stay_and_those_of_a_run_that_was_cut_off_go(tmp_path: Path) -> None:
    model = drawn(SMALL)
    (tmp_path / "mine").mkdir()
    (tmp_path / ".round-00002-left").mkdir()
    initial = export(model, SMALL, tmp_path, round_=INITIAL_ROUND)
    for round_ in (1, 2, 3):
        export(model, SMALL, tmp_path, round_=round_)
    kept = {"mine", initial.name, "round-00002", "round-00003"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    export(model, SMALL, tmp_path, round_=2)  # resumed from the merge before
    assert {path.name for path in tmp_path.iterdir()} == kept - {"round-00003"}


def test_initial_weights_are_those_of_the_seed(tmp_path: Path) -> None:
    folder = export_initial(SMALL, tmp_path, seed=3, max_len_tokens=64)
    stored = load_file(folder / WEIGHTS)
    for name, parameter in build_model(SMALL, seed=3, max_len_tokens=16).named_parameters():
        assert torch.equal(stored[llama_name(name)], parameter)
    assert read_exported(folder).round == INITIAL_ROUND


def test_tensors_of_another_model_are_refused(tmp_path: Path) -> None:
    tensors = dict(drawn(SMALL).named_parameters())
    deeper = SMALL.model_copy(update={"layers": 3})
    small = SMALL.model_copy(update={"vocab_size": 256})
    mixed = tensors | {"norm.weight": tensors["norm.weight"].double()}
    cases: tuple[tuple[Mapping[str, torch.Tensor], ModelConfig, str], ...] = (
        (tensors, deeper, r"model\.layers\.2\.\S+: shape missing"),
        (tensors | {"cos": torch.ones(2)}, SMALL, "cos is no parameter"),
        (tensors, small, "vocab_size=256 is below 260"),
        (mixed, SMALL, r"weights of types \['float32', 'float64'\]"),
    )
    for given, config, why in cases:
        with pytest.raises(ValueError, match=why):
            export_checkpoint(given, config, tmp_path, round_=0, max_len_tokens=64)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_not_exported(tmp_path: Path) -> None:
    model = drawn(SMALL)
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        export(model, SMALL, tmp_path)


def test_a_full_disk_has_a_name_and_leaves_the_old_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = drawn(SMALL)
    export(model, SMALL, tmp_path, round_=1)

    def full(_tensors: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("actors.island.export.save_file", full)
    with pytest.raises(DiskFull, match=r"round-00002: no space left"):
        export(model, SMALL, tmp_path, round_=2)
    assert [path.name for path in tmp_path.iterdir()] == ["round-00001"]
