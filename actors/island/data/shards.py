"""Windows of a text as batches: each island its own part, each batch a function of its number.

A window is ``seq_len_tokens`` inputs and the token after the last: seq_len + 1 tokens in all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from actors.island.data.tokenizer import Ids
from policies.streams import stream

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Windows to train on or to validate with."""

    tokens: npt.NDArray[np.int64]  # [batch, seq_len + 1]
    documents: npt.NDArray[np.int32] | None  # [batch, seq_len + 1] from 0 in each row; None: one


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run of a text, for one purpose."""

    ids: Ids  # [token]
    first: int  # its place in the whole text
    starts: Places | None  # [document] of the whole text; None: windows cross documents
    seq_len_tokens: int

    @property
    def windows(self) -> int:
        """Windows side by side: each label, but for a rest shorter than a window, once."""
        return (len(self.ids) - 1) // self.seq_len_tokens

    def batch_of(self, places: Places) -> Batch:
        """The windows that begin at ``places``  # [batch], counted from the part's first token."""
        index = places[:, None] + np.arange(self.seq_len_tokens + 1, dtype=np.int64)
        return Batch(tokens=self.ids[index].astype(np.int64), documents=self._documents(index))

    def _documents(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.int32] | None:
        if self.starts is None:
            return None
        found = np.searchsorted(self.starts, self.first + index, side="right")
        return (found - found[:, :1]).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """An island's own contiguous part; no other island trains on it."""

    part: Part
    island: int
    order: Literal["random", "shuffled"]

    def batch(self, *, seed: int, cursor: int, batch_size: int) -> Batch:
        """Batch number ``cursor``, from 0: a function of the shard and the arguments alone."""
        places = random_places if self.order == "random" else shuffled_places
        return self.part.batch_of(
            places(
                len(self.part.ids),
                seed=seed,
                island=self.island,
                cursor=cursor,
                batch_size=batch_size,
                seq_len_tokens=self.part.seq_len_tokens,
            )
        )


def shard_bounds(tokens: int, *, island: int, islands: int, seq_len_tokens: int) -> tuple[int, int]:
    """First token of an island's part and the one after its last: disjoint, and nothing left."""
    if not 0 <= island < islands:
        raise ValueError(f"island={island} is none of the {islands} islands 0..{islands - 1}")
    first = tokens * island // islands
    last = tokens * (island + 1) // islands
    if last - first <= seq_len_tokens:
        raise ValueError(
            f"island {island}: its shard has {last - first} tokens, a sequence of "
            f"{seq_len_tokens} tokens needs {seq_len_tokens + 1}; raise data.max_bytes, lower "
            "data.validation_fraction, or give more text"
        )
    return first, last


def random_places(
    tokens: int, *, seed: int, island: int, cursor: int, batch_size: int, seq_len_tokens: int
) -> Places:
    """Where the windows of a batch begin: anywhere, drawn with replacement.  # [batch]"""
    rng = stream(seed, "batches", island, cursor)
    return rng.integers(0, tokens - seq_len_tokens, size=batch_size)


def shuffled_places(
    tokens: int, *, seed: int, island: int, cursor: int, batch_size: int, seq_len_tokens: int
) -> Places:
    """Where they begin when windows lie side by side and each comes once an epoch.  # [batch]

    Epoch after epoch, each a permutation of its own, is one long line of windows; batch number
    ``cursor`` is the next ``batch_size`` of it, also across the end of an epoch.
    """
    windows = (tokens - 1) // seq_len_tokens
    line = cursor * batch_size + np.arange(batch_size, dtype=np.int64)
    epochs, turns = np.divmod(line, windows)
    places = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        now = epochs == epoch
        order = _permutation(seed, island, int(epoch), windows)
        places[now] = order[turns[now]] * seq_len_tokens
    return places


# An island may take a batch of every shard at each step, and a batch may cross an epoch's end: with
# fewer places than shards each step would draw all permutations anew.
@lru_cache(maxsize=16)
def _permutation(seed: int, island: int, epoch: int, windows: int) -> Places:
    order = stream(seed, "windows", island, epoch).permutation(windows)
    order.setflags(write=False)
    return order


def batches_in_order(part: Part, batch_size: int) -> Iterator[Batch]:
    """Every window once, side by side; the last batch may be smaller."""
    for first in range(0, part.windows, batch_size):
        turns = np.arange(first, min(first + batch_size, part.windows), dtype=np.int64)
        yield part.batch_of(turns * part.seq_len_tokens)
