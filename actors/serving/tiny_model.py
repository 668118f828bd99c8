"""A byte-level Llama with random weights, built on the spot: real vLLM without a download.

Written with numpy, safetensors and tokenizers alone, so that building it never imports torch.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HIDDEN = 256
LAYERS = 4
HEADS = 8
KV_HEADS = 4
FFN = 704
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 256..259; id b < 256 is the byte b
VOCAB = 256 + len(SPECIAL_TOKENS)
INIT_STD = 0.02


def build_tiny_model(folder: Path, *, max_model_len_tokens: int, seed: int = 0) -> Path:
    """Make `folder`/tiny-<content hash> unless it is there already; returns that folder."""
    if max_model_len_tokens < 1:
        raise ValueError(f"max_model_len_tokens={max_model_len_tokens} is below 1; give at least 1")
    files = _files(max_model_len_tokens, seed)
    target = folder / f"tiny-{_content_hash(files)}"
    if not target.exists():
        _write_atomically(target, files)
    _check(target, files)
    return target


def _files(max_model_len_tokens: int, seed: int) -> dict[str, bytes]:
    return {
        "config.json": _json(_config(max_model_len_tokens)),
        "generation_config.json": _json({"bos_token_id": 257, "eos_token_id": 258}),
        "model.safetensors": save(_weights(seed), metadata={"format": "pt"}),
        "tokenizer.json": _tokenizer().to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(_tokenizer_config(max_model_len_tokens)),
    }


def _config(max_model_len_tokens: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": max_model_len_tokens,
        "initializer_range": INIT_STD,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "pad_token_id": 256,
        "bos_token_id": 257,
        "eos_token_id": 258,
        "torch_dtype": "float32",
    }


def _weights(seed: int) -> dict[str, np.ndarray]:
    """Names and shapes [out, in] as Hugging Face's LlamaForCausalLM stores them."""
    rng = np.random.default_rng(seed)
    kv = HIDDEN // HEADS * KV_HEADS

    def normal(rows: int, columns: int) -> np.ndarray:
        return (INIT_STD * rng.standard_normal((rows, columns))).astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    weights = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        weights |= {
            f"{at}.self_attn.q_proj.weight": normal(HIDDEN, HIDDEN),
            f"{at}.self_attn.k_proj.weight": normal(kv, HIDDEN),
            f"{at}.self_attn.v_proj.weight": normal(kv, HIDDEN),
            f"{at}.self_attn.o_proj.weight": normal(HIDDEN, HIDDEN),
            f"{at}.mlp.gate_proj.weight": normal(FFN, HIDDEN),
            f"{at}.mlp.up_proj.weight": normal(FFN, HIDDEN),
            f"{at}.mlp.down_proj.weight": normal(HIDDEN, FFN),
            f"{at}.input_layernorm.weight": ones,
            f"{at}.post_attention_layernorm.weight": ones,
        }
    return weights | {"model.norm.weight": ones, "lm_head.weight": normal(VOCAB, HIDDEN)}


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


def _tokenizer_config(max_model_len_tokens: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_model_len_tokens,
        "clean_up_tokenization_spaces": False,
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
    }


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _content_hash(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name} {len(files[name])}\n".encode())
        digest.update(files[name])
    return digest.hexdigest()[:12]


def _write_atomically(target: Path, files: dict[str, bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name, data in files.items():
            with (made / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        made.chmod(0o755)
        made.rename(target)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not target.is_dir():  # else another sidecar made the same model first
            raise


def _check(target: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = target / name
        if not path.is_file() or path.read_bytes() != data:
            raise ValueError(
                f"{path} is missing or differs from what its folder's name promises; "
                f"delete {target} and start again"
            )
