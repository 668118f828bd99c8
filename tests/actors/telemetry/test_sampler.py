"""The sampler in virtual time: ages, blindness, rows, and cadence."""

import pytest

from actors.clock import VirtualClock
from actors.config import TelemetryConfig
from actors.serving.metrics import ServerGauges
from actors.telemetry.probes import ProbeFailed
from actors.telemetry.sampler import Sampler
from actors.telemetry.snapshot import nothing_known

CONFIG = TelemetryConfig(
    interval_s=0.5,
    max_age_s=3.0,
    serving_full_requests=10,
    network_full_bytes_per_s=1000.0,
    checkpoint_full_bytes_per_s=100.0,
)


class Gauges:
    """A serving probe under the test's control."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.now: tuple[ServerGauges, ...] = (ServerGauges(running=2, waiting=1, kv_usage=0.1),)
        self.error: str | None = None
        self.takes_s = 0.0

    def read(self) -> tuple[ServerGauges, ...]:
        self._clock.advance(self.takes_s)
        if self.error is not None:
            raise ProbeFailed(self.error)
        return self.now


class Rate:
    def __init__(self, value: float | None) -> None:
        self.value = value

    def read(self) -> float | None:
        return self.value


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock(now_s=100.0)
        self.serving = Gauges(self.clock)
        self.network = Rate(500.0)
        self.checkpoint = Rate(None)
        self.sampler = Sampler(
            CONFIG,
            serving=self.serving,
            network=self.network,
            checkpoint=self.checkpoint,
            clock=self.clock,
            zero_monotonic_s=90.0,
        )


@pytest.fixture
def world() -> World:
    return World()


def test_before_the_first_round_nothing_is_known(world: World) -> None:
    assert world.sampler.latest() == nothing_known(100.0)


def test_a_round_gives_pressures_with_their_moment(world: World) -> None:
    world.sampler.sample()
    world.clock.advance(1.0)
    got = world.sampler.latest()
    assert (got.serving, got.network, got.checkpoint) == (0.3, 0.5, None)
    assert (got.running, got.waiting) == (2, 1)
    assert got.serving_at_monotonic_s == 100.0
    assert got.at_monotonic_s == 101.0
    assert got.checkpoint_at_monotonic_s is None
    assert got.error is None


def test_a_failing_probe_keeps_the_last_reading_until_it_is_too_old(world: World) -> None:
    world.sampler.sample()
    world.serving.error = "serving: metric vllm:num_requests_running is not in /metrics"
    for _ in range(6):
        world.clock.advance(0.5)
        world.sampler.sample()
    got = world.sampler.latest()
    assert got.serving == 0.3  # 3.0 s old: the limit
    assert got.serving_at_monotonic_s == 100.0
    world.clock.advance(0.5)
    world.sampler.sample()
    got = world.sampler.latest()
    assert (got.serving, got.serving_at_monotonic_s, got.running) == (None, None, None)
    assert "vllm:num_requests_running" in str(got.error)
    assert got.network == 0.5
    world.serving.error = None
    world.sampler.sample()
    assert world.sampler.latest().serving == 0.3
    assert world.sampler.latest().error is None


def test_readings_grow_old_also_while_nobody_samples(world: World) -> None:
    world.sampler.sample()
    world.clock.advance(3.1)
    got = world.sampler.latest()
    assert (got.serving, got.network) == (None, None)


def test_the_age_of_a_slow_poll_counts_from_its_start(world: World) -> None:
    world.serving.takes_s = 0.8
    world.sampler.sample()
    assert world.sampler.latest().serving_at_monotonic_s == 100.0


def test_rows_say_what_each_round_read(world: World) -> None:
    world.sampler.sample()
    world.serving.error = "serving: refused"
    world.network.value = None
    world.clock.advance(4.0)
    world.sampler.sample()
    first, second = world.sampler.drain_rows()
    assert first == {
        "at_s": 10.0,
        "running": 2,
        "waiting": 1,
        "kv_usage": 0.1,
        "serving": 0.3,
        "network": 0.5,
        "checkpoint": None,
        "network_bytes_per_s": 500.0,
        "checkpoint_bytes_per_s": None,
        "blind": False,
    }
    assert second["at_s"] == 14.0
    assert second["blind"] is True
    assert {second[k] for k in ("running", "waiting", "kv_usage", "serving", "network")} == {None}
    assert world.sampler.drain_rows() == []


def test_several_sidecars_add_up_and_the_fullest_presses(world: World) -> None:
    world.serving.now = (
        ServerGauges(running=1, waiting=0, kv_usage=0.1),
        ServerGauges(running=4, waiting=3, kv_usage=0.6),
    )
    world.sampler.sample()
    got = world.sampler.latest()
    assert (got.running, got.waiting, got.serving) == (5, 3, 0.7)


class TurningClock:
    """A stop event that lets time pass and ends after some rounds."""

    def __init__(self, world: World, *, rounds: int) -> None:
        self._world = world
        self._rounds = rounds
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(round(timeout, 9))
        self._world.clock.advance(timeout)
        return len(self.waits) == self._rounds


def test_rounds_keep_their_interval_whatever_a_poll_takes(world: World) -> None:
    world.serving.takes_s = 0.2
    world.sampler.sample_until(TurningClock(world, rounds=4))
    at_s = [row["at_s"] for row in world.sampler.drain_rows()]
    assert at_s == pytest.approx([10.0, 10.5, 11.0, 11.5])


def test_missed_rounds_are_not_made_up_for(world: World) -> None:
    world.serving.takes_s = 1.0
    stop = TurningClock(world, rounds=3)
    world.sampler.sample_until(stop)
    assert stop.waits == [0.0, 0.0, 0.0]
    at_s = [row["at_s"] for row in world.sampler.drain_rows()]
    assert at_s == pytest.approx([10.0, 11.0, 12.0])


def test_a_sampler_that_breaks_says_so(world: World) -> None:
    def broken() -> float | None:
        raise ZeroDivisionError("surprise")

    world.network.read = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        world.sampler.sample_until(TurningClock(world, rounds=3))
    assert "ZeroDivisionError: surprise" in str(world.sampler.latest().error)
