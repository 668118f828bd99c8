"""A data config's documents, one after another: which files, in which order, how much of them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from actors.config import DataConfig
from actors.island.data import arrow, jsonl
from actors.island.data.document import Document
from actors.island.data.text import text_in, text_paths


def documents(config: DataConfig) -> Iterator[Document]:
    """Texts with content in a fixed order, the first ``limit_bytes`` of them; few in memory.

    ValueError names file, line or row, column and value of what is wrong.
    """
    if config.limit_bytes is not None and config.limit_bytes < 1:
        raise ValueError(
            f"data.max_bytes={config.limit_bytes} leaves no text; give at least one byte"
        )
    return _first_bytes(_all_documents(config), config.limit_bytes)


def source_files(config: DataConfig) -> tuple[Path, ...]:
    """The files that are read, in their order."""
    match config.source:
        case "stdlib" | "folder":
            return tuple(text_paths(config))
        case "jsonl":
            return _files(_path(config), jsonl.SUFFIXES)
        case "parquet":
            return _files(_path(config), arrow.SUFFIXES)
        case "hf":
            return arrow.dataset_files(_path(config), split=config.split)


def _all_documents(config: DataConfig) -> Iterator[Document]:
    files, column = source_files(config), config.column or "text"
    match config.source:
        case "stdlib" | "folder":
            return _text_documents(files)
        case "jsonl":
            return jsonl.jsonl_documents(files, column=column)
        case "parquet":
            return arrow.parquet_documents(files, column=column)
        case "hf":
            return arrow.arrow_documents(files, column=column)


def _text_documents(paths: Iterable[Path]) -> Iterator[Document]:
    for path in paths:
        text = text_in(path)
        if text is not None:
            yield Document(text.decode("utf-8"), str(path))


def _path(config: DataConfig) -> Path:
    assert config.path is not None  # DataConfig refuses it
    path = Path(config.path).expanduser().resolve()
    if not path.exists():
        raise ValueError(
            f"data.path={str(path)!r} is not on this machine; give one that every island's node "
            "can read"
        )
    if config.source == "hf" and not path.is_dir():
        raise ValueError(f"data.path={str(path)!r} is a file; give the dataset's folder")
    return path


def _files(path: Path, suffixes: tuple[str, ...]) -> tuple[Path, ...]:
    """The file itself, of any name; or those of a folder by the end of their names."""
    if path.is_file():
        return (path,)
    found = tuple(
        file
        for file in sorted(path.rglob("*"))
        if file.name.endswith(suffixes)
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not found:
        raise ValueError(
            f"data.path={str(path)!r} holds no file that ends in {', '.join(suffixes)}; "
            "name another folder, or the file itself"
        )
    return found


def _first_bytes(found: Iterable[Document], limit_bytes: int | None) -> Iterator[Document]:
    """Documents up to the limit, with one byte between two; the last is cut to whole characters."""
    used_bytes = 0
    for document in found:
        text = _utf8(document)
        if limit_bytes is None or used_bytes + len(text) < limit_bytes:
            yield document
            used_bytes += len(text) + 1
            continue
        rest = text[: limit_bytes - used_bytes].decode("utf-8", errors="ignore")
        if rest:
            yield Document(rest, document.where)
        return


def _utf8(document: Document) -> bytes:
    try:
        return document.text.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair
        raise ValueError(
            f"{document.where}: its text is no Unicode ({error.reason} at character "
            f"{error.start}); repair or leave out this document"
        ) from error
