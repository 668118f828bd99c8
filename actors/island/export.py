"""The islands' weights as a Hugging Face Llama that transformers and vLLM load: train-to-serve.

The head is written out even where it is tied to the embedding. vLLM's CPU build packs the head for
its kernels once, and a reload in place would leave the packed copy of a tied one as it was.
"""

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.func import functional_call

from actors.config import ModelConfig, check_servable
from actors.island.model import ByteLM, build_model, rope_table
from actors.island.state_file import DiskFull
from actors.serving.exported import (
    INITIAL_ROUND,
    Probe,
    probe_prompt,
    round_folder,
    write_exported,
)
from actors.serving.llama_folder import LlamaShape, tensor_shapes

_OUTSIDE = {
    "embedding": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_INSIDE = {  # of a block: ours, Hugging Face's; both turn halves, and neither has biases
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}


def export_checkpoint(
    tensors: Mapping[str, Tensor],
    config: ModelConfig,
    folder: Path,
    *,
    round_: int,
    max_len_tokens: int,
    keep: int = 2,
) -> Path:
    """Write the weights of merge ``round_`` below ``folder``; returns their own folder.

    ``tensors``: ByteLM's parameters by name (``dict(model.named_parameters())``), shapes as the
    model's. ``max_len_tokens``: longest context of the server. The folder is there whole or not at
    all; of merges up to this one the newest ``keep`` stay, later ones (of a run that was cut off)
    go: nobody else may export there. DiskFull where there is no room; ValueError for tensors that
    are not the model's.
    """
    check_servable(config)
    weights = _named_as_llama(tensors, config)
    shape = _shape(config, max_len_tokens=max_len_tokens, dtype=_dtype(tensors))
    _check_shapes(weights, shape)
    probe = _probe(tensors, config, max_len_tokens=max_len_tokens)
    target = round_folder(folder, round_)
    with _full_disk_named(target):
        write_exported(target, shape, probe, round_=round_, save=lambda path: _save(weights, path))
    _remove_others(folder, round_=round_, keep=keep)
    return target


def export_initial(config: ModelConfig, folder: Path, *, seed: int, max_len_tokens: int) -> Path:
    """The weights that every island of ``seed`` starts from, before any merge."""
    model = build_model(config, seed=seed, max_len_tokens=1)
    return export_checkpoint(
        dict(model.named_parameters()),
        config,
        folder,
        round_=INITIAL_ROUND,
        max_len_tokens=max_len_tokens,
    )


def llama_name(name: str) -> str:
    """Hugging Face's name of a parameter of ByteLM; ValueError for what is none."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    parts = name.split(".")
    inside = _INSIDE.get(".".join(parts[2:-1]))
    if parts[0] != "blocks" or parts[-1] != "weight" or inside is None:
        raise ValueError(f"{name} is no parameter of the islands' model; give its parameters only")
    return f"model.layers.{parts[1]}.{inside}.weight"


def _named_as_llama(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    weights = {llama_name(name): t.detach().contiguous().cpu() for name, t in tensors.items()}
    if config.tie_embeddings and "model.embed_tokens.weight" in weights:
        # a copy: safetensors stores no memory twice
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    return weights


def _dtype(tensors: Mapping[str, Tensor]) -> str:
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    if len(dtypes) != 1:
        raise ValueError(f"weights of types {sorted(dtypes)}; give all of them in one")
    return dtypes.pop()


def _shape(config: ModelConfig, *, max_len_tokens: int, dtype: str) -> LlamaShape:
    return LlamaShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        ffn_size=config.ffn_size,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        max_len_tokens=max_len_tokens,
        rope_theta=config.rope_theta,
        dtype=dtype,
    )


def _check_shapes(weights: Mapping[str, Tensor], shape: LlamaShape) -> None:
    wanted = tensor_shapes(shape)
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"{name}: shape {found.get(name, 'missing')} where the model of the config has "
                f"{wanted.get(name, 'none')}; give exactly its parameters"
            )


@torch.no_grad()
def _probe(tensors: Mapping[str, Tensor], config: ModelConfig, *, max_len_tokens: int) -> Probe:
    """What the weights themselves say after the prompt, in float32; no second model in memory."""
    prompt = probe_prompt(max_len_tokens)
    device = tensors["embedding"].device
    cos, sin = rope_table(
        config.hidden_size // config.heads, length=len(prompt), theta=config.rope_theta
    )
    with torch.device("meta"):
        model = ByteLM(config, max_len_tokens=len(prompt))
    values = {name: tensor.detach().float() for name, tensor in tensors.items()}
    values |= {"cos": cos.to(device), "sin": sin.to(device)}
    logits: Tensor = functional_call(model, values, (torch.tensor([prompt], device=device),))
    logprobs = torch.log_softmax(logits[0, -1], dim=-1).tolist()
    if not all(map(math.isfinite, logprobs)):
        raise ValueError("the weights give logits that are not finite; nothing to serve")
    return Probe(prompt=prompt, logprobs=tuple(logprobs))


def _save(weights: dict[str, Tensor], path: Path) -> None:
    save_file(weights, path, metadata={"format": "pt"})


@contextlib.contextmanager
def _full_disk_named(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        # safetensors tells the operating system's error in words alone
        if "No space left" in str(error) or "Disk quota exceeded" in str(error):
            raise DiskFull(
                f"export {target}: no space left; free some or put the runs folder on another disk"
            ) from error
        raise


def _remove_others(folder: Path, *, round_: int, keep: int) -> None:
    """Older rounds beyond ``keep``, later ones, and what an export that was killed has left."""
    rounds = {int(path.name[6:]): path for path in folder.glob(f"round-{'[0-9]' * 5}")}
    kept = sorted(number for number in rounds if number <= round_)[-keep:]
    gone = [path for number, path in rounds.items() if number not in kept]
    for path in (*gone, *folder.glob(".round-*")):
        shutil.rmtree(path, ignore_errors=True)
