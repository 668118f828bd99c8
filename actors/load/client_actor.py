"""Ray shell of the open-loop client: one asyncio loop, so that a run does not block a question."""

import ray

from actors.clock import ClockProbe, probe_clock
from actors.config import ClientConfig
from actors.load.client import LoadClient
from actors.load.request import Request, RequestRow
from actors.load.snapshot import LoadSnapshot
from actors.priority import take_instrument_priority


@ray.remote
class LoadActor:
    """The load of one study; a run for each arm."""

    def __init__(self, client: ClientConfig) -> None:
        self._warning = take_instrument_priority()
        self._client = LoadClient(client)

    async def clock_probe(self) -> ClockProbe:
        return probe_clock()

    async def warning(self) -> str | None:
        return self._warning

    async def prepare(self, requests: list[Request], urls: list[str], models: list[str]) -> int:
        return self._client.prepare(requests, urls=urls, models=models)

    async def warm_up(self, count: int) -> None:
        await self._client.warm_up(count)

    async def run(self, zero_monotonic_s: float) -> None:
        await self._client.run(zero_monotonic_s)

    async def snapshot(self) -> LoadSnapshot:
        return self._client.snapshot()

    async def drain_rows(self) -> list[RequestRow]:
        return self._client.drain_rows()

    async def abort(self, why: str) -> None:
        self._client.abort(why)
