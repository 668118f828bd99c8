"""Mirror a study run in MLflow: experiment = study; runs nest study, arm, seed. Never the source.

A second call on the same folder changes only what has changed. One writer at a time: processes that
share an SQLite file queue for its lock (tracking_runs.py).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.calibration.verdict import Judgement
from orchestrator.config import StudyConfig
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.tracking_runs import MlflowRuns, TrackingResult, writing
from orchestrator.tracking_store import default_uri, hold

if TYPE_CHECKING:
    from orchestrator.replay.tracked import ReplayTree

_STUDY_FILES = ("timeline.png", "envelope.png", "report.html", "verdicts.json", "study.json")
_PLANT = "plant.json"  # where a study has one
_RUN_FILES = ("config.json", "provenance.json", "metrics.json", "requests.parquet")


def track_study(study_dir: Path, *, uri: str | None = None) -> TrackingResult:
    """Upload a study run. ``uri``: default MLFLOW_TRACKING_URI, else SQLite beside the study.

    TrackingFailed when MLflow cannot be reached or written: nothing of the record depends on it.
    """
    from orchestrator.judge import judge_study
    from orchestrator.metrics import run_metrics
    from orchestrator.replay.judge import is_replay
    from orchestrator.replay.tracked import replay_tree
    from orchestrator.rundir import read_study

    study_dir = study_dir.resolve()
    where = uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(study_dir)
    with hold(study_dir / ".track.lock"):
        if is_replay(study_dir):
            tree = replay_tree(study_dir)
            with writing(where, study_dir):
                return _Mirror(study_dir, uri=where, study=tree.study).upload_replay(tree)
        study, records = read_study(study_dir)
        if not records:
            raise ValueError(f"{study_dir}: holds no run; run the study first")
        metrics = [run_metrics(record) for record in records]
        judgement = judge_study(study_dir)
        _draw_if_stale(study_dir, study, records, metrics, judgement)
        with writing(where, study_dir):
            mirror = _Mirror(study_dir, uri=where, study=study)
            return mirror.upload(records, metrics=metrics, judgement=judgement)


def _draw_if_stale(
    study_dir: Path,
    study: StudyConfig,
    records: Sequence[RunRecord],
    metrics: Sequence[RunMetrics],
    judgement: Judgement,
) -> None:
    """Report and plots say the same as the tags: drawn again when they show other figures."""
    from orchestrator.report.html import shows, write_report
    from orchestrator.report.plots import plot_envelope, plot_timeline

    present = all((study_dir / name).exists() for name in _STUDY_FILES)
    if present and shows(study_dir / "report.html", metrics, judgement):
        return
    plot_timeline(study, records, study_dir)
    plot_envelope(study, metrics, judgement, study_dir)
    write_report(study_dir, study, records, metrics, judgement)


class _Mirror:
    """A study's runs at three levels: study, arm, seed."""

    def __init__(self, study_dir: Path, *, uri: str, study: StudyConfig) -> None:
        self._dir, self._study = study_dir, study
        self._runs = MlflowRuns(study_dir, uri=uri, experiment=study.study)

    def upload(
        self,
        records: Sequence[RunRecord],
        *,
        metrics: Sequence[RunMetrics],
        judgement: Judgement,
    ) -> TrackingResult:
        parent_id = self._upload_study(records, judgement)
        arms: dict[str, list[tuple[RunRecord, RunMetrics]]] = {}
        for record, figures in zip(records, metrics, strict=True):
            arms.setdefault(record.arm.label, []).append((record, figures))
        for runs in arms.values():
            arm_id = self._upload_arm([r for r, _ in runs], judgement, parent_id=parent_id)
            for record, figures in runs:
                self._upload_seed(record, figures, arm_id=arm_id)
        return self._runs.result(parent_id, runs=1 + len(arms) + len(records))

    def upload_replay(self, tree: "ReplayTree") -> TrackingResult:
        """A replay: parent, one child an arm, one grandchild a seed where they are few."""
        ids: dict[str, str] = {}
        for node in tree.nodes:  # parents stand before their children
            tags = dict(node.tags)
            if node.parent is not None:
                tags["mlflow.parentRunId"] = ids[node.parent]
            run = self._runs.run(
                node.key,
                name=node.name,
                tags=tags,
                metrics=node.metrics,
                params=node.params,
                start_ms=tree.started_ms,
            )
            self._runs.files(run, [self._dir / name for name in node.files])
            self._runs.end(run, "FINISHED", end_ms=None)
            ids[node.key] = str(run.info.run_id)
        for key in [k for k in self._runs.known if k not in ids]:
            self._runs.discard(key)  # an arm or a seed that the replay no longer has
        return self._runs.result(ids[tree.nodes[0].key], runs=len(tree.nodes))

    def _upload_study(self, records: Sequence[RunRecord], judgement: Judgement) -> str:
        from orchestrator.report import mirror

        config = self._study.model_dump(mode="json")
        key = f"study:{mirror.short_hash(config)}"
        starts = [ms for r in records if (ms := mirror.started_ms(r)) is not None]
        run = self._runs.run(
            key,
            name=self._study.study,
            tags={"lull.level": "study", **mirror.study_tags(self._study, judgement)},
            metrics=mirror.study_metrics(judgement),
            params=mirror.flat_params(config),
            start_ms=min(starts, default=None),
        )
        self._runs.files(run, [self._dir / name for name in (*_STUDY_FILES, _PLANT)])
        self._runs.end(
            run, mirror.mlflow_status(r.status for r in records), end_ms=_end_ms(records)
        )
        run_id = str(run.info.run_id)
        for other_key, other in self._runs.known.items():
            if other_key.startswith("study:") and other_key != key:  # study.json has changed
                self._runs.set_tags(other, {"lull.superseded_by": run_id})
        return run_id

    def _upload_arm(
        self,
        records: Sequence[RunRecord],
        judgement: Judgement,
        *,
        parent_id: str,
    ) -> str:
        from orchestrator.report import mirror

        first = records[0]
        row = next((r for r in judgement.arms if r.get("arm") == first.arm.label), {})
        verdicts = [v for v in judgement.verdicts if v.policy == first.arm.label]
        tags = {
            "lull.level": "arm",
            "mlflow.parentRunId": parent_id,
            **mirror.run_tags(self._study, first),
            **(mirror.verdict_tags(verdicts) if verdicts else {}),
        }
        starts = [ms for r in records if (ms := mirror.started_ms(r)) is not None]
        run = self._runs.run(
            f"arm:{first.arm.label}:{first.config['run_hash']}",
            name=first.arm.label,
            tags=tags,
            metrics=mirror.arm_metrics(row),
            params=mirror.arm_params(self._study, first),
            start_ms=min(starts, default=None),
        )
        self._runs.end(
            run, mirror.mlflow_status(r.status for r in records), end_ms=_end_ms(records)
        )
        return str(run.info.run_id)

    def _upload_seed(self, record: RunRecord, figures: RunMetrics, *, arm_id: str) -> None:
        from orchestrator.report import mirror

        key = f"seed:{record.arm.label}:{record.seed}:{record.config['run_hash']}"
        identity = mirror.short_hash(record.provenance)
        known = self._runs.known.get(key)
        if known is not None and known.data.tags.get("lull.record") != identity:
            self._runs.discard(key)  # measured anew
        fresh = key not in self._runs.known
        params = {"arm": record.arm.label, "seed": str(record.seed)}
        run = self._runs.run(
            key,
            name=f"{record.arm.label} s{record.seed}",
            tags={
                "lull.level": "seed",
                "lull.record": identity,
                "mlflow.parentRunId": arm_id,
                **mirror.seed_tags(self._study, record),
            },
            metrics=mirror.seed_metrics(figures),
            params={**params, "request_hash": str(record.config["request_hash"])},
            start_ms=mirror.started_ms(record),
            series=mirror.series(record, tick_s=self._study.tick_s) if fresh else (),
        )
        if fresh:
            self._runs.dataset(
                run,
                name=f"requests of seed {record.seed}",
                digest=figures.request_hash,
                uri=str(record.path / "requests.parquet"),
                rows=record.requests.num_rows,
            )
        self._runs.files(run, [record.path / name for name in _RUN_FILES])
        self._runs.end(run, mirror.mlflow_status([record.status]), end_ms=_end_ms([record]))


def _end_ms(records: Sequence[RunRecord]) -> int | None:
    from orchestrator.report.mirror import length_s, started_ms

    ends = [
        start + int(1000 * length_s(r)) for r in records if (start := started_ms(r)) is not None
    ]
    return max(ends, default=None)
