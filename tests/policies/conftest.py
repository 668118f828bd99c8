"""Factories of samples, islands and decision contexts: name only what the test is about."""

from collections.abc import Callable
from typing import Any

import pytest

from policies.observation import IslandProgress, Reading, Sample, Seen


def _sample(tick: int = 0, **fields: Any) -> Sample:
    for name in ("serving", "network", "checkpoint"):
        if isinstance(fields.get(name), float):
            fields[name] = Reading(value=fields[name], age_s=0.0)
    nothing: dict[str, Any] = {
        "now_s": float(tick),
        "arrivals": None,
        "in_flight": None,
        "serving": None,
        "network": None,
        "checkpoint": None,
        "islands": (),
        "blind": False,
    }
    return Sample(tick=tick, **{**nothing, **fields})


def _island(island: int = 0, **fields: Any) -> IslandProgress:
    fresh: dict[str, Any] = {
        "steps_since_merge": 10,
        "tokens_since_merge": 0,
        "loss_drop": 0.0,
        "staleness_s": 0.0,
    }
    return IslandProgress(island=island, **{**fresh, **fields})


def _seen(tick: int = 0, **fields: Any) -> Seen:
    usual: dict[str, Any] = {
        "now_s": float(tick),
        "tick_s": 1.0,
        "last_end_tick": 0,
        "earliest_tick": 0,
        "latest_tick": tick + 10,
        "merges_done": 0,
        "budget": 3,
        "width_ticks": 2,
        "target_gap_ticks": 5,
        "blind": False,
    }
    return Seen(tick=tick, **{**usual, **fields})


@pytest.fixture(scope="session")
def make_sample() -> Callable[..., Sample]:
    return _sample


@pytest.fixture(scope="session")
def make_island() -> Callable[..., IslandProgress]:
    return _island


@pytest.fixture(scope="session")
def make_seen() -> Callable[..., Seen]:
    return _seen
