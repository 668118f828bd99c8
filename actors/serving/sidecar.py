"""A serving sidecar: one engine of the study's kind, its readiness, health and clean end.

Where it serves the islands' model, it also takes the weights of their merges.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from actors.clock import Clock, MonotonicClock
from actors.config import AttachConfig, EngineConfig, MockConfig, SidecarsConfig, VllmConfig
from actors.serving.attach import AttachedEngine
from actors.serving.engine import Engine, EngineInfo, ServerBusy, ServerFailed
from actors.serving.exported import Exported, NotExported, read_exported
from actors.serving.mock_engine import MockEngine
from actors.serving.refresh import (
    Proof,
    Refreshed,
    RefreshFailed,
    RefreshRefused,
    WeightRefresher,
    acceptable,
)
from actors.serving.server_facts import server_gauges
from actors.serving.vllm_engine import VllmEngine, check_model, installed_vllm

IDLE_POLL_S = 0.05
FOLDER_POLL_S = 0.02
LOCAL_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarInfo:
    """A sidecar that is ready for requests."""

    sidecar: int
    url: str
    model: str
    engine: str  # "vllm" or "mock"
    engine_version: str
    pid: int | None
    max_model_len_tokens: int
    max_num_seqs: int


def check_engine(config: EngineConfig, *, sidecars: int) -> None:
    """What can be known to be wrong before anything is started: ValueError says what."""
    if isinstance(config, VllmConfig):
        check_model(config.model)
        installed_vllm()
    if not isinstance(config, AttachConfig) and config.port != 0 and sidecars > 1:
        raise ValueError(
            f"engine.port={config.port} with sidecars.count={sidecars}: two servers cannot share a "
            "port; set engine.port to 0 (any free port)"
        )


class Sidecar:
    """Owns the server for the whole study; arms come and go."""

    def __init__(
        self,
        config: SidecarsConfig,
        sidecar: int,
        work_dir: Path,
        *,
        host: str = LOCAL_HOST,
        clock: Clock | None = None,
    ) -> None:
        self._sidecar = sidecar
        self._config = config
        self._clock = MonotonicClock() if clock is None else clock
        self._engine = _build_engine(
            config, sidecar=sidecar, work_dir=work_dir.resolve(), host=host
        )
        self._info: EngineInfo | None = None
        self._refresher: WeightRefresher | None = None

    def start(self, weights: Path | None = None) -> SidecarInfo:
        """Block until ready, with every metric that is needed; else nothing is left running.

        ``weights``: the folder of exported weights to serve; needed to refresh them later, and to
        serve the islands' model at all. That they are served is proved.
        """
        check_engine(self._config.engine, sidecars=self._config.count)
        exported = self._exported(weights)
        folder = None if exported is None else exported.folder
        info, _, _ = self._bring_up(lambda: self._engine.start(folder), exported)
        return SidecarInfo(
            sidecar=self._sidecar,
            url=info.url,
            model=info.model,
            engine=info.engine,
            engine_version=info.engine_version,
            pid=info.pid,
            max_model_len_tokens=info.max_model_len_tokens,
            max_num_seqs=info.max_num_seqs,
        )

    def refresh(self, folder: Path, round_: int, *, wait_s: float = 0.0) -> Refreshed:
        """Serve the weights of merge ``round_`` from ``folder``, as sidecars.refresh says.

        The folder may take ``wait_s`` to appear: an export puts it there whole, in one step.
        RefreshRefused: the old weights are served on. ServerFailed (RefreshFailed where it was in
        place): the server has to be restarted, which ``restart`` does.
        """
        refresher = self._refreshing()
        self._await(folder, wait_s=wait_s)
        if self._config.refresh.kind == "restart":
            return self.restart(folder, round_)
        try:
            return refresher.refresh(
                folder, round_=round_, timeout_s=self._config.refresh.timeout_s
            )
        except (RefreshRefused, RefreshFailed) as error:
            health = self._engine.alive()
            if health is not None:  # then nothing is served on
                why = f"sidecar {self._sidecar}: {error}; {health}"
                raise RefreshFailed(why) from error
            raise type(error)(f"sidecar {self._sidecar}: {error}") from error

    def restart(self, folder: Path, round_: int) -> Refreshed:
        """Stop the server and start it on ``folder`` under the same URL: an outage, and its length.

        Also after a refresh that failed. RefreshRefused before anything is stopped.
        """
        serving = self._refreshing().serving
        new = acceptable(folder, round_=round_, serving=serving)
        started_at_s = self._clock.now_s()
        try:
            _, up_at_s, proof = self._bring_up(
                lambda: self._engine.restart(new.folder), new, before=serving
            )
        except ValueError as error:  # somebody else took the port meanwhile
            raise ServerFailed(f"sidecar {self._sidecar}: cannot restart: {error}") from error
        assert proof is not None
        return Refreshed(
            round=new.round,
            kind="restart",
            started_at_s=started_at_s,
            ended_at_s=self._clock.now_s(),
            outage_s=up_at_s - started_at_s,
            weights_bytes=new.weights_bytes,
            proof=proof,
        )

    def alive(self) -> str | None:
        """None while well; else why not, with the server's last log lines where they are ours."""
        why = self._engine.alive()
        return None if why is None else f"sidecar {self._sidecar}: {why}"

    def wait_idle(self, timeout_s: float) -> None:
        """Return when no request runs or waits; ServerBusy when that does not come in time."""
        info = self._ready()
        deadline_s = time.monotonic() + timeout_s
        while True:
            gauges = server_gauges(info.url, version=f"{info.engine} {info.engine_version}")
            if gauges.running == gauges.waiting == 0:
                return
            if time.monotonic() >= deadline_s:
                raise ServerBusy(
                    f"sidecar {self._sidecar}: {gauges.running} requests running and "
                    f"{gauges.waiting} waiting after {timeout_s:g} s at {info.url}; "
                    "is somebody else using the server?"
                )
            time.sleep(IDLE_POLL_S)

    def mark_merge(self, slow: bool) -> None:
        self._ready()
        self._engine.mark_merge(slow)

    def stop(self) -> None:
        """End the server and all that it started; harmless when repeated."""
        self._info = None
        self._refresher = None
        self._engine.stop()

    def _bring_up(
        self,
        begin: Callable[[], EngineInfo],
        exported: Exported | None,
        *,
        before: Exported | None = None,
    ) -> tuple[EngineInfo, float, Proof | None]:
        """The server that ``begin`` gives, when it was ready, and the proof of what it serves.

        ``before``: what was served until then.
        """
        proof = None
        try:
            info = begin()
            up_at_s = self._clock.now_s()
            server_gauges(info.url, version=f"{info.engine} {info.engine_version}")
            if exported is not None:
                proof = self._prove(info, exported, before=before)
        except BaseException as error:
            self.stop()
            if isinstance(error, ServerFailed):
                raise type(error)(f"sidecar {self._sidecar}: {error}") from error
            raise
        self._info = info
        return info, up_at_s, proof

    def _prove(self, info: EngineInfo, exported: Exported, *, before: Exported | None) -> Proof:
        engine, refresh = self._config.engine, self._config.refresh
        refresher = WeightRefresher(
            info.url,
            model=info.model,
            dtype=engine.dtype if isinstance(engine, VllmConfig) else "float32",
            serving=exported,
            clock=self._clock,
        )
        if refresh.kind == "in_place":
            try:
                refresher.check_offer(timeout_s=refresh.timeout_s)
            except RefreshRefused as error:
                raise ServerFailed(str(error)) from error
        proof = refresher.prove_start(before=before, timeout_s=refresh.timeout_s)
        self._refresher = refresher
        return proof

    def _exported(self, weights: Path | None) -> Exported | None:
        kind = self._config.refresh.kind
        if weights is None and kind != "none":
            raise ValueError(
                f"refresh.kind={kind!r}: the server has to be started on exported weights"
            )
        try:
            return None if weights is None else read_exported(weights)
        except NotExported as error:
            raise ValueError(f"sidecar {self._sidecar} cannot serve: {error}") from error

    def _await(self, folder: Path, *, wait_s: float) -> None:
        deadline_s = time.monotonic() + wait_s
        while not folder.is_dir():
            if time.monotonic() >= deadline_s:
                raise RefreshRefused(
                    f"sidecar {self._sidecar}: no {folder} on this node within {wait_s:g} s; "
                    "was the merge late, or is the folder on no disk that the nodes share?"
                )
            time.sleep(FOLDER_POLL_S)

    def _refreshing(self) -> WeightRefresher:
        if self._refresher is None:
            raise ServerFailed(
                f"sidecar {self._sidecar} is not started on exported weights, or has failed since"
            )
        return self._refresher

    def _ready(self) -> EngineInfo:
        if self._info is None:
            raise ServerFailed(f"sidecar {self._sidecar} is not started")
        return self._info


def _build_engine(config: SidecarsConfig, *, sidecar: int, work_dir: Path, host: str) -> Engine:
    engine = config.engine
    log = work_dir / f"sidecar-{sidecar}.log"
    dev_mode = config.refresh.kind == "in_place"
    match engine:
        case VllmConfig():
            models = work_dir / "models"
            return VllmEngine(engine, log=log, models=models, host=host, dev_mode=dev_mode)
        case MockConfig():
            return MockEngine(engine, log=log, host=host, dev_mode=dev_mode)
        case AttachConfig():
            return AttachedEngine(engine)
        case _:
            assert_never(engine)
