"""A byte-level Llama as a Hugging Face folder: what the tiny model and the islands' export share.

Names, shapes, configuration, tokenizer, and a folder that is there whole or not at all; no torch.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WEIGHTS = "model.safetensors"
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 256..259; id b < 256 is the byte b
INIT_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """What a Llama's config.json says of its architecture."""

    vocab_size: int  # at least the 256 bytes and SPECIAL_TOKENS
    hidden_size: int
    ffn_size: int
    layers: int
    heads: int
    kv_heads: int
    max_len_tokens: int  # longest context that a server will take
    rope_theta: float = 10_000.0
    dtype: str = "float32"

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.heads


def tensor_shapes(shape: LlamaShape) -> dict[str, tuple[int, ...]]:
    """Names and shapes [out, in] as Hugging Face's LlamaForCausalLM stores them, head not tied."""
    hidden, ffn, kv = shape.hidden_size, shape.ffn_size, shape.kv_heads * shape.head_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (hidden, hidden),
            f"{at}.self_attn.k_proj.weight": (kv, hidden),
            f"{at}.self_attn.v_proj.weight": (kv, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, hidden),
            f"{at}.mlp.gate_proj.weight": (ffn, hidden),
            f"{at}.mlp.up_proj.weight": (ffn, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, ffn),
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
        }
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (shape.vocab_size, hidden)}


def text_files(shape: LlamaShape) -> dict[str, bytes]:
    """All files of the folder but the weights, by name."""
    return {
        "config.json": as_json(_config(shape)),
        "generation_config.json": as_json({"bos_token_id": 257, "eos_token_id": 258}),
        "tokenizer.json": _tokenizer().to_str(pretty=True).encode(),
        "tokenizer_config.json": as_json(_tokenizer_config(shape.max_len_tokens)),
    }


def _config(shape: LlamaShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_len_tokens,
        "initializer_range": INIT_STD,
        "rms_norm_eps": 1e-5,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "pad_token_id": 256,
        "bos_token_id": 257,
        "eos_token_id": 258,
        "torch_dtype": shape.dtype,
    }


def _tokenizer() -> Tokenizer:
    """One token a byte: a BPE without merges over the byte-level alphabet."""
    vocab = {char: byte for byte, char in enumerate(_byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    # no regex: it would only split text that is then cut into single bytes anyway
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def _byte_alphabet() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {byte: chr(0x100 + at) for at, byte in enumerate(others)}
    return [shifted.get(byte, chr(byte)) for byte in range(256)]


def _tokenizer_config(max_len_tokens: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_len_tokens,
        "clean_up_tokenization_spaces": False,
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
    }


def as_json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


@contextlib.contextmanager
def new_folder(target: Path, *, replace: bool) -> Iterator[Path]:
    """A hidden folder to fill; at the end it is made durable and becomes ``target`` in one step.

    With ``replace`` it takes the place of a folder of that name; else the one that is there stays:
    another process made it first. When the block raises, nothing is left of it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield made
        for path in (*made.iterdir(), made):
            _sync(path)
        made.chmod(0o755)
        _put_in_place(made, target, replace=replace)
        _sync(target.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _put_in_place(made: Path, target: Path, *, replace: bool) -> None:
    old = made.with_name(f"{made.name}-old")
    if replace and target.is_dir():
        target.rename(old)
    try:
        made.rename(target)
    except OSError:
        if replace or not target.is_dir():
            raise
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
