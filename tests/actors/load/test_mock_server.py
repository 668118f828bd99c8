"""The client and the mock engine speak one protocol: what one asks the other answers."""

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web

from actors.config import ClientConfig, MockConfig
from actors.load.client import LoadClient, LoadFailed
from actors.load.latency import latency
from actors.load.request import Outcome
from actors.serving.mock_server import MockServer


async def against_mock(client: LoadClient, requests: list[Any], *, model: str = "mock") -> None:
    runner = web.AppRunner(MockServer(MockConfig(kind="mock")).app(), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        client.prepare(requests, urls=[url], models=[model])
        await client.warm_up(2)
        await client.run(time.monotonic())
    finally:
        await runner.cleanup()


def test_requests_end_ok_with_the_tokens_asked_for(make_request: Any) -> None:
    client = LoadClient(ClientConfig())
    requests = [make_request(i, at_s=0.01 * i, output_tokens=1 + i) for i in range(10)]
    asyncio.run(against_mock(client, requests))
    rows = sorted(client.drain_rows(), key=lambda r: r.request_id)
    assert [(r.outcome, r.completion_tokens) for r in rows] == [
        (Outcome.OK, 1 + i) for i in range(10)
    ]
    assert [len(r.itl_s) for r in rows] == list(range(10))
    assert latency(rows[0]).tpot_s is None
    tpot_s = latency(rows[9]).tpot_s
    assert tpot_s is not None
    assert tpot_s >= 0.004 * 0.5  # the mock's own step


def test_a_model_that_the_server_has_not_stops_the_warm_up(make_request: Any) -> None:
    with pytest.raises(LoadFailed, match="status 404"):
        asyncio.run(against_mock(LoadClient(ClientConfig()), [make_request()], model="other"))
