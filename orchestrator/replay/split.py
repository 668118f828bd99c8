"""Which runs a fit sees and which are held out: stated beforehand, by seeds and arms alone.

A selection is `seeds=0-5`, `seeds=0,2,4`, `arms=no_sync-*,matched_random-*`, or both with a space.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from orchestrator.arms import expand_arms
from orchestrator.config import StudyConfig
from orchestrator.replay.calibrated import LEAST_SEEDS
from orchestrator.replay.measured import MeasuredRun

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, kw_only=True)
class Split:
    """``words`` is a selection that gives this split again."""

    words: str
    fit: tuple[MeasuredRun, ...]
    held_out: tuple[MeasuredRun, ...]


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    seeds: tuple[range, ...] | None  # None: all
    arms: tuple[str, ...]  # patterns

    def takes(self, arm: str, seed: int) -> bool:
        return (self.seeds is None or any(seed in s for s in self.seeds)) and any(
            fnmatch(arm, p) for p in self.arms
        )


def split_runs(runs: Sequence[MeasuredRun], *, selection: str | None) -> Split:
    """The runs by selection; without one every other seed, all arms; fewer where the others would
    be too few for the transfer check.

    ValueError unless the fit has a run that merges and one in which nothing does: without the first
    the slow-down of a merge is unknown, without the second what it is a slow-down of.
    """
    words = default_selection(runs) if selection is None else " ".join(selection.split())
    wanted = _parse(words)
    chosen = [r for r in runs if wanted.takes(r.key.arm, r.key.seed)]
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


def check_selection(selection: str, study: StudyConfig) -> None:
    """ValueError for what takes nothing of what the study will measure; asked before it is."""
    wanted = _parse(selection)
    arms = [arm.label for arm in expand_arms(study)]
    if not any(wanted.takes(arm, seed) for arm in arms for seed in study.seeds):
        raise ValueError(
            f"--fit {selection!r}: takes no run of the study, which has the seeds "
            f"{', '.join(map(str, study.seeds[:12]))}{', ...' if len(study.seeds) > 12 else ''} "
            f"and the arms {', '.join(arms)}"
        )


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


def _parse(words: str) -> _Wanted:
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
    return _Wanted(seeds=seeds, arms=patterns)


def _seeds(item: str, words: str) -> range:
    found = _RANGE.fullmatch(item)
    if found is None:
        raise ValueError(f"--fit {words!r}: {item!r} is no seed; write 3 or 0-5")
    low = int(found[1])
    return range(low, int(found[2] or low) + 1)
