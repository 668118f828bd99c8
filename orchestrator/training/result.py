"""What training cost: final validation loss of every arm at equal tokens, from the run folders.

The unit of replication is the seed; an arm is compared with another one seed by seed.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from scipy import stats

from actors.config import MergeConfig
from actors.events import (
    CheckpointFailed,
    IslandDropped,
    IslandFinished,
    IslandJoined,
    MergeFailed,
    MergeFinished,
    Validated,
)
from orchestrator.rundir import check_unedited, read_study_config, run_folders
from orchestrator.training.record import StepRecord, read_step_run
from policies.config import FixedHConfig

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One run. None where it is not known."""

    arm: str
    kind: str
    seed: int
    status: str
    why: str | None
    validation_loss: float | None  # of the final global parameters, nats a token
    train_loss_end: float | None  # mean over the last tenth of the inner steps, all islands
    tokens: int
    inner_steps: int
    merges: int
    merges_failed: int
    islands_dropped: int
    islands_joined: int
    checkpoints_failed: int
    hashes_equal: bool | None  # over islands after every merge; None: no merge that makes them so
    parameter_hash: str | None  # the islands' at the end; None where they differ


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm over its seeds; intervals are Student's t."""

    arm: str
    seeds: int
    loss_mean: float | None
    loss_low: float | None
    loss_high: float | None
    price_mean: float | None  # loss minus the yardstick's, paired by seed
    price_low: float | None
    price_high: float | None
    tokens: float
    merges: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The table of a study on the step clock."""

    study: str
    yardstick: str | None
    arms: tuple[ArmResult, ...]
    runs: tuple[StepMetrics, ...]


def step_metrics(record: StepRecord) -> StepMetrics:
    """From the events and the training rows alone."""
    events = record.events
    closing = [e for e in events if isinstance(e, Validated) and e.closing]
    merges = [e for e in events if isinstance(e, MergeFinished)]
    ended = [e for e in events if isinstance(e, IslandFinished)]
    hashes = {e.parameter_hash for e in ended}
    equal = [
        len({part.parameter_hash for part in merge.parts if part.parameter_hash}) <= 1
        for merge in merges
        if _leaves_islands_equal(record)
    ]
    arm = record.config["arm"]
    return StepMetrics(
        arm=arm["label"],
        kind=arm["kind"],
        seed=int(record.config["seed"]),
        status=record.status,
        why=record.why,
        validation_loss=closing[-1].loss if closing else None,
        train_loss_end=_last_tenth(record),
        tokens=int(pc.sum(record.train["tokens"]).as_py() or 0),
        inner_steps=len(record.train),
        merges=len(merges),
        merges_failed=sum(isinstance(e, MergeFailed) for e in events),
        islands_dropped=sum(isinstance(e, IslandDropped) for e in events),
        islands_joined=sum(isinstance(e, IslandJoined) for e in events),
        checkpoints_failed=sum(isinstance(e, CheckpointFailed) for e in events),
        hashes_equal=all(equal) if equal else None,
        parameter_hash=hashes.pop() if len(hashes) == 1 else None,
    )


def _leaves_islands_equal(record: StepRecord) -> bool:
    merge = record.config["study"]["merge"]
    return bool(MergeConfig.model_validate_json(json.dumps(merge)).leaves_islands_equal)


def _last_tenth(record: StepRecord) -> float | None:
    table = record.train
    if len(table) == 0:
        return None
    steps = table["step"].to_numpy()
    losses = table["loss"].to_numpy()
    late = losses[steps > 0.9 * steps.max()]
    return float(np.mean(late)) if len(late) and np.isfinite(late).all() else None


def study_result(study_dir: Path) -> StepResult:
    """Every complete run of the study; the yardstick is its fixed_h arm, if it has one."""
    study = read_study_config(study_dir)
    folders = [f for f in run_folders(study_dir) if (f / "config.json").exists()]
    records = [read_step_run(folder) for folder in folders]
    for record in records:
        check_unedited(record.path / "config.json", record.config)
    runs = tuple(step_metrics(record) for record in records)
    fixed = [name for name, p in study.policies.items() if isinstance(p, FixedHConfig)]
    labels = {run.arm for run in runs}
    yardstick = next((name for name in fixed if name in labels), None)
    by_arm: dict[str, dict[int, StepMetrics]] = defaultdict(dict)
    for run in runs:
        if run.status == "complete":
            by_arm[_family(run)][run.seed] = run
    losses = _losses(runs)
    arms = tuple(
        _arm_result(name, seeds, losses, yardstick=yardstick)
        for name, seeds in sorted(by_arm.items())
    )
    return StepResult(study=study.study, yardstick=yardstick, arms=arms, runs=runs)


def _family(run: StepMetrics) -> str:
    """Draws of matched random are one arm: their mean is a seed's value."""
    return run.arm.rsplit("-d", 1)[0] if run.kind == "matched_random" else run.arm


def _losses(runs: Sequence[StepMetrics]) -> dict[str, dict[int, float]]:
    """Loss by arm and seed, draws averaged; a run without one leaves its seed out."""
    found: dict[str, dict[int, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.status == "complete":
            found[_family(run)][run.seed].append(run.validation_loss)
    return {
        arm: {
            seed: float(np.mean([v for v in values if v is not None]))
            for seed, values in seeds.items()
            if None not in values
        }
        for arm, seeds in found.items()
    }


def _arm_result(
    arm: str,
    runs: Mapping[int, StepMetrics],
    losses: Mapping[str, Mapping[int, float]],
    *,
    yardstick: str | None,
) -> ArmResult:
    own = losses.get(arm, {})
    loss = mean_interval(list(own.values()))
    price: tuple[float | None, float | None, float | None] = (None, None, None)
    if yardstick is not None and arm != yardstick:
        base = losses.get(yardstick, {})
        price = mean_interval([own[seed] - base[seed] for seed in own if seed in base])
    return ArmResult(
        arm=arm,
        seeds=len(own),
        loss_mean=loss[0],
        loss_low=loss[1],
        loss_high=loss[2],
        price_mean=price[0],
        price_low=price[1],
        price_high=price[2],
        tokens=float(np.mean([run.tokens for run in runs.values()])),
        merges=float(np.mean([run.merges for run in runs.values()])),
    )


def mean_interval(
    values: Sequence[float],
) -> tuple[float | None, float | None, float | None]:
    """Mean and its two-sided t interval; no interval from fewer than two values."""
    if not values:
        return None, None, None
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None, None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * error
    return mean, mean - half, mean + half


def result_lines(result: StepResult) -> list[str]:
    """The table as text; nothing was served, and it says so."""
    lines = [
        f"study {result.study}: trained on the step clock, nothing was served",
        f"{'arm':34s} {'seeds':>5s} {'merges':>7s} {'tokens':>11s}  validation loss"
        f"{'':16s} minus {result.yardstick or '(no fixed_h arm)'}",
    ]
    for arm in result.arms:
        lines.append(
            f"{arm.arm:34s} {arm.seeds:5d} {arm.merges:7.1f} {arm.tokens:11.0f}  "
            f"{_interval(arm.loss_mean, arm.loss_low, arm.loss_high):30s} "
            f"{_interval(arm.price_mean, arm.price_low, arm.price_high)}"
        )
    return lines


def _interval(mean: float | None, low: float | None, high: float | None) -> str:
    if mean is None:
        return "-"
    if low is None or high is None:
        return f"{mean:.4f}"
    return f"{mean:.4f} [{low:.4f}, {high:.4f}]"
