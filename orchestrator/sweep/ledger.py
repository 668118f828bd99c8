"""results.jsonl: what was asked for, played and judged; a line each, by the driver alone, for ever.

It is the truth of a sweep; what Ray Tune keeps beside it is never read back. A line that a kill
cut off is dropped, and its block is played again with the same bits.

Three kinds of line: a setting asked for, a block played, the judging begun. Each ends with a hash
over itself and the sweep that it belongs to, so an edited line and a line of another sweep are
refused; `recheck.py` plays finished blocks again. What neither can catch: a whole line taken out
(its block is played, its setting asked for again; of the judging, judging.json still tells); a
folder thrown away and begun anew; and hashes made with this code for made-up rates of settings
that do not win, where the blocks drawn for the recheck miss them.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.record_files import LineFile, read_lines, strict_json
from orchestrator.sweep.blocks import Block
from orchestrator.sweep.figures import BlockFigures, from_json

ASKED, BLOCK, JUDGING = "asked", "block", "judging"
HASH_DIGITS = 16


class Ledger:
    """All that is known by now, on disk before it is used; ``identity`` names the sweep."""

    def __init__(self, path: Path, *, identity: str) -> None:
        self.path = path
        self._identity = identity
        self._file = LineFile(path)
        self._rows: dict[tuple[str, Block], BlockFigures] = {}
        self._controls: dict[tuple[str, Block], tuple[float | None, ...]] = {}
        self._lines: dict[tuple[str, Block], int] = {}  # of what was there before
        self._asked: set[tuple[int, str]] = set()
        self._judging: str | None = None
        lines, torn = read_lines(path)
        for number, line in lines:
            self._read(line, number=number)
        _end_last_line(path, torn=torn)

    def _read(self, line: Any, *, number: int) -> None:
        where = f"{self.path}, line {number}"
        kind, fields = self._checked(line, where=where)
        try:
            if kind == BLOCK:
                row = from_json(fields)
                self._keep(row)
                self._lines[row.setting, row.block] = number
            elif kind == ASKED:
                self._asked.add((int(fields["number"]), str(fields["setting"])))
            elif kind == JUDGING:
                self._judging = self._judging or str(fields["setting"])
            else:
                raise ValueError(f"entry {kind!r} is unknown")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: is no result ({error}); {_WAY_OUT}") from error

    def _checked(self, line: Any, *, where: str) -> tuple[Any, dict[str, Any]]:
        """Kind and fields of a line whose hash is right."""
        if not isinstance(line, dict):
            raise ValueError(f"{where}: is no result (no JSON object); {_WAY_OUT}")
        fields = {k: v for k, v in line.items() if k != "hash"}
        if line.get("hash") != self._hash(fields):
            raise ValueError(
                f"{where}: its hash does not fit: the line was changed after it was written, or "
                f"belongs to another sweep; {_WAY_OUT}"
            )
        return fields.pop("entry", None), fields

    def _hash(self, fields: Mapping[str, Any]) -> str:
        text = json.dumps([self._identity, fields], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]

    def _keep(self, row: BlockFigures) -> None:
        """Control runs are shared by settings of a corridor, so their rates have to agree."""
        known = self._controls.setdefault((row.controls, row.block), row.control_rates)
        if known != row.control_rates:
            raise ValueError(
                f"setting {row.setting}, {row.block.name}: control_rates are not those of other "
                "settings with the same controls"
            )
        self._rows[row.setting, row.block] = row

    def _append(self, kind: str, entries: Iterable[Mapping[str, Any]]) -> None:
        lines = []
        for entry in entries:
            # Through JSON first: what is read back is what was hashed.
            text = strict_json({"entry": kind, **entry}, where=str(self.path))
            fields = json.loads(text)
            lines.append(json.dumps({**fields, "hash": self._hash(fields)}, allow_nan=False))
        self._file.append("".join(line + "\n" for line in lines))

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
            self._append(BLOCK, [asdict(row) for row in fresh])
            for row in fresh:
                self._keep(row)

    def is_old(self, row: BlockFigures) -> bool:
        """Whether the block was on disk before this process began."""
        return (row.setting, row.block) in self._lines

    def place(self, row: BlockFigures) -> str:
        """File and line of a block that was there before."""
        return f"{self.path}, line {self._lines.get((row.setting, row.block), 'unknown')}"

    def ask(self, number: int, setting: str) -> None:
        """The search has asked for a setting, as number ``number`` from 0; refused ones too."""
        if (number, setting) not in self._asked:
            self._append(ASKED, [{"number": number, "setting": setting}])
            self._asked.add((number, setting))

    def begin_judging(self, setting: str, *, settings_tried: int) -> None:
        """The held-out blocks are about to be looked at; the first time counts."""
        if self._judging is None:
            self._append(JUDGING, [{"setting": setting, "settings_tried": settings_tried}])
            self._judging = setting

    @property
    def judging(self) -> str | None:
        """The setting that the held-out blocks were used for."""
        return self._judging

    @property
    def asked(self) -> int:
        """How many settings were asked for: the sweep may never ask for fewer."""
        unasked = self.settings - {setting for _, setting in self._asked}
        return 1 + max((number for number, _ in self._asked), default=-1) + len(unasked)

    @property
    def settings(self) -> frozenset[str]:
        """Every setting with a block in it: each of them was a try."""
        return frozenset(setting for setting, _ in self._rows)

    def of(self, setting: str) -> dict[Block, BlockFigures]:
        return {block: row for (name, block), row in self._rows.items() if name == setting}

    @property
    def rows(self) -> list[BlockFigures]:
        """In an order that does not depend on the machine: by setting, then by block."""
        return [self._rows[key] for key in sorted(self._rows)]

    def close(self) -> None:
        self._file.close()


_WAY_OUT = "restore it, or start again with another --out"


def _end_last_line(path: Path, *, torn: bool) -> None:
    """What a kill cut off is dropped; a line that lacks its end alone is whole."""
    if not path.exists():
        return
    data = path.read_bytes()
    if torn:
        os.truncate(path, data.rfind(b"\n") + 1)
    elif data and not data.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
