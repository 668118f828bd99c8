"""What is known of a model before torch is loaded: its vocabulary against the tokenizer's."""

import json
from pathlib import Path
from typing import Any

import pytest

from actors.config import HfModelConfig, ModelConfig
from actors.island.model_folder import check_vocabulary, check_weights, vocabulary_of

TINY = ModelConfig(hidden_size=16, layers=1, heads=2, kv_heads=1, ffn_size=24)


def stored(folder: Path, config: dict[str, Any]) -> HfModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return HfModelConfig(kind="hf", path=str(folder))


def test_a_vocabulary_is_read_from_the_config(tmp_path: Path) -> None:
    assert vocabulary_of(TINY) == 260
    assert vocabulary_of(stored(tmp_path, {"vocab_size": 77})) == 77
    assert vocabulary_of(stored(tmp_path, {"text_config": {"vocab_size": 78}})) == 78


def test_a_tokenizer_with_more_ids_than_the_model_is_refused_with_both_numbers(
    tmp_path: Path,
) -> None:
    model = stored(tmp_path, {"vocab_size": 301})
    check_vocabulary(model, tokens=301)
    with pytest.raises(ValueError, match="a vocabulary of 302, the model one of 301"):
        check_vocabulary(model, tokens=302)
    with pytest.raises(ValueError, match="a vocabulary of 261, the model one of 260"):
        check_vocabulary(TINY, tokens=261)


def test_folders_that_say_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        vocabulary_of(HfModelConfig(kind="hf", path=str(tmp_path)))
    with pytest.raises(ValueError, match=r"config\.json: says no vocab_size"):
        vocabulary_of(stored(tmp_path, {"hidden_size": 4}))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: cannot be read"):
        vocabulary_of(HfModelConfig(kind="hf", path=str(tmp_path)))


def test_a_folder_without_weights_is_for_random_ones_alone(tmp_path: Path) -> None:
    model = stored(tmp_path, {"vocab_size": 301})
    check_weights(model.model_copy(update={"from_scratch": True}))
    check_weights(TINY)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"holds no weights .* or from_scratch: true"):
        check_weights(model)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"x")
    check_weights(model)
