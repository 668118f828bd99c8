"""A study folder to its judgement: recomputed from the runs alone, then written beside them.

metrics.json and verdicts.json are outputs: they are never read back.
"""

from dataclasses import asdict
from pathlib import Path

from orchestrator.calibration.gate import judge
from orchestrator.calibration.ruling import least_attainable_p
from orchestrator.calibration.verdict import Judgement
from orchestrator.metrics import run_metrics
from orchestrator.record_files import write_json
from orchestrator.rundir import read_study

__all__ = ["judge_study", "least_attainable_p"]


def judge_study(study_dir: Path) -> Judgement:
    """Metrics of every run and the verdicts; both files rewritten, each as a whole."""
    study, records = read_study(study_dir)
    metrics = [run_metrics(record) for record in records]
    judgement = judge(study, records, metrics)
    for record, figures in zip(records, metrics, strict=True):
        write_json(record.path / "metrics.json", asdict(figures))
    write_json(study_dir / "verdicts.json", asdict(judgement))
    return judgement
