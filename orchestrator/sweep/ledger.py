"""results.jsonl: one line a setting and block, written by the driver alone, never rewritten.

It is the truth of a sweep; what Ray Tune keeps beside it is never read back. A line that a kill
cut off is dropped, and its block is played again with the same bits.
"""

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from orchestrator.record_files import LineFile, read_lines, strict_json
from orchestrator.sweep.blocks import Block
from orchestrator.sweep.figures import BlockFigures, from_json


class Ledger:
    """All results known by now, on disk before they are used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = LineFile(path)
        self._rows: dict[tuple[str, Block], BlockFigures] = {}
        lines, torn = read_lines(path)
        for number, line in lines:
            try:
                row = from_json(line)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{path}, line {number}: is no result ({error}); remove the line, its block is "
                    "played again"
                ) from error
            self._rows[row.setting, row.block] = row
        if torn:
            _drop_last_line(path)

    def add(self, rows: Iterable[BlockFigures]) -> None:
        """Append what is new; a block that is known must have come out equal."""
        fresh = []
        for row in rows:
            known = self._rows.get((row.setting, row.block))
            if known is None:
                fresh.append(row)
            elif known != row:
                raise ValueError(
                    f"{self.path}: setting {row.setting}, {row.block.name} came out another way "
                    "than before: results are not repeatable; was the code or the plant changed?"
                )
        if fresh:
            where = str(self.path)
            self._file.append("".join(strict_json(asdict(r), where=where) + "\n" for r in fresh))
            self._rows |= {(r.setting, r.block): r for r in fresh}

    def of(self, setting: str) -> dict[Block, BlockFigures]:
        return {block: row for (name, block), row in self._rows.items() if name == setting}

    @property
    def rows(self) -> list[BlockFigures]:
        """In an order that does not depend on the machine: by setting, then by block."""
        return [self._rows[key] for key in sorted(self._rows)]

    def close(self) -> None:
        self._file.close()


def _drop_last_line(path: Path) -> None:
    data = path.read_bytes()
    os.truncate(path, data.rfind(b"\n") + 1)
