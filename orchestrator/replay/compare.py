"""Measured against simulated: the same figures of the same runs, and how far they lie apart.

Figures are of counted requests, pooled over runs; percentiles are never averaged. A prediction
pools several draws of the plant's noise: it is what the plant expects, not one of its days.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from orchestrator.metrics import Flags, Floats, percentile, within
from orchestrator.replay.calibrated import (
    AIMS,
    LEAST_SEEDS,
    POINTS,
    FigureError,
    Group,
    SeedErrors,
    judged,
)
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.measured import Latencies, MeasuredRun, predicted
from orchestrator.replay.noise import noise_seeds
from policies.streams import stream

CONFIDENCE = 0.95
RESAMPLES = 300
DRAWS = 8  # of the plant's noise, pooled
PLAIN: tuple[Group, ...] = ("no_sync", "merging")
QUANTILES = {
    "e2e_p50_s": ("e2e_s", 0.5),
    "e2e_p95_s": ("e2e_s", 0.95),
    "ttft_p50_s": ("ttft_s", 0.5),
    "ttft_p95_s": ("ttft_s", 0.95),
}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A run as it was measured and as the plant has it, in several draws of its noise."""

    run: MeasuredRun
    predicted: tuple[Latencies, ...]


@dataclass(kw_only=True)
class Pool:
    """What one seed gives to the figures, on one side: measured, or all draws together."""

    latencies: dict[tuple[str, Group], list[Floats]] = field(default_factory=dict)
    counted: dict[Group, int] = field(default_factory=dict)
    violating: dict[Group, int] = field(default_factory=dict)
    inside: list[Floats] = field(default_factory=list)  # E2E in matched_random's windows
    plain: list[Floats] = field(default_factory=list)  # of the same ids in no_sync
    excess_s: float = 0.0
    merges: int = 0


Both = tuple[Pool, Pool]
Key = tuple[str, Group]


def pair_up(runs: Sequence[MeasuredRun], *, plant: PlantConfig, draws: int = DRAWS) -> list[Pair]:
    """Each run beside its predictions; in a draw, runs of a seed share the noise, as arms do."""
    return [
        Pair(
            run=run,
            predicted=tuple(
                predicted(run, plant=plant, noise_seed=s)
                for s in noise_seeds(run.key.seed, draws=draws)
            ),
        )
        for run in runs
    ]


def figure_errors(pairs: Sequence[Pair], *, resample_seed: int) -> tuple[FigureError, ...]:
    """All figures of all groups, with intervals over seeds."""
    pools = _by_seed(pairs)
    seeds = sorted(pools)
    drawn: list[Mapping[Key, float | None]] = []
    if len(seeds) >= LEAST_SEEDS:
        rng = stream(resample_seed, "transfer resamples")
        for _ in range(RESAMPLES):
            picked = rng.choice(len(seeds), size=len(seeds))
            both = _figures([pools[seeds[i]] for i in picked])
            drawn.append({key: error_of(key[0], *values) for key, values in both.items()})
    known = {key: 0 for key in _figures([])}
    for pool in pools.values():
        for key, values in _figures([pool]).items():
            known[key] += int(None not in values)
    return tuple(
        _error(key, both, seeds=known[key], drawn=[d[key] for d in drawn])
        for key, both in _figures(list(pools.values())).items()
    )


def excess_per_merge_s(pairs: Sequence[Pair]) -> tuple[float | None, float | None]:
    """Seconds that a merge adds to all requests together, measured and predicted; None: unknown."""
    pools = list(_by_seed(pairs).values())
    return _excess([both[0] for both in pools]), _excess([both[1] for both in pools])


def seed_errors(pairs: Sequence[Pair]) -> tuple[SeedErrors, ...]:
    """The same, seed by seed, without intervals."""
    return tuple(
        SeedErrors(
            seed=seed,
            figures=tuple(
                _error(key, both, seeds=int(None not in both), drawn=[])
                for key, both in _figures([pool]).items()
            ),
        )
        for seed, pool in sorted(_by_seed(pairs).items())
    )


def error_of(figure: str, measured: float | None, expected: float | None) -> float | None:
    """Points of a rate, else relative to what was measured; None where either is unknown."""
    if measured is None or expected is None:
        return None
    if figure in POINTS:
        return expected - measured
    return expected / measured - 1.0 if measured > 0.0 else None


def stated_error(
    figure: str, group: Group, measured: float | None, expected: float | None, *, seeds: int
) -> FigureError:
    """A figure without an interval."""
    return _error((figure, group), (measured, expected), seeds=seeds, drawn=[])


def _error(
    key: Key,
    both: tuple[float | None, float | None],
    *,
    seeds: int,
    drawn: Sequence[float | None],
) -> FigureError:
    figure, group = key
    error = error_of(figure, *both)
    known = [e for e in drawn if e is not None]
    interval = None
    if error is not None and known and len(known) == len(drawn):
        low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        interval = (float(low), float(high))
    aim = AIMS.get(figure)
    return FigureError(
        figure=figure,
        group=group,
        measured=both[0],
        predicted=both[1],
        error=error,
        interval=interval,
        seeds=seeds,
        aim=aim,
        within=judged(error, aim=aim),
    )


def _figures(pools: Sequence[Both]) -> dict[Key, tuple[float | None, float | None]]:
    """Measured and predicted of every figure of these seeds together."""
    sides = [[both[i] for both in pools] for i in (0, 1)]
    found: dict[Key, tuple[float | None, float | None]] = {}
    for group in PLAIN:
        for name, (column, q) in QUANTILES.items():
            found[name, group] = _two(_quantile(side, (column, group), q) for side in sides)
        found["violation_rate", group] = _two(_violation_rate(side, group) for side in sides)
    found["excess_per_merge_s", "merging"] = _two(_excess(side) for side in sides)
    found["effect_ratio", "windows"] = _two(_effect(side) for side in sides)
    return found


def _two(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    measured, expected = values
    return measured, expected


def _quantile(pools: Sequence[Pool], key: Key, q: float) -> float | None:
    parts = [part for pool in pools for part in pool.latencies.get(key, [])]
    return percentile(np.concatenate(parts), q) if parts else None


def _violation_rate(pools: Sequence[Pool], group: Group) -> float | None:
    counted = sum(pool.counted.get(group, 0) for pool in pools)
    return sum(pool.violating.get(group, 0) for pool in pools) / counted if counted else None


def _excess(pools: Sequence[Pool]) -> float | None:
    """Seconds that a merge adds to all requests together: E2E less that of the same ids without."""
    merges = sum(pool.merges for pool in pools)
    return sum(pool.excess_s for pool in pools) / merges if merges else None


def _effect(pools: Sequence[Pool]) -> float | None:
    """p95 of the requests scheduled in matched_random's windows over that of the same ids in
    no_sync; pooled over seeds as calibration/effects.py pools over draws.
    """
    inside = [part for pool in pools for part in pool.inside]
    plain = [part for pool in pools for part in pool.plain]
    if not inside:
        return None
    top, bottom = percentile(np.concatenate(inside), 0.95), percentile(np.concatenate(plain), 0.95)
    return None if top is None or bottom is None or bottom <= 0.0 else top / bottom


def _by_seed(pairs: Sequence[Pair]) -> dict[int, Both]:
    """The pools of each seed."""
    found: dict[int, Both] = {}
    for seed in sorted({p.run.key.seed for p in pairs}):
        mine = [p for p in pairs if p.run.key.seed == seed]
        expected = Pool()
        for draw in range(len(mine[0].predicted)):
            _add(expected, [(p.run, p.predicted[draw]) for p in mine])
        measured = Pool()
        _add(measured, [(p.run, p.run.measured) for p in mine])
        found[seed] = (measured, expected)
    return found


def _add(pool: Pool, runs: Sequence[tuple[MeasuredRun, Latencies]]) -> None:
    """One block of a seed: every run with its own latencies."""
    bases = [_by_id(run, answer) for run, answer in runs if run.arm.kind == "no_sync"]
    for run, answer in runs:
        group: Group = "merging" if run.merging else "no_sync"
        fine = run.counted & answer.ok
        for column in ("e2e_s", "ttft_s"):
            pool.latencies.setdefault((column, group), []).append(getattr(answer, column)[fine])
        pool.counted[group] = pool.counted.get(group, 0) + int(run.counted.sum())
        violating = int((run.counted & answer.violates).sum())
        pool.violating[group] = pool.violating.get(group, 0) + violating
        if run.merging and bases:
            _add_merging(pool, run, answer, fine, bases)


def _add_merging(
    pool: Pool,
    run: MeasuredRun,
    answer: Latencies,
    fine: Flags,
    bases: Sequence[Mapping[int, float]],
) -> None:
    """A run with merges beside the no_sync runs of its seed."""
    ids = run.request_id.tolist()
    plain = np.array([[base.get(i, np.nan) for i in ids] for base in bases])  # [no_sync run, id]
    paired = fine & np.isfinite(plain).all(axis=0)
    pool.excess_s += float((answer.e2e_s - plain.mean(axis=0))[paired].sum())
    pool.merges += len(run.windows)
    if run.arm.kind == "matched_random":
        chosen = paired & within(run.at_s, [(float(a), float(b)) for a, b in run.windows])
        pool.inside.append(answer.e2e_s[chosen])
        pool.plain += list(plain[:, chosen])


def _by_id(run: MeasuredRun, answer: Latencies) -> dict[int, float]:
    e2e_s = np.where(answer.ok, answer.e2e_s, np.nan)
    return dict(zip(run.request_id.tolist(), e2e_s.tolist(), strict=True))
