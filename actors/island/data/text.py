"""Text files as they stand: the standard library's sources, or a folder of the user's.

A byte is a token. Files are joined in path order by one NUL byte, which no text contains.
"""

import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from actors.config import DataConfig

SEPARATOR = b"\0"
BYTE_VALUES = 256
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})


def load_corpus(config: DataConfig) -> npt.NDArray[np.uint8]:
    """The first ``limit_bytes`` of the text, read-only; read once in each process."""
    assert config.limit_bytes is not None  # stdlib and folder always have one
    return _read(text_folder(config), _pattern(config), config.limit_bytes)


def text_folder(config: DataConfig) -> Path:
    """Where the text files lie; ValueError when there is no such folder."""
    if config.source == "stdlib":
        folder = Path(sysconfig.get_path("stdlib"))
    else:
        assert config.folder is not None  # DataConfig refuses it
        folder = Path(config.folder).expanduser().resolve()
    if not folder.is_dir():
        raise ValueError(
            f"data.folder={str(folder)!r} is no folder on this machine; "
            "give a folder of text files that every island's node can read"
        )
    return folder


def text_paths(config: DataConfig) -> Iterator[Path]:
    """Files that may hold text, in path order; hidden and installed ones are passed over."""
    return _paths(text_folder(config), _pattern(config))


def text_in(path: Path) -> bytes | None:
    """A file's text; None where it has none: empty, binary, or of another encoding than UTF-8.

    ValueError where it cannot be read.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"{path}: cannot be read ({why}); give rights, or leave it out") from error
    return text if text and SEPARATOR not in text and _is_utf8(text) else None


def passed_over(config: DataConfig) -> list[Path]:
    """Files of a user's folder that hold no text, as far as the folder is read; in path order."""
    if config.source != "folder":
        return []
    read = _read_until(config.limit_bytes, text_paths(config))
    return [path for path, text in read if text is None]


def _read_until(
    limit_bytes: int | None, paths: Iterator[Path]
) -> Iterator[tuple[Path, bytes | None]]:
    """Each file with its text, None where it has none, until the texts reach the limit."""
    used_bytes = 0
    for path in paths:
        text = text_in(path)
        yield path, text
        used_bytes += 0 if text is None else len(text) + len(SEPARATOR)
        if limit_bytes is not None and used_bytes >= limit_bytes:
            return


def _pattern(config: DataConfig) -> str:
    return "*.py" if config.source == "stdlib" else "*"


@lru_cache(maxsize=4)
def _read(folder: Path, pattern: str, max_bytes: int) -> npt.NDArray[np.uint8]:
    if max_bytes < 1:
        raise ValueError(f"data.max_bytes={max_bytes} leaves no text; give at least one byte")
    read = _read_until(max_bytes, _paths(folder, pattern))
    parts = [text for _, text in read if text is not None]
    if not parts:
        raise ValueError(
            f"data.folder={str(folder)!r} holds no text (UTF-8 file with content); "
            "put text files there or name another folder"
        )
    corpus = np.frombuffer(SEPARATOR.join(parts)[:max_bytes], dtype=np.uint8)
    corpus.setflags(write=False)
    return corpus


def _paths(folder: Path, pattern: str) -> Iterator[Path]:
    for path in sorted(folder.rglob(pattern)):
        inner = path.relative_to(folder).parts
        if _SKIPPED_FOLDERS.intersection(inner) or any(p.startswith(".") for p in inner):
            continue
        if path.is_file():
            yield path


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
