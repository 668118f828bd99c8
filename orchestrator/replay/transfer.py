"""The transfer check: a fitted plant on runs that took no part in the fit.

First in the windows that were recorded there (the plant alone), then with the policies deciding in
the replay themselves (plant and decisions together).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.config import StudyConfig
from orchestrator.metrics import percentile
from orchestrator.replay.block import replay_seed
from orchestrator.replay.calibrated import Decisions, FigureError, Transfer
from orchestrator.replay.compare import figure_errors, pair_up, seed_errors, stated_error
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.measured import MeasuredRun


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A policy's run as it was, and as the replay has it."""

    run: MeasuredRun
    figures: ReplayFigures


def check_transfer(
    study: StudyConfig,
    runs: Sequence[MeasuredRun],
    *,
    plant: PlantConfig,
    study_dir: Path | None,
    resample_seed: int,
) -> Transfer | None:
    """Errors on held-out runs; None without one.

    ``study_dir``: the study file's folder, which a trace's path starts from.
    """
    if not runs:
        return None
    pairs = pair_up(runs, plant=plant)
    replayed, notes = replay_policies(study, runs, plant=plant, study_dir=study_dir)
    return Transfer(
        runs=tuple(r.key for r in runs),
        seeds=tuple(sorted({r.key.seed for r in runs})),
        figures=figure_errors(pairs, resample_seed=resample_seed),
        by_seed=seed_errors(pairs),
        replayed=_replayed_errors(replayed),
        decisions=_decisions(replayed),
        notes=notes,
    )


def replay_policies(
    study: StudyConfig,
    runs: Sequence[MeasuredRun],
    *,
    plant: PlantConfig,
    study_dir: Path | None,
) -> tuple[list[Replayed], tuple[str, ...]]:
    """The runs whose policy decided for itself, decided again; and why some are not."""
    found: list[Replayed] = []
    policies = [r for r in runs if r.arm.kind == "policy"]
    for seed in sorted({r.key.seed for r in policies}):
        mine = {r.key.arm: r for r in policies if r.key.seed == seed}
        try:
            rows = replay_seed(
                study, seed=seed, plant=plant, study_dir=study_dir or Path(), arms=list(mine)
            )
        except (ValueError, OSError) as error:
            hint = "" if study_dir else " (--study-dir names the folder of the study file)"
            return [], (f"decisions not replayed: {error}{hint}",)
        for row in rows:
            run = mine[row.arm]
            if row.request_hash != run.key.request_hash:
                return [], (f"decisions not replayed: {run.key.name} was on other requests",)
            found.append(Replayed(run=run, figures=row))
    return found, ()


def _decisions(replayed: Sequence[Replayed]) -> tuple[Decisions, ...]:
    found = []
    for arm in sorted({r.run.key.arm for r in replayed}):
        mine = [r for r in replayed if r.run.key.arm == arm]
        apart = [_ticks_apart(t, r.figures.starts) for r in mine for t in r.run.start_ticks]
        found.append(
            Decisions(
                arm=arm,
                seeds=len(mine),
                merges=len(apart),
                same_tick=sum(a == 0 for a in apart),
                within_one_tick=sum(a <= 1 for a in apart),
            )
        )
    return tuple(found)


def _ticks_apart(tick: int, starts: Sequence[int]) -> float:
    """From a live merge to the nearest replayed one."""
    return min((float(abs(tick - s)) for s in starts), default=np.inf)


def _replayed_errors(replayed: Sequence[Replayed]) -> tuple[FigureError, ...]:
    """Rates over all requests; the p95 as a mean of the runs' own, which is what replays hold."""
    if not replayed:
        return ()
    seeds = len({r.run.key.seed for r in replayed})
    live, model = [], []
    violating, violating_model, counted = 0, 0, 0
    for r in replayed:
        m = r.run.measured
        p95_s = percentile(m.e2e_s[r.run.counted & m.ok], 0.95)
        if p95_s is not None and r.figures.e2e_p95_s is not None:
            live.append(p95_s)
            model.append(r.figures.e2e_p95_s)
        violating += int((r.run.counted & m.violates).sum())
        violating_model += r.figures.violations
        counted += int(r.run.counted.sum())
    return (
        stated_error(
            "e2e_p95_s",
            "merging",
            float(np.mean(live)) if live else None,
            float(np.mean(model)) if model else None,
            seeds=seeds,
        ),
        stated_error(
            "violation_rate",
            "merging",
            violating / counted if counted else None,
            violating_model / counted if counted else None,
            seeds=seeds,
        ),
    )
