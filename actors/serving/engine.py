"""What a sidecar asks of an engine, whether real (vllm), simulated (mock) or attached by URL."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class ServerFailed(RuntimeError):
    """The server did not start, died, or does not answer; says why, with its last log lines."""


class ServerBusy(ServerFailed):
    """The server still has requests in the system where it should be idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """A server that is ready for requests."""

    url: str
    model: str  # as requests must name it
    engine: str  # "vllm" or "mock": by what the server says, also when attached
    engine_version: str
    pid: int | None  # of the API server; None when attached
    max_model_len_tokens: int
    max_num_seqs: int


class Engine(Protocol):
    """Owns one server, or knows of one."""

    def start(self, weights: Path | None = None) -> EngineInfo:
        """Block until ready; ValueError for bad config, ServerFailed when it does not come up.

        ``weights``: the exported folder to serve, for an engine that serves the islands' model.
        """
        ...

    def restart(self, weights: Path) -> EngineInfo:
        """Stop, and start on other weights under the same URL; what was asked meanwhile is lost."""
        ...

    def alive(self) -> str | None:
        """None while well, else why not."""
        ...

    def mark_merge(self, slow: bool) -> None:
        """Tell a mock server that a merge window begins or ends; a real one feels it by itself."""
        ...

    def stop(self) -> None:
        """End what `start` started, all of it; harmless when repeated."""
        ...
