"""How fast the machine was, told from the requests that no merge touched, without the plant."""

from collections.abc import Iterable, Sequence

import numpy as np

from orchestrator.metrics import Floats, percentile
from orchestrator.replay.calibrated import MachineSpeed
from orchestrator.replay.measured import MeasuredRun, tpot_s

SHARE = 0.1  # of the requests: those that had the server to themselves


def machine_speed(
    fitted: Sequence[MeasuredRun], held_out: Sequence[MeasuredRun]
) -> MachineSpeed | None:
    """Both parts beside each other; None where one of them has no run without merges."""
    ours, theirs = _token_s(fitted), _token_s(held_out)
    if ours is None or theirs is None:
        return None
    runs = (*fitted, *held_out)
    by_seed = [
        (seed, _token_s(r for r in runs if r.key.seed == seed))
        for seed in sorted({r.key.seed for r in runs})
    ]
    return MachineSpeed(
        fitted_s=ours,
        held_out_s=theirs,
        by_seed=tuple((seed, token_s) for seed, token_s in by_seed if token_s is not None),
    )


def _token_s(runs: Iterable[MeasuredRun]) -> float | None:
    plain: list[Floats] = []
    for run in runs:
        if not run.merging:
            took_s = tpot_s(run)
            plain.append(took_s[run.counted & run.measured.ok & (took_s > 0.0)])
    return percentile(np.concatenate(plain), SHARE) if plain else None
