"""Blocks: a load with a seed. All settings see the same blocks (common random numbers).

Tuning and judging must not see the same traffic: neither a seed nor a window of a trace file.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config import StudyConfig
from orchestrator.sweep.config import JudgingConfig, SpaceConfig, TuningConfig
from orchestrator.workload.config import LoadConfig, TraceConfig
from orchestrator.workload.drafts import trace_slices


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """``load`` counts the loads of the tuning (or judging) list; 0 is the study's own if none."""

    seed: int
    load: int

    @property
    def name(self) -> str:
        return f"seed {self.seed}" if self.load == 0 else f"load {self.load} seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of trace time in a file, told by its content."""

    file_sha256: str
    path: str
    start_s: float
    end_s: float
    seed: int


def loads_of(study: StudyConfig, part: TuningConfig | JudgingConfig) -> tuple[LoadConfig, ...]:
    return part.loads or (study.load,)


def tuning_batches(study: StudyConfig, space: SpaceConfig) -> tuple[tuple[Block, ...], ...]:
    """All loads of some seeds at a time, in order of seed."""
    loads, seeds = range(len(loads_of(study, space.tuning))), space.tuning.seeds.seeds
    size = space.tuning.seeds_at_once
    return tuple(
        tuple(Block(seed=seed, load=load) for seed in seeds[i : i + size] for load in loads)
        for i in range(0, len(seeds), size)
    )


def check_disjoint(study: StudyConfig, space: SpaceConfig, *, study_dir: Path) -> None:
    """No judging window of a trace took part in tuning, as traffic or as history told before it.

    ValueError names file, windows and seeds. Synthetic loads need disjoint seeds alone, which
    SpaceConfig checks.
    """
    history_s = 0.0 if study.history is None else study.history.length_s
    tuned = _windows(study, space.tuning, study_dir=study_dir, before_s=history_s)
    judged = _windows(study, space.judging, study_dir=study_dir, before_s=0.0)
    for a in tuned:
        for b in judged:
            if a.file_sha256 == b.file_sha256 and a.start_s < b.end_s and b.start_s < a.end_s:
                raise ValueError(
                    f"{b.path}: judging seed {b.seed} has [{b.start_s:g}, {b.end_s:g}) s of the "
                    f"trace, of which tuning seed {a.seed} sees [{a.start_s:g}, {a.end_s:g}) s"
                    f"{' with its history' if history_s else ''}; "
                    "give loads whose slices are disjoint (slice.offset_s), or other seeds"
                )


def _windows(
    study: StudyConfig,
    part: TuningConfig | JudgingConfig,
    *,
    study_dir: Path,
    before_s: float,
) -> list[Window]:
    found: list[Window] = []
    for load in loads_of(study, part):
        if isinstance(load, TraceConfig):
            found += _trace_windows(
                load,
                seeds=part.seeds.seeds,
                horizon_s=study.horizon_s,
                study_dir=study_dir,
                before_s=before_s,
            )
    return found


def _trace_windows(
    load: TraceConfig,
    *,
    seeds: Sequence[int],
    horizon_s: float,
    study_dir: Path,
    before_s: float,
) -> list[Window]:
    _, slices = trace_slices(load, horizon_s=horizon_s, study_dir=study_dir)
    windows = []
    for seed in seeds:
        if seed >= len(slices.qualifying):
            raise ValueError(
                f"{load.path}: seed {seed} has no window: {len(slices.qualifying)} of "
                f"{slices.windows} windows of the trace meet load.slice; give fewer seeds, a "
                "longer trace, or relax the rule"
            )
        start_s = slices.qualifying[seed].start_s
        # What is laid over the trace starts with its first request, so it shares its time.
        for name in (load.path, *(source.path for source in load.superpose)):
            windows.append(
                Window(
                    file_sha256=hashlib.sha256((study_dir / name).read_bytes()).hexdigest(),
                    path=name,
                    start_s=start_s - before_s * load.time_scale,
                    end_s=start_s + horizon_s * load.time_scale,
                    seed=seed,
                )
            )
    return windows
