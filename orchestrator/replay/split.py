"""Which runs a fit sees and which are held out: stated beforehand, by seeds and arms alone.

A selection is `seeds=0-5`, `seeds=0,2,4`, `arms=no_sync-*,matched_random-*`, or both with a space.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from orchestrator.replay.calibrated import LEAST_SEEDS
from orchestrator.replay.measured import MeasuredRun

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, kw_only=True)
class Split:
    """``words`` is a selection that gives this split again."""

    words: str
    fit: tuple[MeasuredRun, ...]
    held_out: tuple[MeasuredRun, ...]


def split_runs(runs: Sequence[MeasuredRun], *, selection: str | None) -> Split:
    """The runs by selection; without one every other seed, all arms; fewer where the others would
    be too few for the transfer check.

    ValueError unless the fit has a run that merges and one in which nothing does: without the first
    the slow-down of a merge is unknown, without the second what it is a slow-down of.
    """
    words = default_selection(runs) if selection is None else " ".join(selection.split())
    seeds, patterns = _parse(words)
    chosen = [
        r
        for r in runs
        if (seeds is None or any(r.key.seed in s for s in seeds))
        and any(fnmatch(r.key.arm, p) for p in patterns)
    ]
    have = ", ".join(f"{r.key.arm} seed {r.key.seed}" for r in chosen[:6]) or "no complete run"
    if not any(r.merging for r in chosen):
        raise ValueError(
            f"--fit {words!r}: has {have}; none of them merged, so merge_factor is unknown: choose "
            "runs of which at least one merges"
        )
    if all(r.merging for r in chosen):
        raise ValueError(
            f"--fit {words!r}: has {have}; in each of them something merged, so the server without "
            "merges is unknown: choose a no_sync run too"
        )
    rest = [r for r in runs if r not in chosen]
    return Split(words=words, fit=tuple(chosen), held_out=tuple(rest))


def default_selection(runs: Sequence[MeasuredRun]) -> str:
    """Every other seed, or fewer so that enough are held out; of a single seed, one no_sync and one
    arm that merges.

    Seeds are measured one after another: a machine that gets slower meanwhile is so in both parts.
    """
    seeds = sorted({r.key.seed for r in runs})
    if len(seeds) > 1:
        fitted = len(seeds) // 2
        if len(seeds) > LEAST_SEEDS:
            fitted = min(fitted, len(seeds) - LEAST_SEEDS)
        chosen = [seeds[i * len(seeds) // fitted] for i in range(fitted)]
        return "seeds=" + ",".join(map(str, chosen))
    plain = [r.key.arm for r in runs if r.arm.kind == "no_sync"]
    merging = [r.key.arm for r in runs if r.merging and r.arm.kind == "matched_random"]
    merging = merging or [r.key.arm for r in runs if r.merging]
    return f"seeds={','.join(map(str, seeds))} arms={','.join([*plain[:1], *merging[:1]])}"


def _parse(words: str) -> tuple[tuple[range, ...] | None, tuple[str, ...]]:
    seeds: tuple[range, ...] | None = None
    patterns: tuple[str, ...] = ("*",)
    for part in words.split():
        key, _, value = part.partition("=")
        items = tuple(item for item in value.split(",") if item)
        match key:
            case "seeds" if items:
                seeds = tuple(_seeds(item, words) for item in items)
            case "arms" if items:
                patterns = items
            case _:
                raise ValueError(
                    f"--fit {words!r}: {part!r} is no selection; write seeds=0-5 or "
                    "arms=no_sync-*,matched_random-*, or both with a space between"
                )
    return seeds, patterns


def _seeds(item: str, words: str) -> range:
    found = _RANGE.fullmatch(item)
    if found is None:
        raise ValueError(f"--fit {words!r}: {item!r} is no seed; write 3 or 0-5")
    low = int(found[1])
    return range(low, int(found[2] or low) + 1)
