"""The open-loop client in virtual time: exact latencies, and one row for each request."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from actors.config import ClientConfig
from actors.load.client import LoadClient, LoadFailed
from actors.load.latency import latency
from actors.load.request import Outcome, Request, RequestRow
from actors.load.transport import RequestFailed

Chunks = AsyncGenerator[bytes]


@pytest.fixture
def start(loop: Any, transport: Any) -> Callable[..., LoadClient]:
    """A client on the virtual loop, prepared for one fake server."""

    def make(
        serve: Callable[[dict[str, Any]], Chunks], requests: list[Request], **config: Any
    ) -> LoadClient:
        client = LoadClient(ClientConfig(**config), clock=loop, transport=lambda: transport(serve))
        client.prepare(requests, urls=["http://fake"], models=["m"])
        return client

    return make


def by_id(client: LoadClient) -> list[RequestRow]:
    return sorted(client.drain_rows(), key=lambda r: r.request_id)


def test_known_chunk_times_give_ttft_tpot_itl_to_a_millisecond(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        for wait_s in (0.100, 2.000, 0.050):  # a 2 s stall; the second chunk bears two tokens
            await asyncio.sleep(wait_s)
            yield wire.chunk()
        yield wire.usage(4) + wire.done

    client = start(serve, [make_request(at_s=1.0, output_tokens=4)])
    run_virtual(client.run(0.0))
    (row,) = client.drain_rows()
    got = latency(row)
    assert row.outcome is Outcome.OK
    assert got.ttft_s == pytest.approx(0.100, abs=1e-3)
    assert got.e2e_s == pytest.approx(2.150, abs=1e-3)
    assert got.tpot_s == pytest.approx(2.050 / 3, abs=1e-3)
    assert row.itl_s == pytest.approx((2.000, 0.050), abs=1e-3)


def test_a_server_at_four_times_its_capacity_shows_growing_latency(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    """10 requests/s served one after another, 40/s asked: no coordinated omission."""
    one_at_a_time = asyncio.Lock()

    async def serve(body: dict[str, Any]) -> Chunks:
        async with one_at_a_time:
            await asyncio.sleep(0.1)
        yield wire.chunk() + wire.usage(1) + wire.done

    requests = [make_request(i, at_s=i * 0.025, output_tokens=1) for i in range(200)]
    client = start(serve, requests, request_timeout_s=60.0)
    run_virtual(client.run(0.0))
    rows = by_id(client)
    assert all(r.sent_at_s == pytest.approx(r.scheduled_at_s, abs=1e-6) for r in rows)
    for i, row in enumerate(rows):
        assert latency(row).e2e_s == pytest.approx((i + 1) * 0.1 - i * 0.025, abs=1e-6)


def test_errors_and_timeouts_keep_their_rows(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    """20 % errors and 10 % time-outs: every scheduled request has its row and outcome."""

    async def serve(body: dict[str, Any]) -> Chunks:
        kind = body["max_tokens"] % 10
        if kind in (0, 1):
            raise RequestFailed("status 500", outcome=Outcome.HTTP_ERROR)
        yield wire.chunk()
        if kind == 2:
            await asyncio.sleep(1000)
        yield wire.usage(body["max_tokens"]) + wire.done

    requests = [make_request(i, at_s=i * 0.01, output_tokens=10 + i) for i in range(100)]
    client = start(serve, requests, request_timeout_s=5.0)
    run_virtual(client.run(0.0))
    rows = by_id(client)
    assert [r.request_id for r in rows] == list(range(100))
    assert Counter(r.outcome for r in rows) == {
        Outcome.OK: 70,
        Outcome.HTTP_ERROR: 20,
        Outcome.TIMEOUT: 10,
    }
    late = next(r for r in rows if r.outcome is Outcome.TIMEOUT)
    assert late.sent_at_s is not None
    assert late.done_at_s == pytest.approx(late.sent_at_s + 5.0, abs=1e-3)
    assert late.first_token_at_s is not None
    assert "request_timeout_s=5" in str(late.error)


def test_an_unforeseen_exception_ends_in_a_row(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        yield wire.chunk()
        raise KeyError("surprise")

    client = start(serve, [make_request(0), make_request(1)])
    run_virtual(client.run(0.0))
    rows = by_id(client)
    assert [r.outcome for r in rows] == [Outcome.CLIENT_LOST] * 2
    assert "KeyError: 'surprise'" in str(rows[0].error)


@pytest.mark.parametrize("told", [2, 4, None])
def test_a_wrong_token_count_is_a_bad_stream(
    start: Any, run_virtual: Any, make_request: Any, wire: Any, told: int | None
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        yield wire.chunk() + (b"" if told is None else wire.usage(told)) + wire.done

    client = start(serve, [make_request(output_tokens=3)])
    run_virtual(client.run(0.0))
    (row,) = client.drain_rows()
    assert row.outcome is Outcome.BAD_STREAM
    assert row.completion_tokens == told


def test_a_snapshot_tells_the_sidecars_apart(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        yield wire.chunk()
        await asyncio.sleep(0.5 if body["max_tokens"] < 12 else 1000)
        yield wire.usage(body["max_tokens"]) + wire.done

    requests = [
        make_request(i, at_s=float(i), output_tokens=10 + i, sidecar=i % 2) for i in range(6)
    ]
    found = []

    async def scenario(client: LoadClient) -> None:
        client.prepare(requests, urls=["http://a", "http://b"], models=["m", "m"])
        found.append(client.snapshot())
        run = asyncio.create_task(client.run(0.0))
        await asyncio.sleep(4.5)
        found.append(client.snapshot())
        client.abort("enough seen")
        await run
        found.append(client.snapshot())

    run_virtual(scenario(start(serve, requests[:1], request_timeout_s=5000.0)))
    seen = [[(s.sidecar, s.scheduled_so_far, s.in_flight) for s in f.by_sidecar] for f in found]
    assert seen == [[(0, 0, 0), (1, 0, 0)], [(0, 3, 2), (1, 2, 1)], [(0, 3, 0), (1, 2, 0)]]


def test_abort_midway_keeps_a_row_for_each_request(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        yield wire.chunk()
        await asyncio.sleep(0.5 if body["max_tokens"] < 12 else 1000)
        yield wire.usage(body["max_tokens"]) + wire.done

    requests = [make_request(i, at_s=float(i), output_tokens=10 + i) for i in range(10)]

    async def scenario(client: LoadClient) -> None:
        run = asyncio.create_task(client.run(0.0))
        await asyncio.sleep(4.5)
        seen = client.snapshot()
        assert (seen.scheduled_so_far, seen.sent, seen.in_flight) == (5, 5, 3)
        assert (seen.finished, seen.failed) == (2, 0)
        (only,) = seen.by_sidecar
        assert (only.sidecar, only.scheduled_so_far, only.in_flight) == (0, 5, 3)
        client.abort("the server died")
        await run

    client = start(serve, requests, request_timeout_s=5000.0, drain_timeout_s=5000.0)
    run_virtual(scenario(client))
    rows = by_id(client)
    assert [r.outcome for r in rows] == (
        [Outcome.OK] * 2 + [Outcome.CLIENT_LOST] * 3 + [Outcome.NOT_SENT] * 5
    )
    assert {r.error for r in rows[2:]} == {"the server died"}
    assert rows[3].first_token_at_s == pytest.approx(3.0)  # what was seen is kept
    assert rows[3].done_at_s == pytest.approx(4.5)
    assert rows[7].sent_at_s is None


def test_abort_before_the_run_sends_nothing(
    start: Any, run_virtual: Any, make_request: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        raise AssertionError("nothing may be sent")
        yield b""

    client = start(serve, [make_request(i) for i in range(3)])
    client.abort("interrupted")
    run_virtual(client.run(0.0))
    assert [r.outcome for r in client.drain_rows()] == [Outcome.NOT_SENT] * 3
    assert client.snapshot().sent == 0


def test_abort_from_another_thread_ends_the_run(
    start: Any, loop: Any, run_virtual: Any, make_request: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        await asyncio.to_thread(client.abort, "told from a thread")
        await asyncio.Event().wait()
        yield b""

    client = start(serve, [make_request(0), make_request(1, at_s=1e6)], request_timeout_s=1e9)
    asyncio.run(_in_real_time(client))
    assert {r.error for r in client.drain_rows()} == {"told from a thread"}


async def _in_real_time(client: LoadClient) -> None:
    await asyncio.wait_for(client.run(0.0), timeout=30)


def test_a_cancelled_run_still_writes_every_row(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        yield wire.chunk()
        await asyncio.sleep(1000)

    async def scenario(client: LoadClient) -> None:
        run = asyncio.create_task(client.run(0.0))
        await asyncio.sleep(1.5)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    client = start(serve, [make_request(i, at_s=float(i)) for i in range(4)], request_timeout_s=1e4)
    run_virtual(scenario(client))
    rows = by_id(client)
    assert [r.outcome for r in rows] == [Outcome.CLIENT_LOST] * 2 + [Outcome.NOT_SENT] * 2


def test_what_does_not_end_after_the_last_send_times_out(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        yield wire.chunk()
        await asyncio.sleep(1000)

    client = start(serve, [make_request()], request_timeout_s=500.0, drain_timeout_s=20.0)
    run_virtual(client.run(0.0))
    (row,) = client.drain_rows()
    assert row.outcome is Outcome.TIMEOUT
    assert row.done_at_s == pytest.approx(20.0)
    assert "drain_timeout_s=20" in str(row.error)


def test_a_client_that_starts_late_sends_everything_and_records_the_lateness(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        yield wire.chunk() + wire.usage(3) + wire.done

    async def scenario(client: LoadClient) -> None:
        await asyncio.sleep(3.0)  # zero was at 0
        await client.run(0.0)

    client = start(serve, [make_request(i, at_s=float(i)) for i in range(6)])
    run_virtual(scenario(client))
    lateness = [latency(r).lateness_s for r in by_id(client)]
    assert lateness == pytest.approx([3.0, 2.0, 1.0, 0.0, 0.0, 0.0], abs=1e-6)


def test_the_run_clock_starts_at_the_given_zero(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        yield wire.chunk() + wire.usage(3) + wire.done

    client = start(serve, [make_request(at_s=2.0)])
    run_virtual(client.run(100.0))
    (row,) = client.drain_rows()
    assert row.sent_at_s == pytest.approx(2.0)
    assert client.snapshot().at_monotonic_s == pytest.approx(102.0)


def test_rows_are_drained_once(start: Any, run_virtual: Any, make_request: Any, wire: Any) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        yield wire.chunk() + wire.usage(3) + wire.done

    client = start(serve, [make_request(i, at_s=float(i)) for i in range(4)])

    async def scenario() -> list[list[int]]:
        run = asyncio.create_task(client.run(0.0))
        await asyncio.sleep(1.5)
        first = [r.request_id for r in client.drain_rows()]
        await run
        return [first, [r.request_id for r in client.drain_rows()], []]

    assert run_virtual(scenario()) == [[0, 1], [2, 3], []]


def test_the_next_arm_starts_clean(
    start: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        yield wire.chunk() + wire.usage(3) + wire.done

    client = start(serve, [make_request()])
    run_virtual(client.run(0.0))
    with pytest.raises(LoadFailed, match="prepare before each run"):
        run_virtual(client.run(0.0))
    assert client.prepare([make_request(), make_request(1)], urls=["http://f"], models=["m"]) == 2
    seen = client.snapshot()
    assert (seen.scheduled_so_far, seen.sent, seen.finished) == (0, 0, 0)
    run_virtual(client.run(10.0))
    assert [r.outcome for r in client.drain_rows()] == [Outcome.OK] * 2


def test_warm_up_sends_other_prompts_to_every_sidecar_and_leaves_no_row(
    loop: Any, transport: Any, run_virtual: Any, make_request: Any, wire: Any
) -> None:
    bodies: list[dict[str, Any]] = []

    async def serve(body: dict[str, Any]) -> Chunks:
        bodies.append(body)
        yield wire.chunk() + wire.usage(body["max_tokens"]) + wire.done

    client = LoadClient(ClientConfig(), clock=loop, transport=lambda: transport(serve))
    client.prepare([make_request()], urls=["http://a", "http://b"], models=["ma", "mb"])
    run_virtual(client.warm_up(3))
    assert Counter(b["model"] for b in bodies) == {"ma": 3, "mb": 3}
    run_virtual(client.run(0.0))
    measured = bodies[-1]
    assert all(b["prompt"] != measured["prompt"] for b in bodies[:-1])
    assert len(client.drain_rows()) == 1


def test_a_failed_warm_up_says_why(start: Any, run_virtual: Any, make_request: Any) -> None:
    async def serve(body: dict[str, Any]) -> Chunks:
        raise RequestFailed("status 503: not ready", outcome=Outcome.HTTP_ERROR)
        yield b""

    client = start(serve, [make_request()])
    with pytest.raises(LoadFailed, match=r"2 of 2 warm-up requests failed.*not ready"):
        run_virtual(client.warm_up(2))


@pytest.mark.parametrize(
    ("urls", "models", "message"),
    [
        (["http://a"], [], "1 urls and 0 models"),
        (["http://a"], ["m"], "sidecar 1"),
        (["http://a", "http://b"], ["m", "m"], "there twice"),
    ],
)
def test_prepare_refuses_what_cannot_be_sent(
    make_request: Any, urls: list[str], models: list[str], message: str
) -> None:
    requests = [make_request(0), make_request(7, sidecar=1), make_request(7)]
    with pytest.raises(ValueError, match=message):
        LoadClient(ClientConfig()).prepare(requests, urls=urls, models=models)
