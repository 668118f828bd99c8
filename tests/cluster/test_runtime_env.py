"""Ray reads the runtime environment that the README's job line names."""

from pathlib import Path

import pytest
import yaml

runtime_env = pytest.importorskip("ray.runtime_env")
pytestmark = pytest.mark.ray


def test_ray_accepts_runtime_env_yaml(checkout: Path) -> None:
    settings = yaml.safe_load((checkout / "runtime_env.yaml").read_text())
    read = runtime_env.RuntimeEnv(**settings)
    assert read["env_vars"] == settings["env_vars"]
    assert read["config"]["setup_timeout_seconds"] == settings["config"]["setup_timeout_seconds"]
