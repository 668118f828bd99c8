"""BurstGPT states each request's total of tokens; where it is not the sum of its parts, say so."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.workload.rows import Batch

TOTAL = "Total tokens"


@dataclass(slots=True, kw_only=True)
class Totals:
    """Rows whose total is another number; the first of them with its values."""

    path: Path
    columns: tuple[str, str]  # of the prompt's and of the answer's tokens
    wrong: int = 0
    first: str = ""

    def look(self, totals: pa.Array | Sequence[str], batch: Batch) -> None:
        """``totals``: the cells of the batch's rows, as text."""
        cells = pc.utf8_trim_whitespace(pa.array(totals, pa.string()))
        sums = pc.cast(pa.array(batch.prompt_tokens + batch.output_tokens), pa.string())
        rows = np.flatnonzero(pc.not_equal(cells, sums).to_numpy(zero_copy_only=False))
        if len(rows) and not self.wrong:
            at = int(rows[0])
            parts = f"{batch.prompt_tokens[at]} + {batch.output_tokens[at]}"
            self.first = f"the first at line {batch.lines[at]}: {cells[at].as_py()!r} for {parts}"
        self.wrong += len(rows)

    def notes(self) -> list[str]:
        """One note, or none."""
        if not self.wrong:
            return []
        prompt, output = self.columns
        return [
            f"{self.path}: {self.wrong} row(s) whose {TOTAL} is not {prompt} + {output}, "
            f"{self.first}; the total is not used"
        ]
