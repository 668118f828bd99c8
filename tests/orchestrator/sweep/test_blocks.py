"""Tuning and judging share no seed and no window of a trace."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.config import StudyConfig
from orchestrator.sweep.blocks import Block, check_disjoint, tuning_batches
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.windows import RUN, run_hashes

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
    """Two traces of 20 minutes, one that repeats itself, and copies of the first."""
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for name, step in (("a.csv", 2), ("b.csv", 3), ("regular.csv", 2), ("regular-too.csv", 2)):
        rng = np.random.default_rng(step)
        tokens = rng.integers(1, 99, 1200) if name[0] != "r" else np.full(1200, 10)
        rows = [
            f"2024-01-01 00:{s // 60:02d}:{s % 60:02d}.0000000,{tokens[s]},10\n"
            for s in range(0, 1200, step)
        ]
        (tmp_path / name).write_text(head + "".join(rows[:-1] if "too" in name else rows))
    whole = (tmp_path / "a.csv").read_text()
    lines = whole.splitlines(keepends=True)[1:]
    (tmp_path / "copy.csv").write_text(whole)
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(whole.encode()))
    (tmp_path / "cut.csv").write_text(head + "".join(lines[:-5]))
    (tmp_path / "begun-later.csv").write_text(head + "".join(lines[7:]))
    (tmp_path / "a-year-later.csv").write_text(whole.replace("2024-", "2025-"))
    written = [
        json.dumps(
            {"timestamp": 2000 * i, "input_length": int(line.split(",")[1]), "output_length": 10}
        )
        for i, line in enumerate(lines)
    ]
    (tmp_path / "other.jsonl").write_text("\n".join(written) + "\n")
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
    for judging in (load("a.csv"), load("b.csv"), load("b.csv", time_scale=0.5)):
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


@pytest.mark.parametrize(
    "name", ["packed.csv.gz", "cut.csv", "begun-later.csv", "a-year-later.csv", "other.jsonl"]
)
def test_a_copy_of_the_traffic_is_found_whatever_its_file(
    make_study: Callable[..., StudyConfig],
    make_space: Callable[..., SpaceConfig],
    traces: Path,
    name: str,
) -> None:
    space = spaces(make_space, load("a.csv"), load(name, time_scale=0.5))
    with pytest.raises(ValueError, match=r"runs of 8 requests there are equal to those") as told:
        check_disjoint(make_study(), space, study_dir=traces)
    assert f"{name}: judging seed 4 has [120, 150) s" in str(told.value)
    assert "s of a.csv" in str(told.value)
    # The same windows, and no request of one in the other.
    later = spaces(make_space, load("a.csv"), load(name, offset_s=60.0))
    check_disjoint(make_study(), later, study_dir=traces)


def test_traffic_that_repeats_itself_is_told_by_its_file_alone(
    make_study: Callable[..., StudyConfig], make_space: Callable[..., SpaceConfig], traces: Path
) -> None:
    regular = load("regular.csv")
    check_disjoint(make_study(), spaces(make_space, regular, regular), study_dir=traces)
    same = spaces(make_space, regular, load("regular.csv", time_scale=0.5))
    with pytest.raises(ValueError, match="of which tuning seed 2 sees"):
        check_disjoint(make_study(), same, study_dir=traces)
    other = spaces(make_space, regular, load("regular-too.csv", time_scale=0.5))
    check_disjoint(make_study(), other, study_dir=traces)  # as windows.py says


def test_a_run_is_told_by_gaps_and_tokens() -> None:
    rng = np.random.default_rng(0)
    at, tokens = np.cumsum(rng.integers(1, 10**9, 50)), rng.integers(1, 9, 50)
    hashes = run_hashes(at, tokens, tokens)
    assert len(hashes) == len(set(hashes.tolist())) == 50 - RUN + 1
    assert np.array_equal(run_hashes(at + 12345, tokens, tokens), hashes)
    assert np.array_equal(run_hashes(at[20:], tokens[20:], tokens[20:]), hashes[20:])
    changed = tokens.copy()
    changed[30] += 1
    for other in (run_hashes(at, changed, tokens), run_hashes(at, tokens, changed)):
        assert np.flatnonzero(other != hashes).tolist() == list(range(31 - RUN, 31))
    assert len(run_hashes(at[: RUN - 1], tokens[: RUN - 1], tokens[: RUN - 1])) == 0


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
