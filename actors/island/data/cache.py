"""Token files: a text is read and tokenized once on a machine, then memory-mapped by all islands.

KEY.tokens (raw little-endian ids), KEY.documents (int64: where each document begins) and KEY.json
(sizes, times and checksums) in one folder; KEY tells files, limits and tokenizer. KEY.json is
renamed into its place last, so that a text is there wholly or not at all. A file is believed by its
checksum, a large one by size and time of change while these are as they were written.
"""

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from actors.config import DataConfig
from actors.deadlines import TOKENIZE
from actors.durable import sync_folder
from actors.island.data.document import Document
from actors.island.data.sources import documents, source_files
from actors.island.data.text import text_folder
from actors.island.data.tokenizer import Ids, TextTokenizer, load_tokenizer

FORMAT = 1
BATCH_CHARACTERS = 2**20  # of text that is tokenized at once
LOCK_WAIT_S = TOKENIZE.limit_s  # another process tokenizes: better than doing it twice
LOCK_POLL_S = 0.2
PART_BYTES = 2**20
HASHED_BYTES = 2**30  # a second; the tokens of 100 GB would take every island minutes


class CacheFailed(RuntimeError):
    """The folder of token files cannot be written or read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A whole text in token ids, its documents one after another, with EOS between two."""

    ids: Ids  # [token] uint8, uint16 or uint32
    starts: npt.NDArray[np.int64]  # [document] where each begins; the first is 0
    vocab_size: int
    fingerprint: str  # SHA-256 of the ids as they lie in the file


def cached_tokens(config: DataConfig) -> Tokens:
    """The text's token file, written first where it is missing, torn or changed.

    ValueError for what is wrong with the text, CacheFailed for what is wrong with the folder.
    """
    tokenizer = load_tokenizer(config.tokenizer)
    folder = cache_folder(config)
    _check_apart(config, folder)
    base = folder / cache_key(config, tokenizer)
    found = _opened(base)
    if found is not None:
        return found
    with _cache_fault(base.parent):
        base.parent.mkdir(parents=True, exist_ok=True)
    with _one_builder(base):
        found = _opened(base)  # another process may have been building it
        if found is None:
            _build(base, config, tokenizer)
            found = _opened(base)
    if found is None:
        raise CacheFailed(
            f"{base}.tokens: does not read back as it was written; check the disk, or name another "
            "folder in data.cache_dir"
        )
    return found


def cache_folder(config: DataConfig) -> Path:
    """``data.cache_dir``, else lull/tokens in the user's cache (XDG Base Directory)."""
    if config.cache_dir is not None:
        return Path(config.cache_dir).expanduser().resolve()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "lull" / "tokens"


def cache_key(config: DataConfig, tokenizer: TextTokenizer) -> str:
    """Of each file its name, size, time of change, first and last 1 MiB; column, limit, tokenizer.

    A file of any size takes no time; a change inside it shows in its time.
    """
    what = {
        "format": FORMAT,
        "source": config.source,
        "column": config.column or "text",
        "limit_bytes": config.limit_bytes,
        "tokenizer": tokenizer.fingerprint,
        "files": [_told(path) for path in source_files(config)],
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def id_type(vocab_size: int) -> np.dtype[Any]:
    """The smallest that holds every id."""
    for kind in ("<u1", "<u2", "<u4"):
        if vocab_size - 1 <= np.iinfo(kind).max:
            return np.dtype(kind)
    raise ValueError(f"a vocabulary of {vocab_size} does not fit into 32-bit ids")


def _check_apart(config: DataConfig, folder: Path) -> None:
    """Token files would become text files where every file is one."""
    if config.source != "folder":
        return
    texts, place = text_folder(config), folder.resolve()
    inner = place.relative_to(texts).parts if place.is_relative_to(texts) else (".",)
    if not any(part.startswith(".") for part in inner):
        raise ValueError(
            f"data.cache_dir={str(folder)!r} lies in data.folder={str(texts)!r}, whose files are "
            "all read as text; name a folder outside it, or a hidden one"
        )


def _told(path: Path) -> list[str | int]:
    digest = hashlib.sha256()
    try:
        stat = path.stat()
        with path.open("rb") as file:
            digest.update(file.read(PART_BYTES))
            if stat.st_size > PART_BYTES:
                file.seek(max(PART_BYTES, stat.st_size - PART_BYTES))
                digest.update(file.read(PART_BYTES))
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}); give rights to read it, or leave it out"
        ) from error
    return [path.name, stat.st_size, stat.st_mtime_ns, digest.hexdigest()]


def _opened(base: Path) -> Tokens | None:
    """What lies whole under ``base``; None: nothing, or what its checksums do not know."""
    try:
        header = json.loads(base.with_suffix(".json").read_text(encoding="utf-8"))
        ids = _mapped(base, header["tokens"])
        starts = _mapped(base, header["documents"])
        return Tokens(
            ids=ids,
            starts=starts,
            vocab_size=int(header["vocab_size"]),
            fingerprint=str(header["tokens"]["sha256"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _mapped(base: Path, part: dict[str, Any]) -> npt.NDArray[Any]:
    path = base.with_suffix(part["suffix"])
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        whole = stat.st_size == part["size_bytes"]
        untouched = stat.st_mtime_ns == part["mtime_ns"] and stat.st_size > HASHED_BYTES
        if whole and not untouched:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == part["sha256"]
    if not whole:
        raise ValueError(f"{path}: is not what was written")
    return np.asarray(np.memmap(path, dtype=part["dtype"], mode="r"))


def _build(base: Path, config: DataConfig, tokenizer: TextTokenizer) -> None:
    """Write the three files; a few megabytes of text are in memory at any time."""
    writer = _Writer(base, tokenizer)
    try:
        for batch in _batches(documents(config)):
            writer.add(tokenizer.encode(batch))
        if cache_key(config, tokenizer) != base.name:
            raise ValueError(
                "data: a file of the text was changed while it was read; start again once nobody "
                "writes to it"
            )
        writer.commit()
    finally:
        writer.discard()


def _batches(texts: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in texts:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Writer:
    """The text's files beside their places, until commit."""

    def __init__(self, base: Path, tokenizer: TextTokenizer) -> None:
        self._base = base
        self._vocab_size = tokenizer.vocab_size
        kind = id_type(tokenizer.vocab_size)
        self._eos = np.array([tokenizer.eos_id], dtype=kind)
        self._count = 0
        with _cache_fault(base.parent):
            self._tokens = _Part(base, ".tokens", kind)
            self._documents = _Part(base, ".documents", np.dtype("<i8"))
            self._listing = _Part(base, ".json", np.dtype("<u1"))

    def add(self, texts: Sequence[Ids]) -> None:
        """Append documents; one without ids is none."""
        parts: list[Ids] = []
        starts: list[int] = []
        for ids in texts:
            if not len(ids):
                continue
            if self._count:
                parts.append(self._eos)
                self._count += 1
            starts.append(self._count)
            parts.append(ids)
            self._count += len(ids)
        if parts:
            with _cache_fault(self._base.parent):
                self._tokens.write(np.concatenate(parts))
                self._documents.write(np.array(starts, dtype=np.int64))

    def commit(self) -> None:
        if not self._count:
            raise ValueError(
                "data: no document has any text; name another file, folder or data.column"
            )
        with _cache_fault(self._base.parent):
            header = {
                "vocab_size": self._vocab_size,
                "tokens": self._tokens.commit(),
                "documents": self._documents.commit(),
            }
            self._listing.write(np.frombuffer(json.dumps(header).encode(), dtype=np.uint8))
            self._listing.commit()
            sync_folder(self._base.parent)

    def discard(self) -> None:
        """What was not committed is removed."""
        for part in (self._tokens, self._documents, self._listing):
            part.discard()


class _Part:
    """One file, written beside its place."""

    def __init__(self, base: Path, suffix: str, kind: np.dtype[Any]) -> None:
        self._path = base.with_suffix(suffix)
        self._tmp = base.with_suffix(f"{suffix}.{secrets.token_hex(4)}.tmp")
        self._kind = kind
        self._digest = hashlib.sha256()
        self._file: IO[bytes] = self._tmp.open("wb")

    def write(self, values: npt.NDArray[Any]) -> None:
        data = values.astype(self._kind).tobytes()
        self._digest.update(data)
        self._file.write(data)

    def commit(self) -> dict[str, str | int]:
        """Make it durable in its place; what the header says of it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        stat = os.fstat(self._file.fileno())
        self._file.close()
        self._tmp.replace(self._path)
        return {
            "suffix": self._path.suffix,
            "dtype": self._kind.str,
            "sha256": self._digest.hexdigest(),
            "size_bytes": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
        }

    def discard(self) -> None:
        with suppress(OSError):  # what is left in its buffer may not fit on a full disk
            self._file.close()
        with suppress(OSError):
            self._tmp.unlink(missing_ok=True)


@contextmanager
def _one_builder(base: Path) -> Iterator[None]:
    """One process tokenizes, the others wait for it; the kernel frees the lock of a dead one."""
    with _cache_fault(base.parent):
        file = base.with_suffix(".lock").open("a")
    with file:
        if _locked(file, base):
            for left in base.parent.glob(f"{base.name}.*.tmp"):  # of a process that was killed
                with suppress(OSError):  # another user's
                    left.unlink()
        yield


def _locked(file: IO[str], base: Path) -> bool:
    """False where the file system knows no locks: then two may build, each a whole file."""
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline_s:
                raise CacheFailed(
                    f"{base}.tokens: another process has been building it for {LOCK_WAIT_S:g} s; "
                    "wait for it or end it, or name another folder in data.cache_dir"
                ) from error
            time.sleep(LOCK_POLL_S)
        except OSError:
            return False
        else:
            return True


@contextmanager
def _cache_fault(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheFailed(
            f"{folder}: token files cannot be written there ({error.strerror or error}); free "
            "space or rights, or name another folder in data.cache_dir"
        ) from error
