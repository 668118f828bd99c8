"""What can be known of an islands' model before torch is loaded: its folder and its vocabulary."""

import json
from pathlib import Path
from typing import Any

from actors.brief import in_words
from actors.config import AnyModelConfig, HfModelConfig

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")  # what transformers loads


def model_folder(config: HfModelConfig) -> Path:
    """The Hugging Face folder; ValueError when it is none."""
    folder = Path(config.path).expanduser().resolve()
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"model.path={config.path!r}: {folder} holds no config.json; give a folder on this "
            "machine's disk that save_pretrained wrote (nothing is downloaded)"
        )
    return folder


def check_weights(config: AnyModelConfig) -> None:
    """ValueError for a folder without a file of weights, where they are to be loaded."""
    if not isinstance(config, HfModelConfig) or config.from_scratch:
        return
    folder = model_folder(config)
    found = (file for pattern in _WEIGHTS for file in folder.glob(pattern))
    if not any(file.is_file() and file.stat().st_size > 0 for file in found):
        raise ValueError(
            f"model.path={config.path!r}: {folder} holds no weights ({' or '.join(_WEIGHTS)}); "
            "give a folder that save_pretrained wrote, or from_scratch: true"
        )


def vocabulary_of(config: AnyModelConfig) -> int:
    """Token ids that the model knows: 0 .. vocabulary - 1."""
    if not isinstance(config, HfModelConfig):
        return config.vocab_size
    path = model_folder(config) / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = in_words(error)
        raise ValueError(f"{path}: cannot be read ({why}); save the model again") from error
    size = _size_in(found)
    if size is None:
        raise ValueError(f"{path}: says no vocab_size; add it, or save the model again")
    return size


def check_vocabulary(model: AnyModelConfig, *, tokens: int) -> None:
    """ValueError when the tokenizer has ids that the model has no row for."""
    known = vocabulary_of(model)
    if tokens > known:
        raise ValueError(
            f"data.tokenizer has a vocabulary of {tokens}, the model one of {known}; give the "
            "model's own tokenizer, or a model with at least as many"
        )


def _size_in(found: Any) -> int | None:
    """Models of several kinds of input keep their language model's numbers apart."""
    if not isinstance(found, dict):
        return None
    for place in (found, found.get("text_config")):
        size = place.get("vocab_size") if isinstance(place, dict) else None
        if isinstance(size, int) and not isinstance(size, bool):
            return size
    return None
