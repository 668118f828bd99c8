"""A tiny study shape for island tests; imports no torch, so the pure tests run without it."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.config import (
    DataConfig,
    FillConfig,
    InnerConfig,
    IslandsConfig,
    MergeConfig,
    ModelConfig,
    OuterConfig,
)

TINY = ModelConfig(hidden_size=16, layers=1, heads=2, kv_heads=1, ffn_size=24)


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """About 9 kB of text in three files."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        line = f"{name}: the quick brown fox jumps over the lazy dog 0123456789; "
        (folder / name).write_text(textwrap.fill(line * 50, 80))
    return folder


@pytest.fixture
def islands_config(text_folder: Path) -> Callable[..., IslandsConfig]:
    def make(count: int = 1, **changes: Any) -> IslandsConfig:
        fields: dict[str, Any] = {
            "count": count,
            "model": TINY,
            "data": DataConfig(source="folder", folder=str(text_folder)),
            "inner": InnerConfig(lr=0.01),
            "outer": OuterConfig(),
            "batch_size": 2,
            "seq_len_tokens": 16,
            "step_interval_s": 0.0,
        }
        return IslandsConfig(**(fields | changes))

    return make


@pytest.fixture
def merge_config() -> Callable[..., MergeConfig]:
    def make(**changes: Any) -> MergeConfig:
        fields: dict[str, Any] = {
            "window_s": 1.0,
            "fill": FillConfig(kind="none", threads=0),
            "timeout_s": 20.0,
        }
        return MergeConfig(**(fields | changes))

    return make
