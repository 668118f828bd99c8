"""Samples: unknown stays unknown, ages are on the run clock, slow answers are not awaited."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from actors.config import TelemetryConfig
from actors.coordinator.sampling import SampleBuilder
from actors.load.snapshot import SidecarSnapshot
from policies.observation import IslandProgress, SidecarLoad

CONFIG = TelemetryConfig(
    serving_full_requests=16,
    network_full_bytes_per_s=1e9,
    checkpoint_full_bytes_per_s=1e9,
    max_age_s=3.0,
)


@dataclass(frozen=True)
class Load:
    scheduled_so_far: int
    in_flight: int
    by_sidecar: tuple[SidecarSnapshot, ...] = ()


@dataclass(frozen=True)
class Telemetry:
    serving: float | None
    network: float | None
    checkpoint: float | None
    serving_at_monotonic_s: float | None
    network_at_monotonic_s: float | None
    checkpoint_at_monotonic_s: float | None


GOOD = Telemetry(0.5, 0.1, 0.0, 107.5, 107.5, 107.5)


def builder(offset_s: float = 0.0) -> SampleBuilder:
    return SampleBuilder(CONFIG, zero_s=100.0, offsets_s={"telemetry": offset_s})


def test_arrivals_are_counted_since_the_last_known_count() -> None:
    made = builder()
    arrivals = [
        made.build(t, now_s=8.0, load=load, telemetry=GOOD, islands=[]).arrivals
        for t, load in enumerate([Load(3, 1), None, Load(9, 2)])
    ]
    assert arrivals == [3, None, 6]


def test_each_sidecar_has_its_own_count_since_the_last_known_one() -> None:
    made = builder()

    def parts(*counts: tuple[int, int]) -> tuple[SidecarSnapshot, ...]:
        return tuple(
            SidecarSnapshot(sidecar=s, scheduled_so_far=n, in_flight=f)
            for s, (n, f) in enumerate(counts)
        )

    seen = [
        made.build(t, now_s=8.0, load=load, telemetry=GOOD, islands=[]).by_sidecar
        for t, load in enumerate(
            [Load(3, 1, parts((2, 1), (1, 0))), None, Load(9, 2, parts((3, 0), (6, 2)))]
        )
    ]
    assert seen[0] == (
        SidecarLoad(sidecar=0, arrivals=2, in_flight=1),
        SidecarLoad(sidecar=1, arrivals=1, in_flight=0),
    )
    assert seen[1] == ()
    assert [(s.arrivals, s.in_flight) for s in seen[2]] == [(1, 0), (5, 2)]


def test_age_is_taken_on_the_run_clock_across_hosts() -> None:
    far = replace(
        GOOD,
        serving_at_monotonic_s=1107.5,
        network_at_monotonic_s=1107.5,
        checkpoint_at_monotonic_s=1107.5,
    )
    for telemetry, offset_s in ((GOOD, 0.0), (far, 1000.0)):
        made = builder(offset_s).build(
            0, now_s=8.0, load=Load(0, 0), telemetry=telemetry, islands=[]
        )
        assert made.serving is not None
        assert made.serving.age_s == 0.5
        assert not made.blind


def test_an_old_or_missing_serving_reading_is_blind_never_zero() -> None:
    old = builder().build(0, now_s=11.0, load=Load(0, 0), telemetry=GOOD, islands=[])
    assert (old.serving, old.blind) == (None, True)
    none = builder().build(0, now_s=8.0, load=Load(0, 0), telemetry=None, islands=[])
    assert (none.serving, none.network, none.blind) == (None, None, True)
    no_load = builder().build(0, now_s=8.0, load=None, telemetry=GOOD, islands=[])
    assert (no_load.arrivals, no_load.in_flight, no_load.blind) == (None, None, True)


def test_serving_pressure_is_the_larger_of_gauge_and_client_in_flight() -> None:
    for in_flight, pressure in ((2, 0.5), (12, 0.75), (99, 1.0)):
        made = builder().build(0, now_s=8.0, load=Load(99, in_flight), telemetry=GOOD, islands=[])
        assert made.serving is not None
        assert made.serving.value == pressure


class Method:
    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers
        self.calls = 0

    def remote(self) -> "asyncio.Future[Any]":
        self.calls += 1
        return self._answers.pop(0)


class Actor:
    def __init__(self, **methods: Method) -> None:
        self.__dict__.update(methods)


def test_a_slow_island_is_left_out_and_asked_only_once() -> None:
    async def scenario() -> None:
        progress = IslandProgress(
            island=0, steps_since_merge=1, tokens_since_merge=2, loss_drop=None, staleness_s=0.0
        )
        loop = asyncio.get_running_loop()
        slow: asyncio.Future[Any] = loop.create_future()

        def done(value: Any) -> "asyncio.Future[Any]":
            future = loop.create_future()
            future.set_result(value)
            return future

        load = Actor(snapshot=Method([done(Load(1, 0)), done(Load(2, 0))]))
        telemetry = Actor(latest=Method([done(GOOD), done(GOOD)]))
        asked = Method([slow])
        made = builder()
        common: dict[str, Any] = {
            "load": load,
            "telemetry": telemetry,
            "islands": {0: Actor(progress=asked)},
            "now_s": lambda: 8.0,
            "timeout_s": 0.01,
        }
        first = await made.collect(0, **common)
        assert first.islands == ()
        slow.set_result(progress)
        second = await made.collect(1, **common)
        assert second.islands == (progress,)
        assert asked.calls == 1

    asyncio.run(scenario())
