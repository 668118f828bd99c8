"""Early stopping, paired over blocks: which settings are not worth their remaining blocks.

It decides what is searched and nothing of what is claimed: verdicts come from held-out blocks.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from orchestrator.calibration.statistics import Floats
from orchestrator.sweep.blocks import Block
from orchestrator.sweep.config import EarlyStoppingConfig
from orchestrator.sweep.figures import BlockFigures, by_seed


def clearly_worse(
    rows: Sequence[BlockFigures],
    best: Mapping[Block, BlockFigures],
    *,
    rule: EarlyStoppingConfig,
) -> bool:
    """Whether the one-sided lower bound of (gain of best - gain of this), by seed, is above 0.

    A seed's share of a gain is (control - policy) / mean control over the seeds seen; both settings
    saw equal traffic, so the difference is paired (Student t at ``rule.confidence``). False before
    ``after_seeds`` seeds, and wherever a rate is unknown.
    """
    theirs = [best[r.block] for r in rows if r.block in best]
    mine, other = _shares(rows), _shares(theirs)
    if mine is None or other is None or len(theirs) != len(rows) or len(mine) < rule.after_seeds:
        return False
    difference = other - mine
    spread = float(difference.std(ddof=1))
    if spread == 0.0:
        return float(difference[0]) > 0.0
    quantile = float(stats.t.ppf(rule.confidence, len(difference) - 1))
    return float(difference.mean()) > quantile * spread / math.sqrt(len(difference))


def _shares(rows: Sequence[BlockFigures]) -> Floats | None:
    """Each seed's part of the gain, over its loads together; their mean is the gain.  # [seed]"""
    pairs = by_seed(rows)
    if pairs is None:
        return None
    p = np.array([rate for rate, _ in pairs.values()])
    c = np.array([np.mean(draws) for _, draws in pairs.values()])
    mean = float(c.mean())
    return (c - p) / mean if mean > 0 else None
