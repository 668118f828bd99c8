"""Blocks: a load with a seed. All settings see the same blocks (common random numbers).

Tuning and judging must not see the same traffic: neither a seed nor a window of a trace.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config import StudyConfig
from orchestrator.sweep.config import JudgingConfig, SpaceConfig, TuningConfig
from orchestrator.sweep.windows import Span, Window, first_overlap, windows_of
from orchestrator.workload.config import LoadConfig, TraceConfig, TraceSource
from orchestrator.workload.drafts import reading, trace_slices


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """``load`` counts the loads of the tuning (or judging) list; 0 is the study's own if none."""

    seed: int
    load: int

    @property
    def name(self) -> str:
        return f"seed {self.seed}" if self.load == 0 else f"load {self.load} seed {self.seed}"


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

    As far as ``windows`` can tell; ValueError names files, windows and seeds. Synthetic loads need
    disjoint seeds alone, which SpaceConfig checks.
    """
    history_s = 0.0 if study.history is None else study.history.length_s
    tuned = _windows(study, space.tuning, study_dir=study_dir, before_s=history_s)
    judged = _windows(study, space.judging, study_dir=study_dir, before_s=0.0)
    found = first_overlap(tuned, judged)
    if found is not None:
        a, b, what = found
        raise ValueError(
            f"{b.path}: judging seed {b.seed} has [{b.start_s:g}, {b.end_s:g}) s of the trace, "
            f"{what} tuning seed {a.seed} sees [{a.start_s:g}, {a.end_s:g}) s"
            f"{f' of {a.path}' if a.path != b.path else ''}"
            f"{' with its history' if history_s else ''}; "
            "give loads whose slices are disjoint (slice.offset_s), or other seeds"
        )


def has_traces(study: StudyConfig, space: SpaceConfig) -> bool:
    loads = (*loads_of(study, space.tuning), *loads_of(study, space.judging))
    return any(isinstance(load, TraceConfig) for load in loads)


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
            spans = _spans(
                load,
                seeds=part.seeds.seeds,
                horizon_s=study.horizon_s,
                study_dir=study_dir,
                before_s=before_s,
            )
            # What is laid over the trace starts with its first request, so it shares its time.
            sources: tuple[TraceConfig | TraceSource, ...] = (load, *load.superpose)
            for source in sources:
                found += windows_of(
                    spans, path=source.path, options=reading(source), study_dir=study_dir
                )
    return found


def _spans(
    load: TraceConfig,
    *,
    seeds: Sequence[int],
    horizon_s: float,
    study_dir: Path,
    before_s: float,
) -> list[Span]:
    _, slices = trace_slices(load, horizon_s=horizon_s, study_dir=study_dir)
    spans = []
    for seed in seeds:
        if seed >= len(slices.qualifying):
            raise ValueError(
                f"{load.path}: seed {seed} has no window: {len(slices.qualifying)} of "
                f"{slices.windows} windows of the trace meet load.slice; give fewer seeds, a "
                "longer trace, or relax the rule"
            )
        start_s = slices.qualifying[seed].start_s
        spans.append(
            (seed, start_s - before_s * load.time_scale, start_s + horizon_s * load.time_scale)
        )
    return spans
