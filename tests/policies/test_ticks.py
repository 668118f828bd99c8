"""Steps and seconds to ticks: floors up, ceilings down, no floating error at the boundary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.config import CorridorConfig
from policies.corridor import Corridor, corridor_from_steps, target_gap_ticks
from policies.ticks import ticks_down, ticks_nearest, ticks_up, whole_ticks


def config(floor: int, target: int, ceiling: int, budget: int) -> CorridorConfig:
    return CorridorConfig(
        floor_steps=floor, target_steps=target, ceiling_steps=ceiling, budget_merges=budget
    )


@pytest.mark.parametrize(
    ("steps", "step_interval_s", "tick_s", "up", "down", "nearest"),
    [
        (3, 0.1, 0.3, 1, 1, 1),  # 3 * 0.1 is a little above 0.3 in floating point
        (6, 0.1, 0.2, 3, 3, 3),
        (7, 0.1, 0.7, 1, 1, 1),  # 7 * 0.1 is a little above 0.7
        (3, 0.1 + 0.2, 0.9, 1, 1, 1),  # 0.30000000000000004 was meant as 0.3
        (10, 0.25, 1.0, 3, 2, 3),  # 2.5 ticks
        (9, 0.25, 1.0, 3, 2, 2),  # 2.25 ticks
        (10, 0.35, 1.0, 4, 3, 4),  # a half that is a little less in floating point
        (0, 0.25, 1.0, 0, 0, 0),
        (1, 1e-05, 1.0, 1, 0, 0),
    ],
)
def test_steps_become_ticks_as_on_paper(
    steps: int, step_interval_s: float, tick_s: float, up: int, down: int, nearest: int
) -> None:
    assert ticks_up(steps, step_interval_s=step_interval_s, tick_s=tick_s) == up
    assert ticks_down(steps, step_interval_s=step_interval_s, tick_s=tick_s) == down
    assert ticks_nearest(steps, step_interval_s=step_interval_s, tick_s=tick_s) == nearest


@settings(deadline=None)
@given(
    ticks=st.integers(0, 10_000),
    per_tick=st.integers(1, 50),
    tick_ms=st.integers(1, 5000),
)
def test_whole_ticks_of_steps_stay_whole_at_any_pace(
    ticks: int, per_tick: int, tick_ms: int
) -> None:
    tick_s = tick_ms / 1000
    pace = {"step_interval_s": tick_s / per_tick, "tick_s": tick_s}
    assert ticks_up(ticks * per_tick, **pace) == ticks
    assert ticks_down(ticks * per_tick, **pace) == ticks
    assert whole_ticks(ticks * tick_s, tick_s=tick_s, what="window_s") == ticks


def test_the_corridor_of_a_study() -> None:
    corridor = corridor_from_steps(
        config(10, 20, 41, 3), step_interval_s=0.25, tick_s=1.0, window_s=4.0, horizon_s=38.0
    )
    # floor 2.5 s up to 3 ticks, ceiling 10.25 s down to 10 ticks
    assert corridor == Corridor(floor_ticks=3, ceiling_ticks=10, width_ticks=4, horizon_ticks=38)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"window_s": 2.5}, r"window_s=2.5 is no whole number of ticks of tick_s=1.0"),
        ({"horizon_s": 38.4}, r"horizon_s=38.4 is no whole number of ticks"),
        ({"step_interval_s": 0.0}, r"step_interval_s=0 leaves the islands unpaced"),
        ({"step_interval_s": -0.5}, r"step_interval_s=-0.5 is not above 0"),
        ({"tick_s": 0.0}, r"tick_s=0.0 is not above 0"),
        ({"tick_s": float("nan")}, r"tick_s=nan is not finite"),
    ],
)
def test_a_time_that_ticks_cannot_hold_is_refused_by_name(
    changed: dict[str, float], words: str
) -> None:
    times = {"step_interval_s": 0.25, "tick_s": 1.0, "window_s": 4.0, "horizon_s": 38.0}
    with pytest.raises(ValueError, match=words):
        corridor_from_steps(config(10, 20, 41, 3), **{**times, **changed})


def test_a_corridor_that_holds_no_tick_is_refused() -> None:
    with pytest.raises(ValueError, match=r"floor_steps=5 to ceiling_steps=7 .*widen"):
        corridor_from_steps(
            config(5, 6, 7, 3), step_interval_s=0.25, tick_s=1.0, window_s=1.0, horizon_s=38.0
        )
    with pytest.raises(ValueError, match="ceiling 0 ticks"):
        corridor_from_steps(
            config(0, 1, 3, 3), step_interval_s=0.25, tick_s=1.0, window_s=1.0, horizon_s=38.0
        )


def test_a_budget_that_the_horizon_cannot_hold_names_the_feasible_ones() -> None:
    with pytest.raises(ValueError, match=r"budget_merges=9 .*feasible budgets: 2 to 5"):
        corridor_from_steps(
            config(10, 20, 41, 9), step_interval_s=0.25, tick_s=1.0, window_s=4.0, horizon_s=38.0
        )


@pytest.mark.parametrize(
    ("steps", "gap"),
    [
        ((10, 20, 41), 5),
        ((10, 22, 41), 6),  # 5.5 ticks
        ((9, 9, 41), 3),  # 2.25 ticks, but the floor is 3
        ((10, 43, 43), 10),  # 10.75 ticks, but the ceiling is 10
    ],
)
def test_target_gap_is_the_nearest_tick_inside_the_corridor(
    steps: tuple[int, int, int], gap: int
) -> None:
    assert target_gap_ticks(config(*steps, 3), step_interval_s=0.25, tick_s=1.0) == gap
