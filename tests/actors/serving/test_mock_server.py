"""The mock speaks vLLM's protocol: tokens, usage, errors, metrics; and its faults are faults."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from actors.config import MockConfig
from actors.serving.metrics import MetricMissing, parse_gauges
from actors.serving.mock_server import MockServer

Client = TestClient[Any, Any]
CONFIG = MockConfig(
    kind="mock",
    max_num_seqs=16,
    max_model_len_tokens=256,
    prefill_s_per_token=0.0,
    decode_step_s=0.0005,
    decode_step_per_seq_s=0.0,
)


def talk(scenario: Callable[[Client], Awaitable[None]], config: MockConfig = CONFIG) -> None:
    """Run a scenario against a mock server in this process."""

    async def run() -> None:
        async with TestClient(TestServer(MockServer(config).app())) as client:
            await scenario(client)

    asyncio.run(run())


def body(**changes: Any) -> dict[str, Any]:
    return {
        "model": "mock",
        "prompt": [40, 41, 42],
        "max_tokens": 24,
        "min_tokens": 24,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | changes


async def stream(client: Client, **changes: Any) -> list[Any]:
    """Events of one streamed completion, the last of them "[DONE]"."""
    async with client.post("/v1/completions", json=body(**changes)) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        text = (await response.read()).decode()
    events = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


async def gauges(client: Client) -> Any:
    async with client.get("/metrics") as response:
        return parse_gauges(await response.text())


async def tell(client: Client, path: str, **what: Any) -> None:
    async with client.post(path, json=what) as response:
        assert response.status == 200, await response.text()


def test_a_stream_has_exactly_the_tokens_asked_for_and_their_usage() -> None:
    async def scenario(client: Client) -> None:
        *chunks, usage, done = await stream(client)
        assert done == "[DONE]"
        assert len(chunks) == 24
        assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 23 + ["length"]
        assert all(c["choices"][0]["text"] for c in chunks)
        assert usage["choices"] == []
        assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 24, "total_tokens": 27}

    talk(scenario)


def test_without_include_usage_there_is_none() -> None:
    async def scenario(client: Client) -> None:
        events = await stream(client, stream_options=None, max_tokens=2, min_tokens=2)
        assert len(events) == 3
        assert not any("usage" in event for event in events[:-1])

    talk(scenario)


def test_an_answer_in_one_piece_has_the_same_text_and_usage() -> None:
    async def scenario(client: Client) -> None:
        *chunks, usage, _ = await stream(client)
        async with client.post("/v1/completions", json=body(stream=False)) as response:
            whole = await response.json()
        assert whole["choices"][0]["text"] == "".join(c["choices"][0]["text"] for c in chunks)
        assert whole["usage"] == usage["usage"]

    talk(scenario)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"prompt": [1] * 300}, 400, "maximum context length is 256 tokens. However, your prompt"),
        ({"prompt": [1] * 250}, 400, "less than or equal to max_tokens=6, got 24"),
        ({"prompt": [1] * 256}, 400, "max_tokens must be at least 1, got 0"),
        ({"prompt": []}, 400, "prompt must be"),
        ({"prompt": [1, "a"]}, 400, "prompt must be"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"model": "other"}, 404, "The model `other` does not exist"),
    ],
)
def test_what_vllm_refuses_the_mock_refuses(
    changes: dict[str, Any], status: int, message: str
) -> None:
    async def scenario(client: Client) -> None:
        async with client.post("/v1/completions", json=body(**changes)) as response:
            error = (await response.json())["error"]
        assert response.status == error["code"] == status
        assert message in error["message"]
        assert (await gauges(client)).running == 0

    talk(scenario)


def test_without_min_tokens_the_context_clips_the_output_silently_as_in_vllm() -> None:
    async def scenario(client: Client) -> None:
        *_, usage, _ = await stream(client, prompt=[1] * 250, min_tokens=0)
        assert usage["usage"]["completion_tokens"] == 6

    talk(scenario)


def test_max_num_seqs_requests_run_at_once_and_the_next_one_waits() -> None:
    config = CONFIG.model_copy(update={"decode_step_s": 0.02})

    async def scenario(client: Client) -> None:
        long = {"max_tokens": 200, "min_tokens": 200}
        tasks = [asyncio.create_task(stream(client, **long)) for _ in range(17)]
        while (now := await gauges(client)).running + now.waiting < 17 or now.running < 16:
            await asyncio.sleep(0)
        assert (now.running, now.waiting) == (16, 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    talk(scenario, config)


def test_a_marked_merge_slows_by_the_planted_factor() -> None:
    config = CONFIG.model_copy(update={"decode_step_s": 0.02, "merge_slowdown": 3.0})

    async def scenario(client: Client) -> None:
        took_s = {}
        for slow in (False, True):
            await tell(client, "/mock/merge", slow=slow)
            start_s = time.monotonic()
            await stream(client, max_tokens=8, min_tokens=8)
            took_s[slow] = time.monotonic() - start_s
        assert 1.8 < took_s[True] / took_s[False] < 5.0

    talk(scenario, config)


def test_gauges_and_counters_follow_the_requests() -> None:
    config = CONFIG.model_copy(update={"max_num_seqs": 2, "decode_step_s": 0.02})

    async def scenario(client: Client) -> None:
        long = {"max_tokens": 200, "min_tokens": 200}
        tasks = [asyncio.create_task(stream(client, **long)) for _ in range(5)]
        while (now := await gauges(client)).running < 2 or now.waiting < 3:
            await asyncio.sleep(0)
        assert (now.running, now.waiting) == (2, 3)
        assert 0 < now.kv_usage < 1
        for task in tasks:  # five clients that go away
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while (await gauges(client)).running:
            await asyncio.sleep(0)
        await stream(client, max_tokens=4, min_tokens=4)
        async with client.get("/metrics") as response:
            text = await response.text()
        assert (await gauges(client)).waiting == 0
        label = 'engine="0",finished_reason="length",model_name="mock"'
        assert f"vllm:request_success_total{{{label}}} 1.0" in text
        assert 'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3"' in text

    talk(scenario, config)


def test_the_error_rate_fails_its_share_and_clear_ends_it() -> None:
    async def scenario(client: Client) -> None:
        async def status() -> int:
            one = body(max_tokens=1, min_tokens=1)
            async with client.post("/v1/completions", json=one) as response:
                return response.status

        await tell(client, "/mock/fault", kind="error_rate", fraction=0.2, seed=1)
        statuses = [await status() for _ in range(100)]
        assert set(statuses) == {200, 500}
        assert 8 <= statuses.count(500) <= 35
        await tell(client, "/mock/fault", kind="clear")
        assert {await status() for _ in range(20)} == {200}

    talk(scenario)


def test_a_cut_stream_breaks_the_connection() -> None:
    async def scenario(client: Client) -> None:
        await tell(client, "/mock/fault", kind="cut_streams", fraction=1.0)
        with pytest.raises(aiohttp.ClientError):
            await stream(client)
        while (await gauges(client)).running:
            await asyncio.sleep(0)

    talk(scenario)


def test_a_stall_delays_the_first_token() -> None:
    async def scenario(client: Client) -> None:
        await tell(client, "/mock/fault", kind="stall", duration_s=0.3)
        start_s = time.monotonic()
        await stream(client, max_tokens=1, min_tokens=1)
        assert time.monotonic() - start_s >= 0.29

    talk(scenario)


def test_a_renamed_metric_is_missing() -> None:
    async def scenario(client: Client) -> None:
        await gauges(client)
        name = "vllm:num_requests_running"
        await tell(client, "/mock/fault", kind="rename_metric", metric=name, to="vllm:new_name")
        with pytest.raises(MetricMissing, match=name):
            await gauges(client)

    talk(scenario)


def test_an_unknown_fault_is_refused() -> None:
    async def scenario(client: Client) -> None:
        for path in ("/mock/fault", "/mock/merge"):
            async with client.post(path, json={"kind": "explode"}) as response:
                assert response.status == 400

    talk(scenario)


def test_it_says_that_it_is_a_mock() -> None:
    async def scenario(client: Client) -> None:
        async with client.get("/version") as response:
            assert (await response.json())["version"].startswith("mock")
        async with client.get("/v1/models") as response:
            models = (await response.json())["data"]
        assert [(m["id"], m["max_model_len"]) for m in models] == [("mock", 256)]
        async with client.get("/health") as response:
            assert response.status == 200

    talk(scenario)
