"""A study's text as the islands see it: one shard each, and a validation part in none of them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from actors.config import DataConfig
from actors.island.data.cache import Tokens, cached_tokens
from actors.island.data.shards import Batch, Part, Shard, batches_in_order, shard_bounds
from actors.island.data.text import BYTE_VALUES, SEPARATOR, load_corpus

MOST_IN_MEMORY_BYTES = 2**30  # of text files; each island's process has its own copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A text in tokens, its training part first, then its validation part."""

    config: DataConfig
    text: Tokens
    islands: int
    seq_len_tokens: int
    train_tokens: int

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id that the tokenizer knows."""
        return self.text.vocab_size

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all token ids; of the text itself where a byte is a token."""
        return self.text.fingerprint

    def shard(self, island: int) -> Shard:
        """ValueError where the text is too short for ``islands`` parts of a window each."""
        first, last = shard_bounds(
            self.train_tokens,
            island=island,
            islands=self.islands,
            seq_len_tokens=self.seq_len_tokens,
        )
        return Shard(part=self._part(first, last), island=island, order=self.config.order)

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        """Every window of the validation part once, in order; ValueError where there is none."""
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} is below 1; give at least one window")
        if self.train_tokens == len(self.text.ids):
            raise ValueError(
                "data.validation_fraction=0 leaves nothing to validate with; give e.g. 0.01"
            )
        return batches_in_order(self._part(self.train_tokens, len(self.text.ids)), batch_size)

    def _part(self, first: int, last: int) -> Part:
        return Part(
            ids=self.text.ids[first:last],
            first=first,
            starts=self.text.starts if self.config.packing == "documents" else None,
            seq_len_tokens=self.seq_len_tokens,
        )


def open_data(config: DataConfig, *, islands: int, seq_len_tokens: int) -> Data:
    """The text of ``config``; the first time that a token file is needed it is written.

    ValueError names what is wrong with the text; CacheFailed what keeps a token file from being.
    """
    text = open_tokens(config)
    held_out = int(len(text.ids) * config.validation_fraction)
    if config.validation_fraction > 0 and held_out <= seq_len_tokens:
        raise ValueError(
            f"data.validation_fraction={config.validation_fraction:g} of {len(text.ids)} tokens is "
            f"{held_out}, a sequence of {seq_len_tokens} tokens needs {seq_len_tokens + 1}; raise "
            "it, or give more text"
        )
    return Data(
        config=config,
        text=text,
        islands=islands,
        seq_len_tokens=seq_len_tokens,
        train_tokens=len(text.ids) - held_out,
    )


def open_tokens(config: DataConfig) -> Tokens:
    """A text of few bytes is read into memory; all else goes through a token file."""
    return _text_tokens(config) if held_in_memory(config) else cached_tokens(config)


def held_in_memory(config: DataConfig) -> bool:
    """Text files as they stand, a byte a token, and not many of them."""
    as_they_stand = config.source in ("stdlib", "folder") and config.tokenizer == "bytes"
    limit_bytes = config.limit_bytes
    return as_they_stand and limit_bytes is not None and limit_bytes <= MOST_IN_MEMORY_BYTES


@lru_cache(maxsize=4)
def _text_tokens(config: DataConfig) -> Tokens:
    corpus = load_corpus(config)
    return Tokens(
        ids=corpus,
        starts=_document_starts(corpus),
        vocab_size=BYTE_VALUES,
        fingerprint=hashlib.sha256(corpus.data).hexdigest(),
    )


def _document_starts(corpus: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """After each separator; one at the very end begins nothing."""
    after = np.flatnonzero(corpus[:-1] == SEPARATOR[0]) + 1
    return np.concatenate((np.zeros(1, dtype=np.int64), after.astype(np.int64)))
