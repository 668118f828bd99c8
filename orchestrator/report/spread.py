"""Many replicates in few rows: quantiles over seeds of what a judgement says seed by seed."""

from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.calibration.pooled import Row
from orchestrator.report.words import Cell

QUANTILES = (("least", 0.0), ("5 %", 0.05), ("middle", 0.5), ("95 %", 0.95), ("largest", 1.0))
_LEFT_OUT = ("seed", "draws", "of")


def spread_over_seeds(rows: Sequence[Mapping[str, Cell]]) -> list[Row]:
    """One row a figure: its quantiles over the seeds that know it, linear interpolation."""
    names = dict.fromkeys(key for row in rows for key in row if key not in _LEFT_OUT)
    found: list[Row] = []
    for name in names:
        values = [v for row in rows if isinstance(v := row.get(name), int | float)]
        if not values:
            continue
        row: Row = {"figure": name.replace("_", " "), "seeds": len(values)}
        for word, q in QUANTILES:
            row[word] = float(np.quantile(values, q))
        found.append(row)
    return found
