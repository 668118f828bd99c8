"""Files of a record: whole lines appended, whole files swapped in; a full disk damages nothing.

Strict JSON only: nan and infinity are refused where they would be written.
"""

import contextlib
import errno
import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.shell import command

DERIVED = {"metrics.json", "verdicts.json", "report.html"}  # computed from the record, as plots
_OF_RECORDS = ("config.json", "study.json", "sweep.json")  # one of them stands beside a record
_FULL = {errno.ENOSPC, errno.EDQUOT}


class RecordFailed(RuntimeError):
    """The record could not be written; takes one message."""


@contextlib.contextmanager
def guarded(path: Path) -> Iterator[None]:
    """A full disk becomes one clear line; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        full = f"{path}: disk full ({os.strerror(error.errno)})"
        if path.name in DERIVED or path.suffix == ".png":
            raise RecordFailed(
                f"{full}; no record is lost, this file is computed: free space, then give the same "
                f"command again (`{command('lull')} report STUDY_RUN` for the plots of a study)"
            ) from error
        if not any((path.parent / name).exists() for name in _OF_RECORDS):
            raise RecordFailed(
                f"{full}; nothing else was changed: free space, then give the same command again"
            ) from error
        raise RecordFailed(
            f"{full} while writing the record; what was written before is whole: free space, then "
            "run the study again (complete runs are reused)"
        ) from error


def strict_json(value: Any, *, where: str, indent: int | None = None) -> str:
    """JSON text; ValueError with its place for nan, infinity or a type that JSON lacks."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent)
    except (ValueError, TypeError) as error:
        found = next(_not_json(value, ""), None)
        if found is None:
            raise ValueError(f"{where}: cannot be written as strict JSON: {error}") from error
        key, bad = found
        shown = repr(bad) if isinstance(bad, float) else f"a value of type {type(bad).__name__}"
        raise ValueError(
            f"{where}: {f'{key}: ' if key else ''}{shown} cannot be written as strict JSON; give a "
            "finite number or text"
        ) from error


def _not_json(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    """Places of what strict JSON cannot hold, with it."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _not_json(below, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list | tuple):
        for i, below in enumerate(value):
            yield from _not_json(below, f"{at}[{i}]")
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield at, value
    elif value is not None and not isinstance(value, str | int):
        yield at, value


def parse_json(text: str | bytes) -> Any:
    """Strict JSON; ValueError on anything else: nan, infinity, a key that stands twice."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=each_key_once)
    except RecursionError as error:
        raise ValueError("its objects stand too deep in each other") from error


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these pairs, as json.loads asks for it; ValueError names a key that is twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise ValueError(f"key {twice!r} stands twice; keep one of them")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no strict JSON")


def read_json(path: Path) -> Any:
    """A whole JSON file; ValueError names it when it is missing or broken."""
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}); is this a run folder?"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{path}: is no strict JSON ({error}); restore it or remove the run"
        ) from error


def write_atomic(path: Path, data: bytes) -> None:
    """The old file or the whole new one, also after a power cut; never a half."""
    temporary = path.with_name(path.name + ".tmp")
    with guarded(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (strict_json(value, where=str(path), indent=1) + "\n").encode())


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class LineFile:
    """Appends whole lines, each handed to the system at once; a failed one is taken back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def append(self, text: str) -> None:
        """``text`` is one or more lines, each ended."""
        with guarded(self.path):
            if self._handle is None:
                self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            end = os.lseek(self._handle, 0, os.SEEK_END)
            data = memoryview(text.encode())
            try:
                while data:
                    data = data[os.write(self._handle, data) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._handle, end)
                raise

    def close(self) -> None:
        """Everything on the disk; the file can be appended to again."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        with guarded(self.path):
            try:
                os.fsync(handle)
            except OSError as error:
                if error.errno != errno.EINVAL:  # special files cannot be synced
                    raise
            finally:
                os.close(handle)


def read_lines(path: Path) -> tuple[list[tuple[int, Any]], bool]:
    """Numbered JSON lines and whether the last line is torn (dropped then).

    Torn: the last line has no line end and does not parse, as a kill in mid-write leaves it.
    Any other broken line is a ValueError with file and line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], False
    found: list[tuple[int, Any]] = []
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line:
            break
        try:
            found.append((number, parse_json(line)))
        except ValueError as error:
            if number == len(lines):
                return found, True
            raise ValueError(
                f"{path}, line {number}: is no strict JSON ({error}); the record was damaged after "
                "it was written: restore it or remove the run folder"
            ) from error
    return found, False
