"""The client against a real HTTP server on loopback: what each fault of the wire ends in."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from actors.config import ClientConfig
from actors.load.client import LoadClient
from actors.load.latency import latency
from actors.load.request import Outcome, Request, RequestRow

Handler = Callable[[web.Request, web.StreamResponse], Awaitable[None]]


@asynccontextmanager
async def serving(handle: Handler) -> AsyncIterator[str]:
    """A completions server; ``handle`` writes into the prepared stream."""

    async def completions(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await handle(request, response)
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def send(
    requests: list[Request], handle: Handler, **config: Any
) -> tuple[list[RequestRow], LoadClient]:
    client = LoadClient(ClientConfig(**config))
    async with serving(handle) as url:
        client.prepare(requests, urls=[url + "/"], models=["m"])
        await client.run(time.monotonic())
    return sorted(client.drain_rows(), key=lambda r: r.request_id), client


def test_a_good_stream_cut_anywhere_is_ok(make_request: Any, wire: Any) -> None:
    sent = wire.chunk("ä") + wire.chunk() + wire.chunk() + wire.usage(3) + wire.done

    async def handle(request: web.Request, response: web.StreamResponse) -> None:
        assert (await request.json())["model"] == "m"
        await response.prepare(request)
        for i in range(0, len(sent), 7):
            await response.write(sent[i : i + 7])

    rows, client = asyncio.run(send([make_request(i, at_s=0.02 * i) for i in range(5)], handle))
    assert [r.outcome for r in rows] == [Outcome.OK] * 5
    assert all(r.completion_tokens == 3 and len(r.itl_s) == 2 for r in rows)
    for row in rows:
        got = latency(row)
        assert got.lateness_s is not None
        assert got.ttft_s is not None
        assert got.e2e_s is not None
        assert 0.0 <= got.lateness_s <= got.ttft_s <= got.e2e_s
    assert client.snapshot().failed == 0


def test_no_cap_on_connections(make_request: Any, wire: Any) -> None:
    """The server answers nobody before all 150 requests are there: above aiohttp's own 100."""

    async def scenario() -> list[RequestRow]:
        everybody = asyncio.Barrier(150)

        async def handle(request: web.Request, response: web.StreamResponse) -> None:
            await everybody.wait()
            await response.prepare(request)
            await response.write(wire.chunk() + wire.usage(3) + wire.done)

        rows, _ = await send([make_request(i) for i in range(150)], handle)
        return rows

    assert {r.outcome for r in asyncio.run(scenario())} == {Outcome.OK}


def test_an_error_status_is_told_with_its_text(make_request: Any) -> None:
    async def handle(request: web.Request, response: web.StreamResponse) -> None:
        raise web.HTTPBadRequest(text=json.dumps({"error": "prompt too long"}))

    rows, _ = asyncio.run(send([make_request()], handle))
    assert rows[0].outcome is Outcome.HTTP_ERROR
    assert "status 400" in str(rows[0].error)
    assert "prompt too long" in str(rows[0].error)


def test_a_connection_cut_inside_the_stream_is_a_bad_stream(make_request: Any, wire: Any) -> None:
    async def handle(request: web.Request, response: web.StreamResponse) -> None:
        await response.prepare(request)
        await response.write(wire.chunk())
        assert request.transport is not None
        request.transport.close()

    rows, _ = asyncio.run(send([make_request()], handle))
    assert rows[0].outcome is Outcome.BAD_STREAM
    assert rows[0].first_token_at_s is not None


def test_a_connection_cut_before_the_answer_is_a_connection_error(make_request: Any) -> None:
    async def handle(request: web.Request, response: web.StreamResponse) -> None:
        assert request.transport is not None
        request.transport.abort()

    rows, _ = asyncio.run(send([make_request()], handle))
    assert rows[0].outcome is Outcome.CONNECTION_ERROR
    assert rows[0].sent_at_s is not None


def test_a_stream_that_ends_without_done_is_a_bad_stream(make_request: Any, wire: Any) -> None:
    async def handle(request: web.Request, response: web.StreamResponse) -> None:
        await response.prepare(request)
        await response.write(wire.chunk() * 3 + wire.usage(3))

    rows, _ = asyncio.run(send([make_request()], handle))
    assert rows[0].outcome is Outcome.BAD_STREAM
    assert "ended early" in str(rows[0].error)


def test_a_silent_server_times_out(make_request: Any) -> None:
    async def scenario() -> list[RequestRow]:
        async def handle(request: web.Request, response: web.StreamResponse) -> None:
            await asyncio.Event().wait()

        rows, _ = await send([make_request()], handle, request_timeout_s=0.1)
        return rows

    (row,) = asyncio.run(scenario())
    assert row.outcome is Outcome.TIMEOUT
    assert row.sent_at_s is not None
    assert row.done_at_s is not None
    assert row.done_at_s - row.sent_at_s >= 0.1


def test_nobody_listening_is_a_connection_error_for_each_request(make_request: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        client = LoadClient(ClientConfig())
        client.prepare([make_request(i) for i in range(20)], urls=[url], models=["m"])
        asyncio.run(client.run(time.monotonic()))
    rows = client.drain_rows()
    assert len(rows) == 20
    assert {r.outcome for r in rows} == {Outcome.CONNECTION_ERROR}
    assert url in str(rows[0].error)


def test_sends_are_punctual(make_request: Any, wire: Any) -> None:
    async def handle(request: web.Request, response: web.StreamResponse) -> None:
        await response.prepare(request)
        await response.write(wire.chunk() + wire.usage(3) + wire.done)

    requests = [make_request(i, at_s=0.1 + 0.01 * i) for i in range(30)]
    rows, _ = asyncio.run(send(requests, handle))
    lateness = sorted(r.sent_at_s - r.scheduled_at_s for r in rows if r.sent_at_s is not None)
    assert lateness[0] >= 0.0  # never early
    assert lateness[len(lateness) // 2] < 0.02  # the median, so that a busy machine passes


def test_abort_in_the_middle_of_a_stream_frees_the_connection(make_request: Any, wire: Any) -> None:
    async def scenario() -> list[RequestRow]:
        streaming, gone = asyncio.Event(), asyncio.Event()

        async def handle(request: web.Request, response: web.StreamResponse) -> None:
            await response.prepare(request)
            await response.write(wire.chunk())
            streaming.set()
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()

        client = LoadClient(ClientConfig())
        async with serving(handle) as url:
            requests = [make_request(0), make_request(1, at_s=3600.0)]
            client.prepare(requests, urls=[url], models=["m"])
            run = asyncio.create_task(client.run(time.monotonic()))
            await streaming.wait()
            client.abort("interrupted")
            await run
        await gone.wait()
        return sorted(client.drain_rows(), key=lambda r: r.request_id)

    rows = asyncio.run(scenario())
    assert [r.outcome for r in rows] == [Outcome.CLIENT_LOST, Outcome.NOT_SENT]
    assert {r.error for r in rows} == {"interrupted"}
