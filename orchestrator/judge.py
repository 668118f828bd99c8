"""A study folder to its judgement: recomputed from the runs alone, then written beside them.

metrics.json and verdicts.json are outputs: they are never read back. A plant.json in the folder is
the calibrated replay that the runs are set against.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from orchestrator.calibration.gate import judge
from orchestrator.calibration.prediction import Prediction
from orchestrator.calibration.ruling import least_attainable_p
from orchestrator.calibration.verdict import Judgement
from orchestrator.config import StudyConfig
from orchestrator.metrics import run_metrics
from orchestrator.record_files import write_atomic, write_json
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.rundir import read_study

__all__ = ["attach_plant", "judge_study", "least_attainable_p"]
PLANT = "plant.json"


def judge_study(study_dir: Path) -> Judgement:
    """Metrics of every run and the verdicts; both files rewritten, each as a whole."""
    study, records = read_study(study_dir)
    metrics = [run_metrics(record) for record in records]
    prediction = _prediction(study_dir, study, records, metrics)
    judgement = judge(study, records, metrics, prediction=prediction)
    for record, figures in zip(records, metrics, strict=True):
        write_json(record.path / "metrics.json", asdict(figures))
    write_json(study_dir / "verdicts.json", asdict(judgement))
    return judgement


def _prediction(
    study_dir: Path,
    study: StudyConfig,
    records: Sequence[RunRecord],
    metrics: Sequence[RunMetrics],
) -> Prediction | None:
    """What the folder's plant says of the runs; None without one."""
    path = study_dir / PLANT
    if not path.exists():
        return None
    from orchestrator.replay.calibrated import load_plant
    from orchestrator.replay.predict import predict

    return predict(study, records, metrics, load_plant(path))


def attach_plant(study_dir: Path, plant: Path) -> None:
    """Put a plant.json beside the runs; ValueError where it is none, or another replay's."""
    from orchestrator.replay.calibrated import load_plant

    load_plant(plant)
    if not study_dir.is_dir():
        raise ValueError(f"{study_dir}: is no folder; give a study run, e.g. runs/quickstart")
    write_atomic(study_dir / PLANT, plant.read_bytes())
