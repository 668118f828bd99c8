"""The bytes of a trace file: unpacked, recognised by content, in blocks of whole lines.

No more than one block is held at a time; whatever cannot be read is named with its path.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

BLOCK_BYTES = 1 << 21
LONGEST_LINE_BYTES = 1 << 24
PARQUET = b"PAR1"
_GZIP = b"\x1f\x8b"
_PACKED = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "packed by bzip2",
    b"\xfd7zXZ": "packed by xz",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"7z\xbc\xaf": "a 7-Zip archive",
}
_WIDE = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Whole lines; only the last line of a file may lack its newline."""

    first_line: int  # counted from 1
    data: bytes

    @property
    def lines(self) -> int:
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, unpacked if it is gzip; every failure to read is a ValueError with the path."""
    try:
        with path.open("rb") as raw:
            if raw.peek(2)[:2] != _GZIP:
                yield raw
                return
            with gzip.GzipFile(fileobj=raw) as unpacked, io.BufferedReader(unpacked) as file:
                yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        early = isinstance(error, EOFError)
        what = "gzip data ends early" if early else f"gzip data is damaged ({error})"
        raise ValueError(f"{path}: {what}; copy or download the file again") from error
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror or error}); give the path of a trace file "
            "(in a study: relative to the study file)"
        ) from error


def magic(path: Path) -> bytes:
    """The first bytes after unpacking; refuses what no loader takes."""
    with opened(path) as file:
        first = file.read(8)
    if not first:
        raise ValueError(f"{path}: the file is empty; give a trace with at least one request")
    for mark, what in _PACKED.items():
        if first.startswith(mark):
            raise ValueError(f"{path}: is {what}; unpack it, or pack it as .gz")
    if first.startswith(_GZIP):
        raise ValueError(f"{path}: is packed by gzip twice; unpack it once")
    if first.startswith(_WIDE) or (b"\x00" in first and not first.startswith(PARQUET)):
        raise ValueError(f"{path}: line 1: is UTF-16 or UTF-32 text; save it as UTF-8")
    return first


def blocks(path: Path) -> Iterator[Block]:
    """All text of the file, UTF-8 checked, without a byte-order mark at the start."""
    line, size_bytes = 1, BLOCK_BYTES
    with opened(path) as file:
        rest = b""
        while True:
            chunk = file.read(size_bytes)
            if line == 1 and not rest:
                chunk = chunk.removeprefix(_BOM)
            data = rest + chunk
            cut = data.rfind(b"\n") + 1 if len(chunk) else len(data)
            data, rest = data[:cut], data[cut:]
            if len(rest) > max(LONGEST_LINE_BYTES, size_bytes):
                raise ValueError(
                    f"{path}: line {line + data.count(10)}: is longer than "
                    f"{LONGEST_LINE_BYTES >> 20} MiB; write one request a line"
                )
            if data:
                block = Block(first_line=line, data=data)
                _check_text(path, block)
                line += data.count(b"\n")
                yield block
            if not chunk:
                return


def _check_text(path: Path, block: Block) -> None:
    if block.data.isascii():
        wrong = block.data.find(b"\x00")
        fault = "is a zero byte"
    else:
        try:
            block.data.decode()
        except UnicodeDecodeError as error:
            wrong, fault = error.start, "is no UTF-8"
        else:
            return
    if wrong >= 0:
        line = block.first_line + block.data.count(b"\n", 0, wrong)
        raise ValueError(
            f"{path}: line {line}: byte {block.data[wrong]:#04x} {fault}; save the file as UTF-8 "
            "text (unpack it first if it is compressed)"
        )
