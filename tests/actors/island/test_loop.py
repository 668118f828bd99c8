"""Pacing without catch-up bursts, pausing at a step boundary, and errors that are not lost."""

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.clock import MonotonicClock, VirtualClock
from actors.island.loop import LoopStuck, PacedLoop, Pacer


def run_steps(durations_s: list[float], *, interval_s: float) -> tuple[list[float], int]:
    """Start times of steps of these durations on a virtual clock, and the late count."""
    clock = VirtualClock()
    pacer = Pacer(interval_s=interval_s, first_s=0.0)
    starts_s = []
    for duration_s in durations_s:
        clock.advance(max(0.0, pacer.due_s - clock.now_s()))
        pacer.started(clock.now_s())
        starts_s.append(clock.now_s())
        clock.advance(duration_s)
    return starts_s, pacer.late_steps


def test_quick_steps_start_on_the_grid() -> None:
    starts_s, late = run_steps([0.1] * 5, interval_s=0.25)
    assert starts_s == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert late == 0


def test_a_stall_is_counted_and_not_caught_up() -> None:
    starts_s, late = run_steps([0.1, 1.1, 0.1, 0.1], interval_s=0.25)
    assert starts_s == pytest.approx([0.0, 0.25, 1.35, 1.6])
    assert late == 1


def test_unpaced_steps_follow_each_other_and_are_never_late() -> None:
    starts_s, late = run_steps([0.3, 0.1, 0.2], interval_s=0.0)
    assert starts_s == pytest.approx([0.0, 0.3, 0.4])
    assert late == 0


@given(durations_s=st.lists(st.floats(0, 3), min_size=2, max_size=40))
def test_starts_are_never_closer_than_nine_tenths_of_the_interval(
    durations_s: list[float],
) -> None:
    starts_s, late = run_steps(durations_s, interval_s=0.5)
    gaps_s = [b - a for a, b in itertools.pairwise(starts_s)]
    assert min(gaps_s) >= 0.45 - 1e-9
    assert late <= sum(duration_s > 0.5 for duration_s in durations_s)


class Steps:
    """Steps that wait for permission, so that a test decides when each ends."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.done = 0

    def __call__(self) -> None:
        self.started.release()
        assert self.may_end.acquire(timeout=10)
        self.done += 1


def start_loop(step: "Steps") -> PacedLoop:
    clock = MonotonicClock()
    pacer = Pacer(interval_s=0.0, first_s=clock.now_s())
    loop = PacedLoop(step, pacer=pacer, clock=clock, name="island 0")
    loop.start()
    return loop


def test_pause_waits_for_the_step_to_end_and_none_starts_before_resume() -> None:
    steps = Steps()
    loop = start_loop(steps)
    assert steps.started.acquire(timeout=10)
    paused = threading.Event()

    def pause() -> None:
        loop.pause(timeout_s=10)
        paused.set()

    waiter = threading.Thread(target=pause)
    waiter.start()
    assert not paused.is_set()  # the step has not been allowed to end
    steps.may_end.release()
    assert paused.wait(10)
    assert steps.done == 1
    assert not steps.started.acquire(blocking=False)
    loop.resume(at_s=MonotonicClock().now_s())
    assert steps.started.acquire(timeout=10)
    steps.may_end.release(10)
    loop.stop(timeout_s=10)
    waiter.join(10)


def test_a_step_that_does_not_end_makes_pause_and_stop_say_so() -> None:
    steps = Steps()
    loop = start_loop(steps)
    assert steps.started.acquire(timeout=10)
    with pytest.raises(LoopStuck, match="island 0"):
        loop.pause(timeout_s=0.01)
    with pytest.raises(LoopStuck, match="island 0"):
        loop.stop(timeout_s=0.01)
    steps.may_end.release(10)
    loop.stop(timeout_s=10)


def test_an_error_in_the_thread_is_raised_to_whoever_asks() -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise ZeroDivisionError("in step 1")

    clock = MonotonicClock()
    loop = PacedLoop(
        fail, pacer=Pacer(interval_s=0.0, first_s=clock.now_s()), clock=clock, name="island 0"
    )
    loop.start()
    assert failed.wait(10)
    with pytest.raises(ZeroDivisionError, match="in step 1"):
        loop.pause(timeout_s=10)
    loop.stop(timeout_s=10)
    with pytest.raises(ZeroDivisionError, match="in step 1"):
        loop.check()


def test_a_due_time_in_the_future_is_waited_for_and_stop_interrupts_the_wait() -> None:
    clock = MonotonicClock()
    steps = Steps()
    loop = PacedLoop(
        steps,
        pacer=Pacer(interval_s=1.0, first_s=clock.now_s() + 1000),
        clock=clock,
        name="island 0",
    )
    loop.start()
    loop.stop(timeout_s=10)
    assert steps.done == 0
    assert loop.late_steps == 0


def test_wait_for_returns_after_the_step_that_reaches_it_also_right_after_a_resume() -> None:
    steps, clock = Steps(), MonotonicClock()
    loop = PacedLoop(
        steps, pacer=Pacer(interval_s=0.0, first_s=clock.now_s()), clock=clock, name="island 0"
    )
    loop.pause(timeout_s=10)  # it has not begun
    loop.start()
    loop.pause(timeout_s=10)  # it stands now
    steps.may_end.release(2)
    loop.resume(at_s=clock.now_s())
    # At once: the loop is still waking up, and must not be taken for one that stands.
    loop.wait_for(lambda: steps.done >= 2, timeout_s=10)
    assert steps.done == 2
    with pytest.raises(LoopStuck, match=r"not as many inner steps within 0\.01 s"):
        loop.wait_for(lambda: steps.done > 2, timeout_s=0.01)
    steps.may_end.release(1000)
    loop.stop(timeout_s=10)


def test_wait_for_raises_what_ended_the_steps() -> None:
    def fail() -> None:
        raise ZeroDivisionError("in a step")

    clock = MonotonicClock()
    loop = PacedLoop(
        fail, pacer=Pacer(interval_s=0.0, first_s=clock.now_s()), clock=clock, name="island 0"
    )
    loop.start()
    with pytest.raises(ZeroDivisionError, match="in a step"):
        loop.wait_for(lambda: False, timeout_s=10)
    loop.stop(timeout_s=10)
