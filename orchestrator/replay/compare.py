"""Measured against simulated: the same figures of the same runs, and how far they lie apart.

Figures are of counted requests, pooled over runs; percentiles are never averaged.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.metrics import Flags, Floats, percentile, within
from orchestrator.replay.calibrated import (
    AIMS,
    POINTS,
    FigureError,
    Group,
    SeedErrors,
    judged,
)
from orchestrator.replay.measured import Latencies, MeasuredRun
from policies.streams import stream

CONFIDENCE = 0.95
LEAST_SEEDS = 5  # for an interval
RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A run as it was measured and as the plant has it."""

    run: MeasuredRun
    predicted: Latencies

    @property
    def seed(self) -> int:
        return self.run.key.seed


Side = Callable[[Pair], Latencies]
SIDES: tuple[Side, Side] = (lambda p: p.run.measured, lambda p: p.predicted)


def figure_errors(pairs: Sequence[Pair], *, resample_seed: int) -> tuple[FigureError, ...]:
    """All figures of all groups, with intervals over seeds."""
    seeds = sorted({p.seed for p in pairs})
    points = _figures(pairs)
    drawn: list[dict[tuple[str, Group], tuple[float | None, float | None]]] = []
    if len(seeds) >= LEAST_SEEDS:
        rng = stream(resample_seed, "transfer resamples")
        by_seed = {s: [p for p in pairs if p.seed == s] for s in seeds}
        for _ in range(RESAMPLES):
            picked = rng.choice(len(seeds), size=len(seeds))
            # a seed drawn twice counts twice, its runs paired with its own no_sync alone
            drawn.append(_figures_of([by_seed[seeds[i]] for i in picked]))
    return tuple(
        _error(name, group, both, seeds=_known_in(pairs, name, group), drawn=drawn)
        for (name, group), both in points.items()
    )


def seed_errors(pairs: Sequence[Pair]) -> tuple[SeedErrors, ...]:
    """The same, seed by seed, without intervals."""
    found = []
    for seed in sorted({p.seed for p in pairs}):
        mine = [p for p in pairs if p.seed == seed]
        figures = tuple(
            _error(name, group, both, seeds=int(None not in both), drawn=[])
            for (name, group), both in _figures(mine).items()
        )
        found.append(SeedErrors(seed=seed, figures=figures))
    return tuple(found)


def error_of(figure: str, measured: float | None, predicted: float | None) -> float | None:
    """Points of a rate, else relative to what was measured; None where either is unknown."""
    if measured is None or predicted is None:
        return None
    if figure in POINTS:
        return predicted - measured
    return predicted / measured - 1.0 if measured > 0.0 else None


def _error(
    name: str,
    group: Group,
    both: tuple[float | None, float | None],
    *,
    seeds: int,
    drawn: Sequence[dict[tuple[str, Group], tuple[float | None, float | None]]],
) -> FigureError:
    error = error_of(name, *both)
    spread = [error_of(name, *d.get((name, group), (None, None))) for d in drawn]
    known = [e for e in spread if e is not None]
    interval = None
    if error is not None and known and len(known) == len(spread):
        low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        interval = (float(low), float(high))
    aim = AIMS.get(name)
    return FigureError(
        figure=name,
        group=group,
        measured=both[0],
        predicted=both[1],
        error=error,
        interval=interval,
        seeds=seeds,
        aim=aim,
        within=judged(error, aim=aim),
    )


def _known_in(pairs: Sequence[Pair], name: str, group: Group) -> int:
    """Seeds that have a run of the group."""
    return len({p.seed for p in pairs if _in_group(p, group)})


def _in_group(pair: Pair, group: Group) -> bool:
    if group == "windows":
        return pair.run.arm.kind == "matched_random" and pair.run.merging
    return pair.run.merging == (group == "merging")


def _figures(pairs: Sequence[Pair]) -> dict[tuple[str, Group], tuple[float | None, float | None]]:
    seeds = sorted({p.seed for p in pairs})
    return _figures_of([[p for p in pairs if p.seed == s] for s in seeds])


def _figures_of(
    blocks: Sequence[Sequence[Pair]],
) -> dict[tuple[str, Group], tuple[float | None, float | None]]:
    """Measured and predicted of every figure; one block a seed."""
    found: dict[tuple[str, Group], tuple[float | None, float | None]] = {}
    groups: tuple[Group, ...] = ("no_sync", "merging")
    for group in groups:
        chosen = [p for block in blocks for p in block if _in_group(p, group)]
        for name, value in _PLAIN.items():
            found[name, group] = (value(chosen, SIDES[0]), value(chosen, SIDES[1]))
    found["excess_per_merge_s", "merging"] = (_excess(blocks, SIDES[0]), _excess(blocks, SIDES[1]))
    found["effect_ratio", "windows"] = (_effect(blocks, SIDES[0]), _effect(blocks, SIDES[1]))
    return found


def _quantile(name: str, q: float) -> Callable[[Sequence[Pair], Side], float | None]:
    def value(pairs: Sequence[Pair], side: Side) -> float | None:
        parts = [getattr(side(p), name)[_fine(p, side(p))] for p in pairs]
        return percentile(np.concatenate(parts), q) if parts else None

    return value


def _fine(pair: Pair, latencies: Latencies) -> Flags:
    return pair.run.counted & latencies.ok


def _violation_rate(pairs: Sequence[Pair], side: Side) -> float | None:
    counted = sum(int(p.run.counted.sum()) for p in pairs)
    violating = sum(int((p.run.counted & side(p).violates).sum()) for p in pairs)
    return violating / counted if counted else None


_PLAIN: dict[str, Callable[[Sequence[Pair], Side], float | None]] = {
    "e2e_p50_s": _quantile("e2e_s", 0.5),
    "e2e_p95_s": _quantile("e2e_s", 0.95),
    "ttft_p50_s": _quantile("ttft_s", 0.5),
    "ttft_p95_s": _quantile("ttft_s", 0.95),
    "violation_rate": _violation_rate,
}


def _excess(blocks: Iterable[Sequence[Pair]], side: Side) -> float | None:
    """Seconds that a merge adds to all requests together: E2E less that of the same ids without."""
    total_s, merges = 0.0, 0
    for block in blocks:
        base = _base(block, side)
        for pair in block if base is not None else ():
            if pair.run.merging:
                mine = np.where(_fine(pair, side(pair)), side(pair).e2e_s, np.nan)
                total_s += float(np.nansum(mine - _matched(base, pair)))
                merges += len(pair.run.windows)
    return total_s / merges if merges else None


def _effect(blocks: Iterable[Sequence[Pair]], side: Side) -> float | None:
    """p95 of the requests scheduled in matched_random's windows over that of the same ids in
    no_sync, pooled over seeds as calibration/effects.py pools over draws.
    """
    inside: list[Floats] = []
    plain: list[Floats] = []
    for block in blocks:
        bases = [_by_id(p, side) for p in block if p.run.arm.kind == "no_sync"]
        for pair in block if bases else ():
            if not _in_group(pair, "windows"):
                continue
            run = pair.run
            chosen = _fine(pair, side(pair)) & within(run.at_s, map(tuple, run.marked))
            ids = run.request_id[chosen].tolist()
            mine = dict(zip(ids, side(pair).e2e_s[chosen].tolist(), strict=True))
            kept = [i for i in ids if all(np.isfinite(b.get(i, np.nan)) for b in bases)]
            inside.append(np.array([mine[i] for i in kept]))
            plain += [np.array([b[i] for i in kept]) for b in bases]
    if not inside:
        return None
    top = percentile(np.concatenate(inside), 0.95)
    bottom = percentile(np.concatenate(plain), 0.95)
    return None if top is None or bottom is None or bottom <= 0.0 else top / bottom


def _by_id(pair: Pair, side: Side) -> dict[int, float]:
    e2e_s = np.where(side(pair).ok, side(pair).e2e_s, np.nan)
    return dict(zip(pair.run.request_id.tolist(), e2e_s.tolist(), strict=True))


def _base(block: Sequence[Pair], side: Side) -> dict[int, float] | None:
    """Mean E2E of each request over the seed's no_sync runs; None without one."""
    runs = [_by_id(p, side) for p in block if p.run.arm.kind == "no_sync"]
    if not runs:
        return None
    ids = set.intersection(*(set(r) for r in runs))
    return {i: float(np.mean([r[i] for r in runs])) for i in ids}


def _matched(base: dict[int, float] | None, pair: Pair) -> Floats:
    assert base is not None
    return np.array([base.get(i, np.nan) for i in pair.run.request_id.tolist()])
