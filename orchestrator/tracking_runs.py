"""MLflow runs of one folder of results, whatever it holds: found by key, brought up to date.

mlflow's home beside tracking*.py, imported when called. A second upload of the same folder changes
only what has changed; one writer at a time: processes that share an SQLite file queue for its lock.
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
from typing import Any

from orchestrator.report.mirror import Point, short_hash
from orchestrator.shell import command
from orchestrator.tracking_store import one_writer, sqlite_file, without_password

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


@contextmanager
def writing(uri: str, folder: Path) -> Iterator[None]:
    """The one writer of the store, settings in place; TrackingFailed for what the world does."""
    try:
        with _call_settings(), one_writer(uri):
            yield
    except ImportError as error:
        raise _failed(uri, folder, reason=f"a package is missing ({error})") from error
    except _world_errors() as error:
        raise _failed(uri, folder, reason=_reason(error)) from error


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


class MlflowRuns:
    """One upload: what is already there is found by tags and brought up to date."""

    def __init__(self, folder: Path, *, uri: str, experiment: str) -> None:
        from mlflow import MlflowClient

        self._uri, self._name = uri, experiment
        self._client: Any = MlflowClient(tracking_uri=uri)
        self._experiment_id = self._experiment()
        self._folder_id = short_hash([platform.node(), str(folder)])
        self.known = {run.data.tags["lull.key"]: run for run in self._runs()}
        for key in [k for k, run in self.known.items() if run.info.status == "RUNNING"]:
            self.discard(key)  # an upload that was cut off: ending a run is its last step

    def _experiment(self) -> str:
        name = self._name
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
        self._client.delete_run(self.known.pop(key).info.run_id)

    def result(self, parent_run_id: str, *, runs: int) -> TrackingResult:
        return TrackingResult(
            uri=without_password(self._uri),
            experiment=self._name,
            parent_run_id=parent_run_id,
            runs=runs,
            ui_command=self._ui_command(),
        )

    def _ui_command(self) -> str:
        if self._uri.startswith(("http://", "https://")):
            base = without_password(self._uri).rstrip("/")
            return f"{base}/#/experiments/{self._experiment_id}"
        return f"{command('mlflow')} ui --backend-store-uri {shlex.quote(self._uri)}"

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
        run = self.known.get(key)
        now_ms = int(time.time() * 1000)  # later than any value that it replaces
        if run is not None:
            self.set_tags(run, tags)
            changed = {k: v for k, v in metrics.items() if run.data.metrics.get(k) != v}
            self._log(run, metrics=[Metric(k, v, now_ms, 0) for k, v in changed.items()])
            return run
        run = self._client.create_run(
            self._experiment_id, start_time=start_ms, tags=dict(tags), run_name=name
        )
        self.known[key] = run
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

    def set_tags(self, run: Any, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        changed = [RunTag(k, v) for k, v in tags.items() if run.data.tags.get(k) != v]
        if changed:
            self._client.log_batch(run.info.run_id, tags=changed, synchronous=True)

    def dataset(self, run: Any, *, name: str, digest: str, uri: str, rows: int) -> None:
        """What a run was made from: MLflow shows runs of one digest together."""
        from mlflow.entities import Dataset, DatasetInput

        dataset = Dataset(
            name=name,
            digest=digest[:36],
            source_type="local",
            source=json.dumps({"uri": uri}),
            profile=json.dumps({"num_rows": rows}),
        )
        self._client.log_inputs(run.info.run_id, datasets=[DatasetInput(dataset, [])])

    def files(self, run: Any, paths: Sequence[Path]) -> None:
        """Artifacts, when one of them has changed since they were last sent."""
        present = [path for path in paths if path.exists()]
        digest = short_hash([[p.name, short_hash(p.read_bytes())] for p in present])
        if run.data.tags.get("lull.artifacts") == digest:
            return
        for path in present:
            self._client.log_artifact(run.info.run_id, str(path))
        self.set_tags(run, {"lull.artifacts": digest})

    def end(self, run: Any, status: str, *, end_ms: int | None) -> None:
        if run.info.status != status:
            self._client.set_terminated(run.info.run_id, status=status, end_time=end_ms)
