"""Owns a mock server; its results say engine=mock."""

import sys
from pathlib import Path

from actors.config import MockConfig
from actors.serving.completions import MODEL, VERSION
from actors.serving.engine import EngineInfo, ServerFailed
from actors.serving.http import Unreachable, post_json
from actors.serving.ports import claim_port, url_of
from actors.serving.server_process import ServerProcess


class MockEngine:
    """A mock server process behind the same guard as a real one."""

    def __init__(self, config: MockConfig, *, log: Path, host: str, dev_mode: bool = False) -> None:
        self._config = config
        self._log = log
        self._host = host
        self._dev_mode = dev_mode
        self._port = 0
        self._url = ""
        self._server: ServerProcess | None = None

    def start(self, weights: Path | None = None) -> EngineInfo:
        return self._start(weights, port=self._config.port)

    def restart(self, weights: Path) -> EngineInfo:
        self.stop()
        return self._start(weights, port=self._port)

    def _start(self, weights: Path | None, *, port: int) -> EngineInfo:
        self._port = claim_port(self._host, port=port)
        self._url = url_of(self._host, port=self._port)
        self._server = ServerProcess(
            self._command(weights), env={}, url=self._url, port=self._port, log=self._log
        )
        self._server.start()
        self._server.wait_ready(timeout_s=self._config.start_timeout_s)
        return EngineInfo(
            url=self._url,
            model=MODEL,
            engine="mock",
            engine_version=VERSION,
            pid=self._server.pid,
            max_model_len_tokens=self._config.max_model_len_tokens,
            max_num_seqs=self._config.max_num_seqs,
        )

    def _command(self, weights: Path | None) -> list[str]:
        return [
            *(sys.executable, "-m", "actors.serving.mock_server"),
            *("--host", self._host, "--port", str(self._port)),
            *("--config", self._config.model_dump_json()),
            *(["--weights", str(weights)] if weights is not None else []),
            *(["--dev-mode"] if self._dev_mode else []),
        ]

    def alive(self) -> str | None:
        return "it was never started" if self._server is None else self._server.why_not_well()

    def mark_merge(self, slow: bool) -> None:
        try:
            post_json(f"{self._url}/mock/merge", {"slow": slow})
        except Unreachable as error:
            raise ServerFailed(f"cannot mark a merge: {error}; {self.alive()}") from error

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
