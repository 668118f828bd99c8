"""Mirror a study run in MLflow: experiment = study; runs nest study, arm, seed. Never the source.

The only home of mlflow, imported when called. A second call on the same folder changes only what
has changed. One writer at a time: processes that share an SQLite file queue for its lock.
"""

import json
import logging
import os
import platform
import shlex
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.calibration.verdict import Judgement
from orchestrator.config import StudyConfig
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.report.mirror import Point
from orchestrator.shell import command
from orchestrator.tracking_store import default_uri, hold, one_writer, sqlite_file, without_password

if TYPE_CHECKING:
    from orchestrator.replay.tracked import ReplayTree

_STUDY_FILES = ("timeline.png", "envelope.png", "report.html", "verdicts.json", "study.json")
_PLANT = "plant.json"  # where a study has one
_RUN_FILES = ("config.json", "provenance.json", "metrics.json", "requests.parquet")
_ENTITIES_A_CALL, _PARAMS_A_CALL = 1000, 100  # MLflow refuses more in one batch
_CALL_ENV = {  # an unreachable server is told in seconds; what the user has set stays
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "8",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # --json owns stdout
}


class TrackingFailed(RuntimeError):
    """MLflow could not be written; takes one message. The record on disk is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingResult:
    """Where the mirror is; ``runs`` counts the study's MLflow runs, parents included."""

    uri: str
    experiment: str
    parent_run_id: str
    runs: int
    ui_command: str  # a command, or the address where the server shows it


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
            with _writing(where, study_dir):
                return _Mirror(study_dir, uri=where, study=tree.study).upload_replay(tree)
        study, records = read_study(study_dir)
        if not records:
            raise ValueError(f"{study_dir}: holds no run; run the study first")
        metrics = [run_metrics(record) for record in records]
        judgement = judge_study(study_dir)
        _draw_if_stale(study_dir, study, records, metrics, judgement)
        with _writing(where, study_dir):
            mirror = _Mirror(study_dir, uri=where, study=study)
            return mirror.upload(records, metrics=metrics, judgement=judgement)


@contextmanager
def _writing(uri: str, study_dir: Path) -> Iterator[None]:
    """One writer; whatever the store raises becomes one clear line."""
    try:
        with _call_settings(), one_writer(uri):
            yield
    except ImportError as error:
        raise _failed(uri, study_dir, reason=f"a package is missing ({error})") from error
    except _world_errors() as error:
        raise _failed(uri, study_dir, reason=_reason(error)) from error


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


def _failed(uri: str, study_dir: Path, *, reason: str) -> TrackingFailed:
    return TrackingFailed(
        f"MLflow at {without_password(uri)}: {reason}; the record is kept: "
        f"run `{command('lull')} track {shlex.quote(str(study_dir))}` later"
    )


def _reason(error: BaseException, *, most: int = 300) -> str:
    """One line; of a chain of connection errors only the last, which says what was wrong."""
    import requests

    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    away = any(isinstance(e, requests.ConnectionError | requests.Timeout) for e in chain)
    text = str(chain[-1] if away else error).strip()
    line = text.splitlines()[0] if text else type(error).__name__
    line = line if len(line) <= most else f"{line[:most]}..."
    return f"cannot be reached ({line})" if away else line


def _world_errors() -> tuple[type[Exception], ...]:
    """What a store may raise; asked for only when something was raised."""
    from mlflow.exceptions import MlflowException

    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:  # mlflow-skinny, for servers alone
        return OSError, MlflowException
    return OSError, MlflowException, SQLAlchemyError


@contextmanager
def _call_settings() -> Iterator[None]:
    """Short time-outs and no chatter while we call; everything as it was afterwards."""
    before = dict(os.environ)
    for name, value in _CALL_ENV.items():
        os.environ.setdefault(name, value)
    os.environ.pop("MLFLOW_RUN_ID", None)  # another tool's run, not ours
    logger = logging.getLogger("mlflow")
    level = logger.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mlflow's own
            import mlflow  # noqa: F401 - sets its logger's level, so before ours

            level = logger.level
            logger.setLevel(logging.ERROR)
            yield
    finally:
        logger.setLevel(level)
        for name in (*_CALL_ENV, "MLFLOW_RUN_ID"):
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)


class _Mirror:
    """One upload: what is already there is found by tags and brought up to date."""

    def __init__(self, study_dir: Path, *, uri: str, study: StudyConfig) -> None:
        from mlflow import MlflowClient

        from orchestrator.report.mirror import short_hash

        self._dir, self._uri, self._study = study_dir, uri, study
        self._client = MlflowClient(tracking_uri=uri)
        self._experiment_id = self._experiment()
        self._folder_id = short_hash([platform.node(), str(study_dir)])
        self._known = {run.data.tags["lull.key"]: run for run in self._runs()}
        for key in [k for k, run in self._known.items() if run.info.status == "RUNNING"]:
            self.discard(key)  # an upload that was cut off: ending a run is its last step

    def _experiment(self) -> str:
        name = self._study.study
        found = self._client.get_experiment_by_name(name)
        if found is None:
            database = sqlite_file(self._uri)
            location = None if database is None else (database.parent / "mlartifacts").as_uri()
            tags = {"mlflow.experimentKind": "custom_model_development"}  # not the GenAI pages
            made = self._client.create_experiment(name, artifact_location=location, tags=tags)
            return str(made)
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _runs(self) -> list[Any]:
        """All live MLflow runs of this study folder."""
        found: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment_id],
                filter_string=f"tags.`lull.study_dir` = '{self._folder_id}'",
                max_results=1000,
                page_token=token,
            )
            found += [run for run in page if "lull.key" in run.data.tags]
            token = page.token
            if not token:
                return found

    def discard(self, key: str) -> None:
        """Into MLflow's bin, from which it can be restored."""
        self._client.delete_run(self._known.pop(key).info.run_id)

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
        return TrackingResult(
            uri=without_password(self._uri),
            experiment=self._study.study,
            parent_run_id=parent_id,
            runs=1 + len(arms) + len(records),
            ui_command=self._ui_command(),
        )

    def upload_replay(self, tree: "ReplayTree") -> TrackingResult:
        """A replay: parent, one child an arm, one grandchild a seed where they are few."""
        ids: dict[str, str] = {}
        for node in tree.nodes:  # parents stand before their children
            tags = dict(node.tags)
            if node.parent is not None:
                tags["mlflow.parentRunId"] = ids[node.parent]
            run = self.run(
                node.key,
                name=node.name,
                tags=tags,
                metrics=node.metrics,
                params=node.params,
                start_ms=tree.started_ms,
            )
            self.files(run, [self._dir / name for name in node.files])
            self.end(run, "FINISHED", end_ms=None)
            ids[node.key] = str(run.info.run_id)
        for key in [k for k in self._known if k not in ids]:
            self.discard(key)  # an arm or a seed that the replay no longer has
        return TrackingResult(
            uri=without_password(self._uri),
            experiment=self._study.study,
            parent_run_id=ids[tree.nodes[0].key],
            runs=len(tree.nodes),
            ui_command=self._ui_command(),
        )

    def _ui_command(self) -> str:
        if self._uri.startswith(("http://", "https://")):
            base = without_password(self._uri).rstrip("/")
            return f"{base}/#/experiments/{self._experiment_id}"
        return f"{command('mlflow')} ui --backend-store-uri {shlex.quote(self._uri)}"

    def _upload_study(self, records: Sequence[RunRecord], judgement: Judgement) -> str:
        from orchestrator.report import mirror

        config = self._study.model_dump(mode="json")
        key = f"study:{mirror.short_hash(config)}"
        starts = [ms for r in records if (ms := mirror.started_ms(r)) is not None]
        run = self.run(
            key,
            name=self._study.study,
            tags={"lull.level": "study", **mirror.study_tags(self._study, judgement)},
            metrics=mirror.study_metrics(judgement),
            params=mirror.flat_params(config),
            start_ms=min(starts, default=None),
        )
        self.files(run, [self._dir / name for name in (*_STUDY_FILES, _PLANT)])
        self.end(run, mirror.mlflow_status(r.status for r in records), end_ms=_end_ms(records))
        run_id = str(run.info.run_id)
        for other_key, other in self._known.items():
            if other_key.startswith("study:") and other_key != key:  # study.json has changed
                self._set_tags(other, {"lull.superseded_by": run_id})
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
        run = self.run(
            f"arm:{first.arm.label}:{first.config['run_hash']}",
            name=first.arm.label,
            tags=tags,
            metrics=mirror.arm_metrics(row),
            params=mirror.arm_params(self._study, first),
            start_ms=min(starts, default=None),
        )
        self.end(run, mirror.mlflow_status(r.status for r in records), end_ms=_end_ms(records))
        return str(run.info.run_id)

    def _upload_seed(self, record: RunRecord, figures: RunMetrics, *, arm_id: str) -> None:
        from orchestrator.report import mirror

        key = f"seed:{record.arm.label}:{record.seed}:{record.config['run_hash']}"
        identity = mirror.short_hash(record.provenance)
        known = self._known.get(key)
        if known is not None and known.data.tags.get("lull.record") != identity:
            self.discard(key)  # measured anew
        fresh = key not in self._known
        params = {"arm": record.arm.label, "seed": str(record.seed)}
        run = self.run(
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
            self._dataset(run, record, figures)
        self.files(run, [record.path / name for name in _RUN_FILES])
        self.end(run, mirror.mlflow_status([record.status]), end_ms=_end_ms([record]))

    def run(
        self,
        key: str,
        *,
        name: str,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        params: Mapping[str, str],
        start_ms: int | None,
        series: Sequence[Point] = (),
    ) -> Any:
        """The MLflow run of ``key``, made, or brought up to date in what may have changed."""
        from mlflow.entities import Metric, Param

        tags = {
            "lull.key": key,
            "lull.study_dir": self._folder_id,
            "mlflow.source.name": "lull",
            **tags,
        }
        run = self._known.get(key)
        now_ms = int(time.time() * 1000)  # later than any value that it replaces
        if run is not None:
            self._set_tags(run, tags)
            changed = {k: v for k, v in metrics.items() if run.data.metrics.get(k) != v}
            self._log(run, metrics=[Metric(k, v, now_ms, 0) for k, v in changed.items()])
            return run
        run = self._client.create_run(
            self._experiment_id, start_time=start_ms, tags=dict(tags), run_name=name
        )
        self._known[key] = run
        start_ms = int(run.info.start_time)
        values = [Metric(k, v, now_ms, 0) for k, v in metrics.items()]
        values += [Metric(p.name, p.value, start_ms + int(1000 * p.at_s), p.tick) for p in series]
        self._log(run, metrics=values, params=[Param(k, v) for k, v in params.items()])
        return run

    def _log(self, run: Any, *, metrics: Sequence[Any], params: Sequence[Any] = ()) -> None:
        """As few calls as MLflow's limits allow."""
        while metrics or params:
            some = params[:_PARAMS_A_CALL]
            most = _ENTITIES_A_CALL - len(some)
            self._client.log_batch(
                run.info.run_id, metrics=metrics[:most], params=some, synchronous=True
            )
            metrics, params = metrics[most:], params[_PARAMS_A_CALL:]

    def _set_tags(self, run: Any, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        changed = [RunTag(k, v) for k, v in tags.items() if run.data.tags.get(k) != v]
        if changed:
            self._client.log_batch(run.info.run_id, tags=changed, synchronous=True)

    def _dataset(self, run: Any, record: RunRecord, figures: RunMetrics) -> None:
        """The request file of the seed: the same digest in every arm that replayed it."""
        from mlflow.entities import Dataset, DatasetInput

        dataset = Dataset(
            name=f"requests of seed {record.seed}",
            digest=figures.request_hash[:36],
            source_type="local",
            source=json.dumps({"uri": str(record.path / "requests.parquet")}),
            profile=json.dumps({"num_rows": record.requests.num_rows}),
        )
        self._client.log_inputs(run.info.run_id, datasets=[DatasetInput(dataset, [])])

    def files(self, run: Any, paths: Sequence[Path]) -> None:
        """Artifacts, when one of them has changed since they were last sent."""
        from orchestrator.report.mirror import short_hash

        present = [path for path in paths if path.exists()]
        digest = short_hash([[p.name, short_hash(p.read_bytes())] for p in present])
        if run.data.tags.get("lull.artifacts") == digest:
            return
        for path in present:
            self._client.log_artifact(run.info.run_id, str(path))
        self._set_tags(run, {"lull.artifacts": digest})

    def end(self, run: Any, status: str, *, end_ms: int | None) -> None:
        if run.info.status != status:
            self._client.set_terminated(run.info.run_id, status=status, end_time=end_ms)


def _end_ms(records: Sequence[RunRecord]) -> int | None:
    from orchestrator.report.mirror import length_s, started_ms

    ends = [
        start + int(1000 * length_s(r)) for r in records if (start := started_ms(r)) is not None
    ]
    return max(ends, default=None)
