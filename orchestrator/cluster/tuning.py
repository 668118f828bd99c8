"""Ray Tune under a sweep: trials on warm workers, one writer in the driver, nothing read back.

A trial is a setting; its id is the setting's. Each of its steps plays a batch of blocks, so that
the start of a process is paid once a worker and a setting can be stopped between two batches.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Experiment, Trial
from ray.tune.experiment.config_parser import _create_trial_from_spec, _make_parser
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import SearchAlgorithm

from actors.brief import brief
from orchestrator.cluster.nodes import cluster_nodes
from orchestrator.cluster.setting_trial import SettingTrial
from orchestrator.endings import StageFailed
from orchestrator.sweep.figures import from_json
from orchestrator.sweep.here import Plan
from orchestrator.sweep.progress import Progress, State, Tried

Say = Callable[[str], None]
CPUS_A_TRIAL = 1.0
_PATIENCE = 10.0  # times ready_timeout_s, for workers that start on a loaded machine
_ENV = {  # Tune's own; none of them changes a result
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # results.jsonl is the record
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours
    "TUNE_GLOBAL_CHECKPOINT_S": "60",  # its state is never read back
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}


class _Rounds(SearchAlgorithm):
    """Trials of ``Progress``, under the ids of their settings."""

    def __init__(self, progress: Progress, *, say: Say) -> None:
        self._progress, self._say = progress, say
        self._experiment: Experiment | None = None
        self._running: dict[str, Tried] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles it for a restore that never comes

    def set_search_properties(self, *_: Any, **__: Any) -> bool:
        return True

    @property
    def total_samples(self) -> int:
        return len(self._progress.tried)

    def add_configurations(self, experiments: Any) -> None:
        (self._experiment,) = experiments if isinstance(experiments, list) else [experiments]

    def next_trial(self) -> Trial | None:
        tried = self._progress.next()
        if tried is None:
            return None
        assert self._experiment is not None
        name = tried.setting.setting
        todo = [[(b.seed, b.load) for b in batch] for batch in self._progress.todo(tried)]
        spec = {
            **self._experiment.spec,
            "config": {"values": tried.setting.values, "todo": todo},
        }
        self._running[name] = tried
        trial: Trial = _create_trial_from_spec(
            spec, _make_parser(), evaluated_params={}, experiment_tag=name, trial_id=name
        )
        return trial

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        tried = self._running.pop(trial_id)
        if tried.state is State.OPEN:
            self._progress.fail(trial_id, "its worker failed")
        self._say(tried.line())

    def is_finished(self) -> bool:
        return self._progress.finished


class _Writer(FIFOScheduler):
    """Every result into the ledger before anything is decided on it."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_result(self, _controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        goes_on = self._progress.add(trial.trial_id, [from_json(r) for r in result["rows"]])
        return TrialScheduler.CONTINUE if goes_on else TrialScheduler.STOP


class _Patience(tune.Callback):
    """Ends a sweep whose trials all wait, for a cause that was not there at its start."""

    def __init__(self, *, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: float | None = None

    def on_step_end(self, iteration: int, trials: list[Trial], **_: Any) -> None:
        waits = any(t.status == Trial.PENDING for t in trials)
        if not waits or any(t.status == Trial.RUNNING for t in trials):
            self._since_s = None
            return
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > self._limit_s:
            raise StageFailed(
                f"no trial of the sweep has begun to run for {self._limit_s:g} s ({_cpus()}); "
                "see `ray status`, then --resume"
            )


def wait_for_cpus(*, limit_s: float) -> None:
    """Return when a trial has room; StageFailed when other jobs hold the cluster for so long.

    Ray itself would leave the trial pending for ever.
    """
    give_up_at_s = time.monotonic() + limit_s
    while ray.available_resources().get("CPU", 0.0) < CPUS_A_TRIAL:
        if time.monotonic() > give_up_at_s:
            raise StageFailed(
                f"a trial needs {CPUS_A_TRIAL:g} free CPU, and none became free within "
                f"{limit_s:g} s: other jobs hold the cluster ({_cpus()}); wait for them, or raise "
                "resources.ready_timeout_s"
            )
        time.sleep(0.2)


def _cpus() -> str:
    free = ray.available_resources().get("CPU", 0.0)
    return f"{free:g} of {ray.cluster_resources().get('CPU', 0.0):g} CPU free"


def check_cpus(nodes: list[dict[str, float]]) -> int:
    """Trials that fit at once; ValueError when not even one does."""
    most = sum(int(node.get("CPU", 0.0) // CPUS_A_TRIAL) for node in nodes)
    if most < 1:
        have = ", ".join(f"{n.get('CPU', 0.0):g}" for n in nodes) or "none"
        raise ValueError(
            f"a trial needs {CPUS_A_TRIAL:g} CPU on one node; the cluster's nodes have {have}"
        )
    return most


def run_trials(
    progress: Progress,
    *,
    plan: Plan,
    storage: Path,
    name: str,
    say: Say,
) -> None:
    """Play the sweep to its end on the connected cluster; every result goes through ``progress``.

    ``storage / name`` holds Tune's own files, a help to look at and never read back. ValueError
    when no node can hold a trial; StageFailed when a setting failed or no CPU became free.
    """
    if progress.finished:
        return
    at_once = check_cpus(cluster_nodes())
    say(f"{at_once} trials at once on {len(cluster_nodes())} node(s)")
    if at_once > plan.space.ask_at_once:
        say(f"a round asks for {plan.space.ask_at_once} settings: more ask_at_once, less waiting")
    trainable = tune.with_parameters(SettingTrial, plan=plan)
    limit_s = plan.study.resources.ready_timeout_s
    wait_for_cpus(limit_s=limit_s)
    with _settings(at_once):
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": CPUS_A_TRIAL}),
            tune_config=tune.TuneConfig(
                search_alg=_Rounds(progress, say=say),
                scheduler=_Writer(progress),
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: f"setting-{trial.trial_id}",
                trial_name_creator=lambda trial: f"setting-{trial.trial_id}",
            ),
            run_config=tune.RunConfig(
                name=name,
                storage_path=str(storage.resolve()),
                failure_config=tune.FailureConfig(max_failures=1),
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_frequency=0, checkpoint_at_end=False
                ),
                callbacks=[_Patience(limit_s=_PATIENCE * limit_s)],
                verbose=0,
            ),
        )
        results = tuner.fit()
    _raise_failed(progress, {e_id: brief(e) for e_id, e in _errors(results).items()})


def _errors(results: Any) -> Mapping[str, BaseException]:
    found = {}
    for i in range(len(results)):
        error = results[i].error
        if error is not None:
            found[Path(results[i].path).name.removeprefix("setting-")] = error
    return found


def _raise_failed(progress: Progress, why: Mapping[str, str]) -> None:
    failed = [t for t in progress.tried if t.state is State.FAILED]
    if failed:
        first = failed[0].setting
        raise StageFailed(
            f"{len(failed)} of {len(progress.tried)} settings failed; first "
            f"{first.setting} {first.values}: {why.get(first.setting, 'its worker was lost')}; "
            "what was played is kept: mend it, then --resume"
        )


@contextlib.contextmanager
def _settings(at_once: int) -> Iterator[None]:
    """Tune quiet and without files that nobody reads; the environment as it was afterwards."""
    wanted = {**_ENV, "TUNE_MAX_PENDING_TRIALS_PG": str(at_once)}  # workers start side by side
    before = {name: os.environ.get(name) for name in wanted}
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.train", "ray.air")]
    levels = [logger.level for logger in loggers]
    os.environ.update(wanted)
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
