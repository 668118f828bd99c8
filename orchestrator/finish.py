"""After the events all is a pure function of the study's run folders: judge, plot, report."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from orchestrator.calibration.verdict import Judgement
from orchestrator.config import StudyConfig
from orchestrator.endings import BadInput
from orchestrator.judge import judge_study
from orchestrator.metrics import run_metrics
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.replay.judge import is_replay
from orchestrator.rundir import read_study

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    study: StudyConfig
    records: list[RunRecord]
    metrics: list[RunMetrics]
    judgement: Judgement


@contextmanager
def hold_study(study_dir: Path) -> Iterator[None]:
    """Make the study folder ours: one driver at a time."""
    try:
        study_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(study_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise BadInput(
            f"{study_dir}: cannot be written ({error.strerror}); give --out FOLDER"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadInput(
                f"{study_dir}: another `lull` command writes here; wait for it, or give --out OTHER"
            ) from error
        yield
    finally:
        os.close(handle)


def recompute(study_dir: Path) -> Judged:
    """Metrics and verdicts from the record alone."""
    judgement = judge_study(study_dir)
    study, records = read_study(study_dir)
    metrics = [run_metrics(r) for r in records]
    return Judged(study=study, records=records, metrics=metrics, judgement=judgement)


def write_outputs(study_dir: Path) -> tuple[Judgement, list[Path]]:
    """Plots and report on disk."""
    if is_replay(study_dir):
        from orchestrator.report.replay_page import write_replay_report

        return write_replay_report(study_dir)
    from orchestrator.report.html import write_report
    from orchestrator.report.plots import plot_envelope, plot_timeline

    judged = recompute(study_dir)
    paths = [
        plot_timeline(judged.study, judged.records, study_dir),
        plot_envelope(judged.study, judged.metrics, judged.judgement, study_dir),
    ]
    paths.append(
        write_report(study_dir, judged.study, judged.records, judged.metrics, judged.judgement)
    )
    return judged.judgement, paths


def finish_study(study_dir: Path, *, track: bool, say: Say, warn: Say) -> Judgement:
    """Judge, plot, report, track; an unreachable tracking server costs nothing of the record."""
    from orchestrator.tracking import track_study
    from orchestrator.tracking_runs import TrackingFailed

    judgement, paths = write_outputs(study_dir)
    for path in paths:
        say(f"written: {path}")
    if track:
        try:
            result = track_study(study_dir)
            say(
                f"MLflow: {result.runs} runs in experiment {result.experiment}; {result.ui_command}"
            )
        except (TrackingFailed, TimeoutError) as error:
            warn(str(error))
    return judgement


def to_json(value: Any) -> Any:
    """Dataclasses as plain objects, for strict JSON."""
    return json.loads(json.dumps(asdict(value) if is_dataclass(value) else value, allow_nan=False))  # type: ignore[arg-type]
