"""A mock of vLLM's OpenAI server: `python -m actors.serving.mock_server --port P --config JSON`.

The wire protocol and /metrics are vLLM's, the times follow mock_batch.py; nothing is computed.
/version says "mock-1", so that no result made with it can pass for vLLM's.
"""

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import assert_never

from aiohttp import web
from pydantic import ValidationError

from actors.config import MockConfig
from actors.serving.completions import MODEL, VERSION, Completion, Refused, read_completion
from actors.serving.exported import Exported, read_exported
from actors.serving.mock_batch import Batch, Sequence
from actors.serving.mock_faults import (
    FAULT,
    Chance,
    Clear,
    CutStreams,
    Die,
    ErrorRate,
    Merge,
    Reload,
    RenameMetric,
    Stall,
)
from actors.serving.mock_metrics import MockMetrics
from actors.serving.mock_weights import MockWeights, read_json

Send = Callable[[int], Awaitable[None]]

CATCH_UP_S = 0.02  # timers fire late by a millisecond: steps keep their sum, up to this much
SHUTDOWN_S = 0.5


class MockServer:
    """One batching task advances all sequences; each handler streams the tokens of its own."""

    def __init__(
        self, config: MockConfig, *, weights: Exported | None = None, dev_mode: bool = False
    ) -> None:
        self._config = config
        self._batch = Batch(config)
        self._metrics = MockMetrics(self._batch, model=MODEL)
        self._weights = MockWeights(weights, self._batch)
        self._dev_mode = dev_mode
        self._work = asyncio.Event()
        self._ids = itertools.count()
        self._error, self._cut = Chance(), Chance()
        self._renamed: dict[str, str] = {}
        self._stalled_until_s = 0.0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_post("/mock/merge", self._merge)
        app.router.add_post("/mock/fault", self._fault)
        if self._dev_mode:
            self._weights.add_routes(app)
        app.cleanup_ctx.append(self._batching)
        return app

    async def _batching(self, _app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._step_for_ever())
        yield
        task.cancel()

    async def _step_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = 0.0
        while True:
            if not self._batch.busy:
                self._work.clear()
                await self._work.wait()
                due_s = loop.time()
            await self._weights.unpaused.wait()
            due_s = max(due_s, self._stalled_until_s, loop.time() - CATCH_UP_S)
            due_s += self._batch.begin_step()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            self._batch.end_step()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            completion = read_completion(
                await read_json(request),
                model=MODEL,
                max_model_len_tokens=self._config.max_model_len_tokens,
                request_id=f"cmpl-mock-{next(self._ids)}",
                created=int(time.time()),
            )
            self._weights.check_whole()
            if self._error.falls():
                raise Refused("the mock was told to fail", status=500)
        except Refused as refusal:
            return web.json_response(refusal.body(), status=refusal.status)
        tokens: asyncio.Queue[None] = asyncio.Queue()
        sequence = Sequence(
            prompt_tokens=completion.prompt_tokens,
            output_tokens=completion.output_tokens,
            on_token=lambda: tokens.put_nowait(None),
        )
        self._batch.add(sequence)
        self._work.set()
        try:
            if completion.stream:
                return await self._stream(request, completion, tokens)
            await self._receive(completion, tokens, _keep)
            return web.json_response(completion.whole(top=self._top_logprobs(completion)))
        finally:  # also when the client went away
            self._batch.drop(sequence)

    async def _stream(
        self, request: web.Request, completion: Completion, tokens: "asyncio.Queue[None]"
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream; charset=utf-8"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        cut_at = completion.output_tokens // 2 if self._cut.falls() else None

        async def send(at: int) -> None:
            if at == cut_at and request.transport is not None:
                request.transport.abort()  # the next write then fails, as a lost client's would
            await response.write(completion.chunk(at).encode())

        await self._receive(completion, tokens, send)
        await response.write(completion.closing().encode())
        await response.write_eof()
        return response

    async def _receive(
        self, completion: Completion, tokens: "asyncio.Queue[None]", send: Send
    ) -> None:
        """Each token as its step ends, counted and sent."""
        start_s = last_s = time.monotonic()
        reason = "abort"
        try:
            for at in range(completion.output_tokens):
                await tokens.get()
                now_s = time.monotonic()
                if at == 0:
                    self._metrics.first_token(
                        after_s=now_s - start_s, prompt_tokens=completion.prompt_tokens
                    )
                else:
                    self._metrics.next_token(gap_s=now_s - last_s)
                last_s = now_s
                await send(at)
            reason = "length"
        finally:
            self._metrics.finish(reason, after_s=time.monotonic() - start_s)

    def _top_logprobs(self, completion: Completion) -> dict[str, float] | None:
        if completion.logprobs is None:
            return None
        return self._weights.top_logprobs(completion.prompt_ids, completion.logprobs)

    async def _models(self, _request: web.Request) -> web.Response:
        model = {
            "id": MODEL,
            "object": "model",
            "owned_by": "mock",
            "max_model_len": self._config.max_model_len_tokens,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        text = self._metrics.render()
        for name, to in self._renamed.items():
            text = text.replace(name, to)
        return web.Response(text=text)

    async def _merge(self, request: web.Request) -> web.Response:
        try:
            self._batch.slow = Merge.model_validate_json(await request.read()).slow
        except ValidationError as error:
            return web.Response(status=400, text=str(error))
        return web.Response()

    async def _fault(self, request: web.Request) -> web.Response:
        try:
            fault = FAULT.validate_json(await request.read())
        except ValidationError as error:
            return web.Response(status=400, text=str(error))
        match fault:
            case Die(exit_code=code):
                sys.stderr.write(f"mock server: told to die with exit code {code}\n")
                sys.stderr.flush()
                os._exit(code)
            case ErrorRate(fraction=fraction, seed=seed):
                self._error = Chance(fraction, seed=seed)
            case CutStreams(fraction=fraction, seed=seed):
                self._cut = Chance(fraction, seed=seed)
            case Stall(duration_s=duration_s):
                self._stalled_until_s = asyncio.get_running_loop().time() + duration_s
            case RenameMetric(metric=metric, to=to):
                self._renamed[metric] = to
            case Reload():
                self._weights.fault = fault
            case Clear():
                self._error, self._cut, self._renamed = Chance(), Chance(), {}
                self._stalled_until_s = 0.0
                self._weights.fault = None
            case _:
                assert_never(fault)
        return web.Response()


async def _keep(_at: int) -> None:
    """An answer in one piece is sent at its end."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m actors.serving.mock_server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", required=True, help="a MockConfig as JSON")
    parser.add_argument("--weights", type=Path, help="a folder of exported weights to serve")
    parser.add_argument("--dev-mode", action="store_true", help="VLLM_SERVER_DEV_MODE=1")
    options = parser.parse_args()
    weights = None if options.weights is None else read_exported(options.weights)
    server = MockServer(
        MockConfig.model_validate_json(options.config), weights=weights, dev_mode=options.dev_mode
    )
    web.run_app(
        server.app(),
        host=options.host,
        port=options.port,
        access_log=None,
        print=lambda *_: None,
        shutdown_timeout=SHUTDOWN_S,
        handler_cancellation=True,  # a client that goes away frees its slot, as in vLLM
    )


if __name__ == "__main__":
    main()
