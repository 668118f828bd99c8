"""One tick's Sample from what load, telemetry and islands answered; unknown stays None.

The answers come as awaitables (Ray object references live, plain coroutines in tests).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from actors.config import TelemetryConfig
from policies.observation import IslandProgress, Reading, Sample, SidecarLoad


class SampleBuilder:
    """Keeps the last arrival count, so that each sample carries the arrivals since the last."""

    def __init__(
        self, telemetry: TelemetryConfig, *, zero_s: float, offsets_s: dict[str, float]
    ) -> None:
        self._config = telemetry
        self._zero_s = zero_s
        self._telemetry_offset_s = offsets_s.get("telemetry", 0.0)
        self._arrived = 0
        self._arrived_by: dict[int, int] = {}
        self._late: dict[str, asyncio.Future[Any]] = {}

    async def collect(
        self,
        tick: int,
        *,
        load: Any,
        telemetry: Any,
        islands: Mapping[int, Any],
        now_s: Callable[[], float],
        timeout_s: float,
    ) -> Sample:
        """Ask everybody at once; who does not answer within ``timeout_s`` is unknown this tick.

        ``islands``: by number, those that take part.
        """
        asked = {"load": load.snapshot, "telemetry": telemetry.latest} | {
            f"island-{i}": island.progress for i, island in islands.items()
        }
        answers = await self._ask(asked, timeout_s)
        return self.build(
            tick,
            now_s=now_s(),
            load=answers.get("load"),
            telemetry=answers.get("telemetry"),
            islands=[answers[k] for k in asked if k.startswith("island-") and k in answers],
        )

    async def _ask(self, asked: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """At most one call under way to each: a slow answer is taken at a later tick."""
        calls = {
            name: self._late.pop(name)
            if name in self._late
            else asyncio.ensure_future(_await(method.remote()))
            for name, method in asked.items()
        }
        await asyncio.wait(calls.values(), timeout=timeout_s)
        answers = {}
        for name, call in calls.items():
            if not call.done():
                self._late[name] = call
            elif call.exception() is None:
                answers[name] = call.result()
        return answers

    def build(
        self, tick: int, *, now_s: float, load: Any, telemetry: Any, islands: list[IslandProgress]
    ) -> Sample:
        """The sample; blind when serving pressure is missing or older than its limit."""
        arrivals = None
        if load is not None:
            arrivals = load.scheduled_so_far - self._arrived
            self._arrived = load.scheduled_so_far
        serving, network, checkpoint = (
            self._reading(telemetry, name, now_s) for name in ("serving", "network", "checkpoint")
        )
        if serving is not None and load is not None:
            # The client's own count is fresher than a gauge of a starved server.
            seen = min(1.0, load.in_flight / self._config.serving_full_requests)
            serving = Reading(value=max(serving.value, seen), age_s=serving.age_s)
        return Sample(
            tick=tick,
            now_s=now_s,
            arrivals=arrivals,
            in_flight=None if load is None else load.in_flight,
            serving=serving,
            network=network,
            checkpoint=checkpoint,
            islands=tuple(islands),
            blind=load is None or serving is None,
            by_sidecar=() if load is None else self._by_sidecar(load),
        )

    def _by_sidecar(self, load: Any) -> tuple[SidecarLoad, ...]:
        loads = tuple(
            SidecarLoad(
                sidecar=s.sidecar,
                arrivals=s.scheduled_so_far - self._arrived_by.get(s.sidecar, 0),
                in_flight=s.in_flight,
            )
            for s in load.by_sidecar
        )
        self._arrived_by = {s.sidecar: s.scheduled_so_far for s in load.by_sidecar}
        return loads

    def _reading(self, telemetry: Any, name: str, now_s: float) -> Reading | None:
        if telemetry is None:
            return None
        value = getattr(telemetry, name)
        at_s = getattr(telemetry, f"{name}_at_monotonic_s")
        if value is None or at_s is None:
            return None
        age_s = max(0.0, now_s - (at_s - self._telemetry_offset_s - self._zero_s))
        return Reading(value=value, age_s=age_s) if age_s <= self._config.max_age_s else None


async def _await(call: Awaitable[Any]) -> Any:
    return await call
