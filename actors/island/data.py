"""Bytes to train on: the corpus, one contiguous shard for each island, deterministic batches.

A byte is a token. Files are joined in path order by one NUL byte, which no text contains.
"""

import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from actors.config import DataConfig
from policies.streams import stream

SEPARATOR = b"\0"
BYTE_VALUES = 256
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})


def load_corpus(config: DataConfig) -> npt.NDArray[np.uint8]:
    """The first ``max_bytes`` of the text, read-only; read once in each process."""
    match config.source:
        case "stdlib":
            return _read(Path(sysconfig.get_path("stdlib")), "*.py", config.max_bytes)
        case "folder":
            assert config.folder is not None  # DataConfig refuses it
            return _read(Path(config.folder).expanduser().resolve(), "*", config.max_bytes)


@lru_cache(maxsize=4)
def _read(folder: Path, pattern: str, max_bytes: int) -> npt.NDArray[np.uint8]:
    if not folder.is_dir():
        raise ValueError(
            f"data.folder={str(folder)!r} is no folder on this machine; "
            "give a folder of text files that every island's node can read"
        )
    if max_bytes < 1:
        raise ValueError(f"data.max_bytes={max_bytes} leaves no text; give at least one byte")
    parts: list[bytes] = []
    size_bytes = 0
    for text in _texts(folder, pattern):
        parts.append(text)
        size_bytes += len(text) + len(SEPARATOR)
        if size_bytes >= max_bytes:
            break
    if not parts:
        raise ValueError(
            f"data.folder={str(folder)!r} holds no text (UTF-8 file with content); "
            "put text files there or name another folder"
        )
    corpus = np.frombuffer(SEPARATOR.join(parts)[:max_bytes], dtype=np.uint8)
    corpus.setflags(write=False)
    return corpus


def _texts(folder: Path, pattern: str) -> Iterator[bytes]:
    """UTF-8 files in path order; binaries and the test suite's odd encodings are passed over."""
    for path in sorted(folder.rglob(pattern)):
        inner = path.relative_to(folder).parts
        if _SKIPPED_FOLDERS.intersection(inner) or any(p.startswith(".") for p in inner):
            continue
        if not path.is_file():
            continue
        text = path.read_bytes()
        if text and SEPARATOR not in text and _is_utf8(text):
            yield text


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def shard_of(
    corpus: npt.NDArray[np.uint8], *, island: int, islands: int, seq_len_tokens: int
) -> npt.NDArray[np.uint8]:
    """Island's own contiguous part; the parts of all islands are disjoint and cover the corpus."""
    if not 0 <= island < islands:
        raise ValueError(f"island={island} is none of the {islands} islands 0..{islands - 1}")
    first = len(corpus) * island // islands
    last = len(corpus) * (island + 1) // islands
    if last - first <= seq_len_tokens:
        raise ValueError(
            f"island {island}: its shard has {last - first} bytes, a sequence of "
            f"{seq_len_tokens} tokens needs {seq_len_tokens + 1}; raise data.max_bytes or "
            "give more text"
        )
    return corpus[first:last]


def batch_at(
    shard: npt.NDArray[np.uint8],
    *,
    seed: int,
    island: int,
    cursor: int,
    batch_size: int,
    seq_len_tokens: int,
) -> npt.NDArray[np.int64]:
    """Batch number ``cursor``: a function of its arguments alone.  # [batch, seq_len + 1]"""
    rng = stream(seed, "batches", island, cursor)
    starts = rng.integers(0, len(shard) - seq_len_tokens, size=batch_size)
    index = starts[:, None] + np.arange(seq_len_tokens + 1)[None, :]
    return shard[index].astype(np.int64)
