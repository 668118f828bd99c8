"""Whether a study was held out: seeds and traces that took no part in tuning, as it says itself."""

from pathlib import Path

from orchestrator.calibration.evidence import Evidence
from orchestrator.config import StudyConfig
from orchestrator.workload.config import TraceConfig


def disjoint_from_tuning(study: StudyConfig) -> bool | None:
    """None where the study does not say what its policies were tuned on.

    A trace is told by its file name: other windows of one that was tuned on are not held out.
    """
    tuned = study.tuned_on
    if tuned is None:
        return None
    load = study.load
    trace = Path(load.path).name if isinstance(load, TraceConfig) else None
    return not set(tuned.seeds) & set(study.seeds) and trace not in {
        Path(t).name for t in tuned.traces
    }


def held_out(evidence: Evidence) -> bool | None:
    """The same, where every run was made when the study already said so: else it is unknown."""
    said = evidence.study.tuned_on
    runs = evidence.runs.values()
    if any(run.study is None or run.study.tuned_on != said for run in runs):
        return None
    return disjoint_from_tuning(evidence.study)
