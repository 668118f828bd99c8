"""An already running server, reached by URL: checked at the start, never stopped by us."""

from pathlib import Path

from actors.config import AttachConfig
from actors.serving.engine import EngineInfo, ServerFailed
from actors.serving.server_facts import served_models, server_version, unhealthy


class AttachedEngine:
    """Somebody else's server."""

    def __init__(self, config: AttachConfig) -> None:
        self._config = config
        self._url = config.url.rstrip("/")

    def start(self, weights: Path | None = None) -> EngineInfo:
        if weights is not None:
            raise ValueError("an attached server serves what it was started with; give no weights")
        if not self._url.startswith(("http://", "https://")):
            raise ValueError(
                f"engine.url={self._config.url!r} is no http:// or https:// URL; "
                "give the server's root, e.g. http://10.0.0.5:8000"
            )
        if (why := unhealthy(self._url)) is not None:
            raise ServerFailed(f"cannot attach: {why}")
        version = server_version(self._url)
        return EngineInfo(
            url=self._url,
            model=self._model(),
            engine="mock" if version.startswith("mock") else "vllm",
            engine_version=version,
            pid=None,
            max_model_len_tokens=self._config.max_model_len_tokens,
            max_num_seqs=self._config.max_num_seqs,
        )

    def _model(self) -> str:
        models = served_models(self._url)
        name = self._config.model
        if name is None and len(models) != 1:
            raise ValueError(f"{self._url} serves {sorted(models)}; name one in engine.model")
        name = next(iter(models)) if name is None else name
        if name not in models:
            raise ValueError(
                f"engine.model={name!r} is not served by {self._url}: {sorted(models)}"
            )
        longest, stated = models[name], self._config.max_model_len_tokens
        if longest is not None and stated > longest:
            raise ValueError(
                f"engine.max_model_len_tokens={stated} is above the {longest} that {self._url} "
                "serves; lower it"
            )
        return name

    def restart(self, weights: Path) -> EngineInfo:
        raise ValueError(f"{self._url} is not ours to restart on {weights}")

    def alive(self) -> str | None:
        return unhealthy(self._url)

    def mark_merge(self, slow: bool) -> None:
        """A foreign server feels merges by itself, or not at all."""

    def stop(self) -> None:
        """It was there before us, and stays."""
