"""Tuning and judging share no seed and no window of a trace."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import StudyConfig
from orchestrator.sweep.blocks import Block, check_disjoint, tuning_batches
from orchestrator.sweep.config import SpaceConfig

RULE = {"min_requests": 0, "max_requests": 10_000, "max_burst_requests": 10_000}


def load(path: str, **changes: Any) -> dict[str, Any]:
    """Windows of 60 s of trace time; ``offset_s`` shifts them."""
    offset_s = changes.pop("offset_s", 0.0)
    clip = {"low": 1, "high": 100}
    return {
        "kind": "trace",
        "path": path,
        "time_scale": 1.0,
        "slice": {**RULE, "offset_s": offset_s},
        "token_scale": 1.0,
        "prompt_tokens_clip": clip,
        "output_tokens_clip": clip,
        **changes,
    }


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two traces of 20 minutes, and a copy of the first under another name."""
    for name, step in (("a.csv", 2), ("b.csv", 3)):
        rows = [
            f"2024-01-01 00:{s // 60:02d}:{s % 60:02d}.0000000,10,10" for s in range(0, 1200, step)
        ]
        text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n"
        (tmp_path / name).write_text(text)
    (tmp_path / "copy.csv").write_bytes((tmp_path / "a.csv").read_bytes())
    return tmp_path


def spaces(
    make_space: Callable[..., SpaceConfig], tuning: dict[str, Any], judging: dict[str, Any]
) -> SpaceConfig:
    return make_space(
        tuning={"loads": [tuning], "seeds": {"first": 0, "count": 4}},
        judging={"loads": [judging], "seeds": {"first": 4, "count": 4}},
    )


def test_windows_of_other_seeds_or_other_traces_are_disjoint(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig], traces: Path
) -> None:
    for judging in (load("a.csv"), load("b.csv")):
        check_disjoint(make_study(), spaces(make_space, load("a.csv"), judging), study_dir=traces)


@pytest.mark.parametrize(
    "judging",
    [
        load("a.csv", time_scale=0.5),  # seeds 4 to 7 reach from 120 to 240 s
        load("copy.csv", time_scale=0.5),
        load("b.csv", time_scale=0.5, superpose=[{"path": "a.csv"}]),
    ],
)
def test_one_window_under_two_seeds_is_refused(
    make_study: Callable[..., StudyConfig],
    make_space: Callable[..., SpaceConfig],
    traces: Path,
    judging: dict[str, Any],
) -> None:
    space = spaces(make_space, load("a.csv"), judging)
    with pytest.raises(ValueError, match=r"judging seed 4 has \[120, 150\) s of the trace") as told:
        check_disjoint(make_study(), space, study_dir=traces)
    assert "tuning seed 2 sees [120, 180) s" in str(told.value)


def test_a_told_history_that_reaches_into_a_judging_window_is_refused(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig], traces: Path
) -> None:
    space = make_space(
        tuning={"loads": [load("a.csv")], "seeds": {"first": 6, "count": 4}},
        judging={"loads": [load("a.csv")], "seeds": {"first": 2, "count": 3}},
    )
    check_disjoint(make_study(), space, study_dir=traces)
    history = {"length_s": 120.0, "service_s": 1.0}
    with pytest.raises(ValueError, match="with its history"):
        check_disjoint(make_study(history=history), space, study_dir=traces)


def test_a_seed_without_a_window_is_named(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig], traces: Path
) -> None:
    space = spaces(make_space, load("a.csv"), load("a.csv", offset_s=800.0))
    with pytest.raises(ValueError, match="seed 6 has no window: 6 of 6 windows"):
        check_disjoint(make_study(), space, study_dir=traces)


def test_batches_hold_every_block_once_in_order_of_seed(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig]
) -> None:
    own = make_study().load.model_dump(mode="json")
    space = make_space(tuning={"loads": [own, own], "seeds": {"first": 3, "count": 3}})
    assert tuning_batches(make_study(), space) == (
        (Block(3, 0), Block(3, 1), Block(4, 0), Block(4, 1)),
        (Block(5, 0), Block(5, 1)),
    )
