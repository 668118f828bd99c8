"""Factories of samples, islands and contexts; small corridors with all their schedules."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from policies.corridor import Corridor
from policies.observation import IslandProgress, Reading, Sample, Seen

Schedule = tuple[int, ...]


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


def _random_corridors(
    number: int, *, most_horizon: int, seed: int, least_horizon: int = 1
) -> list[Corridor]:
    rng = np.random.default_rng(seed)
    corridors = []
    for _ in range(number):
        floor = int(rng.integers(0, 5))
        corridors.append(
            Corridor(
                floor_ticks=floor,
                ceiling_ticks=max(1, floor + int(rng.integers(0, 6))),
                width_ticks=int(rng.integers(1, 5)),
                horizon_ticks=int(rng.integers(least_horizon, most_horizon + 1)),
            )
        )
    return corridors


def _is_feasible(corridor: Corridor, starts: Schedule) -> bool:
    """The definition, word for word."""
    floor, ceiling = corridor.floor_ticks, corridor.ceiling_ticks
    width, horizon = corridor.width_ticks, corridor.horizon_ticks
    if not floor <= starts[0] <= ceiling:
        return False
    for now, later in pairwise(starts):
        if not floor <= later - (now + width) <= ceiling:
            return False
    return starts[-1] + width <= horizon and starts[-1] + width + ceiling > horizon - width


def _all_schedules(corridor: Corridor) -> set[Schedule]:
    """Every chain of starts, grown tick by tick; those that the definition accepts."""
    found: set[Schedule] = set()
    open_chains: list[Schedule] = [()]
    while open_chains:
        chain = open_chains.pop()
        end = chain[-1] + corridor.width_ticks if chain else 0
        for start in range(end, min(end + corridor.ceiling_ticks, corridor.horizon_ticks) + 1):
            longer = (*chain, start)
            if start - end >= corridor.floor_ticks and start < corridor.horizon_ticks:
                open_chains.append(longer)
                if _is_feasible(corridor, longer):
                    found.add(longer)
    return found


@pytest.fixture(scope="session")
def random_corridors() -> Callable[..., list[Corridor]]:
    return _random_corridors


@pytest.fixture(scope="session")
def is_feasible() -> Callable[[Corridor, Schedule], bool]:
    return _is_feasible


@pytest.fixture(scope="session")
def brute_force() -> list[tuple[Corridor, dict[int, npt.NDArray[np.int64]]]]:
    """700 small corridors and all schedules of each, by budget and in order: [schedule, merge]."""
    cases = []
    for corridor in _random_corridors(700, most_horizon=18, seed=1):
        by_budget: dict[int, list[Schedule]] = {}
        for schedule in sorted(_all_schedules(corridor)):
            by_budget.setdefault(len(schedule), []).append(schedule)
        cases.append((corridor, {b: np.array(found) for b, found in by_budget.items()}))
    return cases
