"""Open-loop client: every request is sent when it is due, whatever the server does.

Each scheduled request ends in exactly one row. The time limit of a request counts from its own
send; latency counts from its scheduled time (latency.py), so lateness is in it and never hidden.
"""

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from actors.clock import Clock, MonotonicClock
from actors.config import ClientConfig
from actors.load.body import PATH, completion_body, prompt_ids
from actors.load.ledger import Ledger
from actors.load.request import Outcome, Request, RequestRow
from actors.load.snapshot import LoadSnapshot, SidecarSnapshot
from actors.load.stream import BadStream, CompletionStream
from actors.load.transport import HttpTransport, RequestFailed, Transport

Result = tuple[Outcome, str | None]


class LoadFailed(RuntimeError):
    """The client could not do what it was asked; one message, so that it crosses Ray."""


class LoadClient:
    """prepare, warm_up, run; again for the next arm. snapshot, drain_rows, abort at any time."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Clock | None = None,
        transport: Callable[[], Transport] = HttpTransport,
    ) -> None:
        self._config = config
        self._clock = clock or MonotonicClock()
        self._new_transport = transport
        self._loop: asyncio.AbstractEventLoop | None = None  # while a run goes on
        self.prepare((), urls=(), models=())

    def prepare(
        self, requests: Sequence[Request], *, urls: Sequence[str], models: Sequence[str]
    ) -> int:
        """Take the request file of the next run, one url and model a sidecar; build the bodies."""
        if self._loop is not None:
            raise LoadFailed("the load client is in the middle of a run; abort it first")
        _check(requests, urls=urls, models=models)
        self._requests = sorted(requests, key=lambda r: (r.scheduled_at_s, r.request_id))
        self._due_s = [r.scheduled_at_s for r in self._requests]
        self._due_by_sidecar_s = [
            [r.scheduled_at_s for r in self._requests if r.sidecar == s] for s in range(len(urls))
        ]
        self._urls = [url.rstrip("/") + PATH for url in urls]
        self._models = list(models)
        self._bodies = [self._body(r, stream=0) for r in self._requests]
        self._ledger = Ledger(self._requests)
        self._tasks: set[asyncio.Task[Result]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._stopped: tuple[Outcome, str] | None = None
        self._zero_s: float | None = None
        return len(self._requests)

    async def warm_up(self, count: int) -> None:
        """``count`` unmeasured requests at once to each sidecar, as long as the prepared ones."""
        if count and not self._requests:
            raise LoadFailed("nothing to warm up with: call prepare with requests first")
        jobs: list[tuple[str, bytes, int]] = []
        for sidecar, url in enumerate(self._urls):
            like = [r for r in self._requests if r.sidecar == sidecar] or self._requests
            for k in range(count):
                request = like[k % len(like)]
                body = self._body(request, stream=1 + k, sidecar=sidecar)
                jobs.append((url, body, request.output_tokens))
        transport = self._new_transport()
        try:
            results = await asyncio.gather(
                *(
                    self._receive(transport, url, body, CompletionStream(), output_tokens=tokens)
                    for url, body, tokens in jobs
                )
            )
        finally:
            await transport.close()
        errors = [error for outcome, error in results if outcome is not Outcome.OK]
        if errors:
            raise LoadFailed(
                f"{len(errors)} of {len(jobs)} warm-up requests failed, the first with: {errors[0]}"
            )

    async def run(self, zero_monotonic_s: float) -> None:
        """Send everything from ``zero_monotonic_s`` on; returns when every row is final."""
        if self._zero_s is not None:
            raise LoadFailed("the prepared requests have been run; call prepare before each run")
        self._zero_s = zero_monotonic_s
        self._loop = asyncio.get_running_loop()
        transport = self._new_transport()
        self._sender = sender = self._loop.create_task(self._send_all(transport))
        try:
            if self._stopped is not None:  # aborted before it began
                sender.cancel()
            await asyncio.wait([sender])
            await self._drain()
        finally:
            if self._tasks or not sender.done():  # the run itself was cancelled
                self._stop(Outcome.CLIENT_LOST, "the client's run was cancelled")
                await asyncio.wait([sender, *self._tasks])
            self._ledger.close_rest(error=self._why(), at_s=self._now_s())
            self._loop = None
            await transport.close()
        if not sender.cancelled() and (error := sender.exception()) is not None:
            raise error

    def snapshot(self) -> LoadSnapshot:
        """Where the run stands; cheap, from any thread."""
        at_s = self._clock.now_s()
        now_s = float("-inf") if self._zero_s is None else at_s - self._zero_s
        return LoadSnapshot(
            at_monotonic_s=at_s,
            scheduled_so_far=bisect_right(self._due_s, now_s),
            sent=self._ledger.sent,
            in_flight=self._ledger.in_flight,
            finished=self._ledger.finished,
            failed=self._ledger.failed,
            by_sidecar=tuple(
                SidecarSnapshot(
                    sidecar=sidecar,
                    scheduled_so_far=bisect_right(due_s, now_s),
                    in_flight=self._ledger.in_flight_of(sidecar),
                )
                for sidecar, due_s in enumerate(self._due_by_sidecar_s)
            ),
        )

    def drain_rows(self) -> list[RequestRow]:
        """Rows that became final since the last call; from any thread."""
        return self._ledger.drain()

    def abort(self, why: str) -> None:
        """End the run now: unsent requests are not_sent, those in flight client_lost, with why."""
        loop = self._loop
        if loop is None:
            self._stopped = self._stopped or (Outcome.CLIENT_LOST, why)
        else:
            loop.call_soon_threadsafe(self._stop, Outcome.CLIENT_LOST, why)

    def _body(self, request: Request, *, stream: int, sidecar: int | None = None) -> bytes:
        prompt = prompt_ids(
            request,
            token_low=self._config.token_low,
            token_high=self._config.token_high,
            stream=stream,
        )
        model = self._models[request.sidecar if sidecar is None else sidecar]
        return completion_body(request, model=model, prompt=prompt)

    async def _send_all(self, transport: Transport) -> None:
        for index, due_s in enumerate(self._due_s):
            # Also when late: a sleep of 0 lets the requests sent so far go out.
            await asyncio.sleep(max(0.0, due_s - self._now_s()))
            task = asyncio.create_task(self._send(index, transport))
            self._tasks.add(task)
            task.add_done_callback(partial(self._land, index))

    async def _send(self, index: int, transport: Transport) -> Result:
        request = self._requests[index]
        return await self._receive(
            transport,
            self._urls[request.sidecar],
            self._bodies[index],
            self._ledger.send(index, at_s=self._now_s()),
            output_tokens=request.output_tokens,
        )

    async def _receive(
        self,
        transport: Transport,
        url: str,
        body: bytes,
        stream: CompletionStream,
        *,
        output_tokens: int,
    ) -> Result:
        limit_s = self._config.request_timeout_s
        try:
            async with (
                asyncio.timeout(limit_s),
                contextlib.aclosing(transport.stream(url, body)) as chunks,
            ):
                async for chunk in chunks:
                    stream.feed(chunk, at_s=self._now_s())
            stream.check_end(output_tokens=output_tokens)
        except TimeoutError:
            return (
                Outcome.TIMEOUT,
                f"{url}: no end within request_timeout_s={limit_s:g} of its send",
            )
        except RequestFailed as error:
            return error.outcome, str(error)
        except BadStream as error:
            return Outcome.BAD_STREAM, f"{url}: {error}"
        return Outcome.OK, None

    def _land(self, index: int, task: asyncio.Task[Result]) -> None:
        """Done callback: also what nobody foresaw ends in a row."""
        self._tasks.discard(task)
        outcome: Outcome
        error: str | None
        if task.cancelled():
            outcome, error = self._stopped or (Outcome.CLIENT_LOST, "cancelled from outside")
        elif (raised := task.exception()) is not None:
            outcome, error = Outcome.CLIENT_LOST, f"{type(raised).__name__}: {raised}"
        else:
            outcome, error = task.result()
        self._ledger.close(index, outcome, error=error, at_s=self._now_s())

    async def _drain(self) -> None:
        limit_s = self._config.drain_timeout_s
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        if self._tasks:
            self._stop(
                Outcome.TIMEOUT, f"no end within drain_timeout_s={limit_s:g} of the last send"
            )
            await asyncio.wait(self._tasks)

    def _stop(self, outcome: Outcome, why: str) -> None:
        """Cancel what is left; the first reason stands."""
        self._stopped = self._stopped or (outcome, why)
        assert self._sender is not None
        self._sender.cancel()
        for task in self._tasks:
            task.cancel()

    def _why(self) -> str | None:
        return None if self._stopped is None else self._stopped[1]

    def _now_s(self) -> float:
        return self._clock.now_s() - (self._zero_s or 0.0)


def _check(requests: Sequence[Request], *, urls: Sequence[str], models: Sequence[str]) -> None:
    if len(urls) != len(models):
        raise ValueError(f"{len(urls)} urls and {len(models)} models; give one of each a sidecar")
    ids: set[int] = set()
    for request in requests:
        if not 0 <= request.sidecar < len(urls):
            raise ValueError(
                f"request {request.request_id} goes to sidecar {request.sidecar}; there are "
                f"{len(urls)} urls"
            )
        if request.request_id in ids:
            raise ValueError(f"request id {request.request_id} is there twice; number them anew")
        ids.add(request.request_id)
