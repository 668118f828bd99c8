"""The built model: files that vLLM's loaders read, the same bytes for the same seed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from actors.serving.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models"), max_model_len_tokens=1024)


def test_building_again_returns_the_same_folder_untouched(model: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    assert build_tiny_model(model.parent, max_model_len_tokens=1024) == model
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before
    assert list(model.parent.iterdir()) == [model]  # no half-written folder beside it


def test_another_seed_or_length_is_another_folder(model: Path, tmp_path: Path) -> None:
    other_seed = build_tiny_model(tmp_path, max_model_len_tokens=1024, seed=1)
    longer = build_tiny_model(tmp_path, max_model_len_tokens=2048)
    assert len({model.name, other_seed.name, longer.name}) == 3


def test_the_same_seed_gives_the_same_bytes_elsewhere(model: Path, tmp_path: Path) -> None:
    assert build_tiny_model(tmp_path, max_model_len_tokens=1024).name == model.name


def test_a_damaged_model_is_refused_by_name(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path, max_model_len_tokens=64)
    (model / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"config\.json is missing or differs"):
        build_tiny_model(tmp_path, max_model_len_tokens=64)


def test_weights_have_the_shapes_of_the_config(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    weights = load_file(model / "model.safetensors")
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "lm_head.weight": (config["vocab_size"], hidden),
        "model.layers.3.self_attn.q_proj.weight": (hidden, hidden),
        "model.layers.3.self_attn.k_proj.weight": (kv, hidden),
        "model.layers.3.mlp.down_proj.weight": (hidden, ffn),
        "model.norm.weight": (hidden,),
    }
    assert {name: weights[name].shape for name in shapes} == shapes
    assert len(weights) == 3 + 9 * config["num_hidden_layers"]
    assert all(w.dtype == np.float32 and np.isfinite(w).all() for w in weights.values())
    assert 2.5e6 < sum(w.size for w in weights.values()) < 3.5e6


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@settings(max_examples=50)
@given(st.text())
def test_every_text_is_its_bytes(tokenizer: Tokenizer, text: str) -> None:
    plain = text.replace("<", "(")  # a text may spell a special token
    ids = tokenizer.encode(plain).ids
    assert ids == list(plain.encode())
    assert tokenizer.decode(ids) == plain


def test_special_tokens_follow_the_bytes(model: Path, tokenizer: Tokenizer) -> None:
    config = json.loads((model / "config.json").read_text())
    assert tokenizer.get_vocab_size() == config["vocab_size"] == 260
    assert tokenizer.token_to_id("<eos>") == config["eos_token_id"]


def test_building_imports_neither_torch_nor_transformers(checkout: Path) -> None:
    code = (
        "import sys, actors.serving.tiny_model, actors.serving.sidecar;"
        "sys.exit(len({'torch', 'transformers', 'vllm', 'ray'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=checkout, check=False).returncode == 0
