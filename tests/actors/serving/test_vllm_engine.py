"""What is handed to vLLM, and what is refused before it is started."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from actors.config import ModelConfig, VllmConfig
from actors.serving import vllm_engine
from actors.serving.vllm_engine import (
    VllmEngine,
    assumed_hub_id,
    check_islands_shape,
    check_model,
    installed_vllm,
    vllm_command,
    vllm_env,
)


def config(**changes: Any) -> VllmConfig:
    fields = {"kind": "vllm", "model": "tiny", "max_model_len_tokens": 512, "max_num_seqs": 8}
    return VllmConfig.model_validate_json(json.dumps(fields | changes))


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(vllm_engine, "version", version)


def command(made: VllmConfig, *, on_cpu: bool) -> list[str]:
    return vllm_command(made, weights="/models/x", host="127.0.0.1", port=8000, on_cpu=on_cpu)


def test_the_command_line_carries_the_config() -> None:
    line = " ".join(command(config(dtype="bfloat16"), on_cpu=False))
    for part in (
        "--model /models/x --served-model-name tiny",
        "--host 127.0.0.1 --port 8000",
        "--max-model-len 512 --max-num-seqs 8 --dtype bfloat16",
        "--no-enable-prefix-caching",
    ):
        assert part in line
    assert "--enforce-eager" not in line


def test_eager_mode_is_for_cpus_and_the_studys_arguments_come_last() -> None:
    line = command(config(extra_args=["--seed", "7"]), on_cpu=True)
    assert "--enforce-eager" in line
    assert line[-2:] == ["--seed", "7"]


def test_the_studys_environment_wins() -> None:
    made = config(env={"OMP_NUM_THREADS": "2"})
    env = vllm_env(made, local_model=True, on_cpu=True)
    assert env["OMP_NUM_THREADS"] == "2"
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert env["VLLM_NO_USAGE_STATS"] == "1"


def test_only_local_models_are_offline_and_gpus_keep_their_threads() -> None:
    env = vllm_env(config(model="owner/name"), local_model=False, on_cpu=False)
    assert "HF_HUB_OFFLINE" not in env
    assert "OMP_NUM_THREADS" not in env
    assert vllm_env(config(), local_model=True, on_cpu=False)["HF_HUB_OFFLINE"] == "1"


def test_only_a_server_that_is_refreshed_in_place_is_in_development_mode() -> None:
    plain = vllm_env(config(model="islands"), local_model=True, on_cpu=True)
    assert "VLLM_SERVER_DEV_MODE" not in plain
    refreshed = vllm_env(config(model="islands"), local_model=True, on_cpu=True, dev_mode=True)
    assert refreshed == plain | {"VLLM_SERVER_DEV_MODE": "1"}


@pytest.mark.parametrize(("model", "weights"), [("islands", None), ("tiny", Path("served"))])
def test_exported_weights_are_for_the_model_islands_and_it_needs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, weights: Path | None
) -> None:
    installed(monkeypatch, vllm_cpu="0.32.0")
    engine = VllmEngine(
        config(model=model), log=tmp_path / "log", models=tmp_path / "models", host="127.0.0.1"
    )
    with pytest.raises(ValueError, match="exactly when the model is 'islands'"):
        engine.start(weights)
    assert not list(tmp_path.iterdir())


def test_islands_whose_heads_a_cpu_server_has_no_attention_for_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = ModelConfig(hidden_size=64, layers=1, heads=4, kv_heads=2, ffn_size=96)
    wide = ModelConfig(hidden_size=64, layers=1, heads=2, kv_heads=1, ffn_size=96)
    islands = config(model="islands")
    installed(monkeypatch, vllm_cpu="0.32.0")
    with pytest.raises(ValueError, match=r"heads=4 gives heads of 16, vLLM on a CPU has 32, 64"):
        check_islands_shape(islands, small)
    check_islands_shape(islands, wide)
    check_islands_shape(config(), small)  # the tiny model has a shape of its own
    installed(monkeypatch, vllm="0.32.0")
    check_islands_shape(islands, small)


def test_either_distribution_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, vllm_cpu="0.32.0")
    assert installed_vllm() == ("0.32.0", True)
    installed(monkeypatch, vllm="0.33.0")
    assert installed_vllm() == ("0.33.0", False)
    installed(monkeypatch, vllm="0.33.0+cpu")
    assert installed_vllm() == ("0.33.0+cpu", True)


def test_no_distribution_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(ValueError, match=r"neither the distribution vllm .* nor vllm-cpu"):
        installed_vllm()


@pytest.mark.parametrize(
    "model", ["/no/such/model", "./model", "../model", "~/no-such-model", "a/b/c", "folder/"]
)
def test_a_folder_that_is_not_there_is_named(model: str) -> None:
    with pytest.raises(ValueError, match="no such folder") as caught:
        check_model(model)
    assert repr(model) in str(caught.value)


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json"):
        check_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert check_model(str(tmp_path)) == tmp_path.resolve()


@pytest.mark.parametrize("model", ["tiny", "islands", "gpt2", "owner/name-1.5B"])
def test_names_that_are_no_folders(model: str) -> None:
    assert check_model(model) is None


@pytest.mark.parametrize(
    ("model", "assumed"), [("models/llama", True), ("owner/cached", False), ("tiny", False)]
)
def test_a_name_that_could_be_a_folder_is_said_to_be_taken_for_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, assumed: bool
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models--owner--cached").mkdir()
    said = assumed_hub_id(model)
    assert (said is not None) == assumed
    if said is not None:
        assert said == f"{model} is no folder here, so it is taken as a Hugging Face id"
        (tmp_path / model).mkdir(parents=True)
        (tmp_path / model / "config.json").write_text("{}")
        assert assumed_hub_id(model) is None
