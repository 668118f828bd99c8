"""A byte-level Llama with random weights, built on the spot: real vLLM without a download.

Written with numpy, safetensors and tokenizers alone, so that building it never imports torch.
"""

import hashlib
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from actors.config import BYTE_LEVEL_VOCAB
from actors.serving.llama_folder import (
    INIT_STD,
    WEIGHTS,
    LlamaShape,
    new_folder,
    tensor_shapes,
    text_files,
)


def build_tiny_model(folder: Path, *, max_model_len_tokens: int, seed: int = 0) -> Path:
    """Make `folder`/tiny-<content hash> unless it is there already; returns that folder."""
    if max_model_len_tokens < 1:
        raise ValueError(f"max_model_len_tokens={max_model_len_tokens} is below 1; give at least 1")
    files = _files(_shape(max_model_len_tokens), seed)
    target = folder / f"tiny-{_content_hash(files)}"
    if not target.exists():
        with new_folder(target, replace=False) as made:
            for name, data in files.items():
                (made / name).write_bytes(data)
    _check(target, files)
    return target


def _shape(max_len_tokens: int) -> LlamaShape:
    return LlamaShape(
        vocab_size=BYTE_LEVEL_VOCAB,
        hidden_size=256,
        ffn_size=704,
        layers=4,
        heads=8,
        kv_heads=4,
        max_len_tokens=max_len_tokens,
    )


def _files(shape: LlamaShape, seed: int) -> dict[str, bytes]:
    return text_files(shape) | {WEIGHTS: save(_weights(shape, seed), metadata={"format": "pt"})}


def _weights(shape: LlamaShape, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def drawn(size: tuple[int, ...]) -> np.ndarray:
        if len(size) == 1:
            return np.ones(size, dtype=np.float32)  # norms
        return (INIT_STD * rng.standard_normal(size)).astype(np.float32)

    return {name: drawn(size) for name, size in tensor_shapes(shape).items()}


def _content_hash(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name} {len(files[name])}\n".encode())
        digest.update(files[name])
    return digest.hexdigest()[:12]


def _check(target: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = target / name
        if not path.is_file() or path.read_bytes() != data:
            raise ValueError(
                f"{path} is missing or differs from what its folder's name promises; "
                f"delete {target} and start again"
            )
