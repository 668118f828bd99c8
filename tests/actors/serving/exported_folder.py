"""Folders of exported weights for tests, made without torch: drawn tensors, a drawn probe."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from actors.serving.exported import Probe, probe_prompt, round_folder, write_exported
from actors.serving.llama_folder import LlamaShape, tensor_shapes

SHAPE = LlamaShape(
    vocab_size=260,
    hidden_size=8,
    ffn_size=12,
    layers=1,
    heads=2,
    kv_heads=1,
    max_len_tokens=256,
)


def export(
    folder: Path, round_: int, *, shape: LlamaShape = SHAPE, seed: int | None = None
) -> Path:
    """What export_checkpoint writes; rounds differ from each other unless ``seed`` is the same."""
    rng = np.random.default_rng(round_ + 1 if seed is None else seed)
    weights = {
        name: rng.standard_normal(size).astype(np.float32)
        for name, size in tensor_shapes(shape).items()
    }
    logits = rng.standard_normal(shape.vocab_size)
    logprobs = logits - np.log(np.exp(logits).sum())
    probe = Probe(prompt=probe_prompt(shape.max_len_tokens), logprobs=tuple(logprobs.tolist()))
    target = round_folder(folder, round_)
    write_exported(target, shape, probe, round_=round_, save=lambda path: save_file(weights, path))
    return target
