"""A causal language model from a Hugging Face folder on disk, as an island trains it.

Nothing is downloaded and no code of the folder runs. Dropout and router noise are off: a loss is a
function of weights and batch, so that a resumed run gives the same numbers.
"""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from actors.config import HfModelConfig
from actors.island.language_model import LanguageModel, labels_of, mean_loss, positions_in
from actors.island.model_folder import model_folder
from policies.streams import stream

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_CHANCE = ("drop", "jitter_noise")  # in names of config fields: dropout, attn_pdrop, layerdrop ...
_LEAK = 0.25  # of the effect that another document has where nothing keeps it out
# Of the effect that a token has on its own logits. Measured in float32: BERT with fresh weights
# 0.006 to 0.009, causal models (experts too) under 1e-6.
_SEES_AHEAD = 5e-4
_MOST_LETTERS = 300  # of another library's message


class HfLM(LanguageModel):
    """``network`` is the transformers model; its parameters are named as in the folder."""

    def __init__(self, network: Any, *, folder: Path, vocab_size: int) -> None:
        super().__init__()
        self.network = network
        self._folder = folder
        self._vocab_size = vocab_size
        self._proven = False

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """Logits in float32.  # [batch, length, vocabulary]"""
        return _logits(self.network, tokens, documents)

    def loss(self, window: Tensor, documents: Tensor | None = None) -> Tensor:
        labels = labels_of(window, documents)
        if documents is None:
            return functional.cross_entropy(self(window[:, :-1]).flatten(0, 1), labels.flatten())
        if not self._proven:
            self._prove_apart(window.device)
            self._proven = True
        return mean_loss(self(window[:, :-1], documents[:, :-1]), labels)

    @torch.no_grad()
    def _prove_apart(self, device: torch.device) -> None:
        """Whether this architecture keeps packed documents apart, seen on eight tokens.

        transformers tells documents by positions that begin anew (masking_utils,
        find_packed_sequence_indices); a model that takes no positions, or that has a memory
        besides attention, would mix them without a word.
        """
        documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]], device=device)
        tokens = torch.arange(8, device=device)[None] % self._vocab_size
        other = tokens.clone()
        other[:, :4] = torch.arange(8, 12, device=device) % self._vocab_size
        run = self.network.forward  # not what torch.compile made of it: these are other shapes
        try:
            packed, mixed = (
                (_logits(run, tokens, d) - _logits(run, other, d))[:, 4:].abs().max().item()
                for d in (documents, None)
            )
        except TypeError as error:
            raise self._mixes(f"it takes no position_ids: {error}") from error
        if packed > _LEAK * mixed:
            raise self._mixes(
                f"another document before it moves its logits by {packed:.3g}, unpacked {mixed:.3g}"
            )

    def _mixes(self, why: str) -> ValueError:
        return ValueError(
            f"model.path={str(self._folder)!r}: {type(self.network).__name__} cannot keep packed "
            f"documents apart ({why}); give data.packing: stream"
        )


def build_hf_model(config: HfModelConfig, *, seed: int, max_len_tokens: int) -> HfLM:
    """The folder's model, or one of its shape with the weights of ``seed``; on the CPU."""
    folder = model_folder(config)
    with _refusing(folder), torch.random.fork_rng(devices=[]):
        # Also for stored weights, so that whatever the library draws is the same on all islands.
        torch.default_generator.manual_seed(int(stream(seed, "weights").integers(2**63)))
        shape = _shape(folder)
        build = _from_scratch if config.from_scratch else _stored
        network, missing = build(folder, shape, _DTYPES[config.dtype])
        vocab_size = int(network.get_input_embeddings().weight.shape[0])
    if missing:
        raise ValueError(
            f"model.path={str(folder)!r}: has no weights for {', '.join(missing[:5])} "
            f"({len(missing)} in all); save the model again, or give from_scratch: true"
        )
    _check_length(folder, shape.get_text_config(), max_len_tokens)
    _check_causal(network, folder, vocab_size=vocab_size)
    _prepare(network, config, folder)
    return HfLM(network, folder=folder, vocab_size=vocab_size)


def _logits(run: Any, tokens: Tensor, documents: Tensor | None) -> Tensor:
    places = {} if documents is None else {"position_ids": positions_in(documents)}
    logits: Tensor = run(input_ids=tokens, **places).logits
    return logits.float()


def _shape(folder: Path) -> Any:
    """The folder's config, with what does not belong into training taken out."""
    # attn_implementation: the folder could name a kernel that transformers would download.
    shape = AutoConfig.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False, attn_implementation=None
    )
    if getattr(shape, "quantization_config", None) is not None:
        raise ValueError("its weights are quantized, which cannot be trained")
    shape.return_dict = True
    for part in {id(p): p for p in (shape, shape.get_text_config())}.values():
        part.use_cache = False
        for name, value in list(vars(part).items()):
            if any(word in name for word in _CHANCE) and isinstance(value, int | float) and value:
                setattr(part, name, type(value)(0))
    return shape


def _stored(folder: Path, shape: Any, dtype: torch.dtype) -> tuple[Any, list[str]]:
    network, info = AutoModelForCausalLM.from_pretrained(
        str(folder),
        config=shape,
        dtype=dtype,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    return network, sorted(info["missing_keys"])


def _from_scratch(folder: Path, shape: Any, dtype: torch.dtype) -> tuple[Any, list[str]]:
    return AutoModelForCausalLM.from_config(shape, dtype=dtype, trust_remote_code=False), []


def _check_length(folder: Path, text: Any, max_len_tokens: int) -> None:
    limit = getattr(text, "max_position_embeddings", None)
    if isinstance(limit, int) and max_len_tokens > limit:
        raise ValueError(
            f"model.path={str(folder)!r}: takes {limit} positions (max_position_embeddings), "
            f"seq_len_tokens={max_len_tokens} is above it; lower seq_len_tokens"
        )


@torch.no_grad()
def _check_causal(network: Any, folder: Path, *, vocab_size: int) -> None:
    """ValueError where a token moves the logits before it: such a model has only to copy.

    AutoModelForCausalLM builds BERT and its kin too, with attention to both sides.
    """
    tokens = torch.arange(8)[None] % vocab_size
    later = tokens.clone()
    later[:, 4:] = (later[:, 4:] + 1) % vocab_size
    with _refusing(folder), _in_float32(network):
        moved = (_logits(network, tokens, None) - _logits(network, later, None)).abs()
    before, after = moved[:, :4].max().item(), moved[:, 4:].max().item()
    if not before <= _SEES_AHEAD * after:  # nan is no proof either
        raise ValueError(
            f"model.path={str(folder)!r}: {type(network).__name__} is not causal (tokens that come "
            f"later move its logits by {before:.3g}); give a causal language model, or a config "
            "that makes it one (BERT: is_decoder: true)"
        )


@contextmanager
def _in_float32(network: Any) -> Iterator[None]:
    """Its parameters in float32 and back, to the bit: bfloat16 would round small effects away."""
    stored = [(p, p.dtype) for p in network.parameters()]
    for parameter, _ in stored:
        parameter.data = parameter.data.float()
    try:
        yield
    finally:
        for parameter, dtype in stored:
            parameter.data = parameter.data.to(dtype)


def _prepare(network: Any, config: HfModelConfig, folder: Path) -> None:
    network.train()  # activation checkpointing works in training mode alone
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if config.activation_checkpointing:
        try:
            network.gradient_checkpointing_enable()
        except ValueError as error:
            raise ValueError(
                f"model.path={str(folder)!r}: {error} Leave activation_checkpointing out"
            ) from error
    if config.compile:
        network.compile()  # in place: names of parameters stay


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Whatever the libraries raise about a folder, as one line."""
    try:
        yield
    except Exception as error:  # a dozen kinds, without a common one
        line = textwrap.shorten(str(error), _MOST_LETTERS, placeholder=" ...")
        raise ValueError(
            f"model.path={str(folder)!r}: no causal language model can be made of it ({line}); "
            "give a folder that save_pretrained of one wrote"
        ) from error
