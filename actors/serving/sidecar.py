"""A serving sidecar: one engine of the study's kind, its readiness, health and clean end."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from actors.config import AttachConfig, EngineConfig, MockConfig, SidecarsConfig, VllmConfig
from actors.serving.attach import AttachedEngine
from actors.serving.engine import Engine, EngineInfo, ServerBusy, ServerFailed
from actors.serving.mock_engine import MockEngine
from actors.serving.server_facts import server_gauges
from actors.serving.vllm_engine import VllmEngine, check_model, installed_vllm

IDLE_POLL_S = 0.05
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
        self, config: SidecarsConfig, sidecar: int, work_dir: Path, *, host: str = LOCAL_HOST
    ) -> None:
        self._sidecar = sidecar
        self._sidecars = config.count
        self._engine_config = config.engine
        self._engine = _build_engine(
            config.engine, sidecar=sidecar, work_dir=work_dir.resolve(), host=host
        )
        self._info: EngineInfo | None = None

    def start(self) -> SidecarInfo:
        """Block until ready, with every metric that is needed; else nothing is left running."""
        check_engine(self._engine_config, sidecars=self._sidecars)
        try:
            info = self._engine.start()
            server_gauges(info.url, version=f"{info.engine} {info.engine_version}")
        except BaseException as error:
            self._engine.stop()
            if isinstance(error, ServerFailed):
                raise type(error)(f"sidecar {self._sidecar}: {error}") from error
            raise
        self._info = info
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
        self._engine.stop()

    def _ready(self) -> EngineInfo:
        if self._info is None:
            raise ServerFailed(f"sidecar {self._sidecar} is not started")
        return self._info


def _build_engine(config: EngineConfig, *, sidecar: int, work_dir: Path, host: str) -> Engine:
    log = work_dir / f"sidecar-{sidecar}.log"
    match config:
        case VllmConfig():
            return VllmEngine(config, log=log, models=work_dir / "models", host=host)
        case MockConfig():
            return MockEngine(config, log=log, host=host)
        case AttachConfig():
            return AttachedEngine(config)
        case _:
            assert_never(config)
