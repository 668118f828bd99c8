"""The endpoint of `lull advise`: JSON in and out, for trainers without Ray.

    POST /v1/ready_to_merge  {"learner": 0, "step": 120, "tokens": 983040, "loss": 2.9, "merges": 1}
    POST /v1/merged          {"learner": 0, "step": 120, "merges": 2, "seconds": 3.1}
    GET  /v1/advice          what the advisor says of itself
    GET  /health

400: the body cannot be read; 409: the learner cannot be placed. Both say why: {"error": "..."}.
408: the body did not come in time; 503: the advice has ended.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, TypeVar

from aiohttp import web
from pydantic import Field, ValidationError

from actors.coordinator.advice import AdviceRefused, AdvisorSilent, Merged, Report
from orchestrator.advisor.session import AdviceSession
from policies.units import Finite, FrozenModel, Seconds, Tokens

MOST_BODY_BYTES = 16 * 1024
READ_S = 5.0  # in which a body has to come
POLL_S = 1.0
SHUTDOWN_S = 0.5
LearnerNumber = Annotated[int, Field(ge=0, lt=10_000)]
ReportedSteps = Annotated[int, Field(ge=0, lt=10**12)]  # no trainer's, only a mistaken one's


class ReportBody(FrozenModel):
    """A learner's question."""

    learner: LearnerNumber
    step: ReportedSteps
    tokens: Tokens
    loss: Finite | None = None
    merges: ReportedSteps = 0
    last_merge_step: ReportedSteps | None = None
    trainer_id: Annotated[str, Field(max_length=64)] = ""


class MergedBody(FrozenModel):
    """A learner's merge is done."""

    learner: LearnerNumber
    step: ReportedSteps
    merges: ReportedSteps
    seconds: Seconds | None = None
    tokens: Tokens | None = None
    loss: Finite | None = None


_Body = TypeVar("_Body", ReportBody, MergedBody)


class Endpoint:
    """The handlers of one session; each answers at once, for nothing here waits for anything."""

    def __init__(self, session: AdviceSession) -> None:
        self._session = session

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MOST_BODY_BYTES)
        app.router.add_post("/v1/ready_to_merge", self._ask)
        app.router.add_post("/v1/merged", self._merged)
        app.router.add_get("/v1/advice", self._standing)
        app.router.add_get("/health", self._health)
        return app

    async def _ask(self, request: web.Request) -> web.Response:
        try:
            body = await _read(request, ReportBody)
        except ValueError as error:
            return _error(400, error)
        try:
            decision = self._session.ask(Report(**body.model_dump()))
        except AdviceRefused as error:
            return _error(409, error)
        except AdvisorSilent as error:
            raise web.HTTPServiceUnavailable(text=str(error)) from error
        return web.json_response(asdict(decision))

    async def _merged(self, request: web.Request) -> web.Response:
        try:
            body = await _read(request, MergedBody)
        except ValueError as error:
            return _error(400, error)
        self._session.merged(Merged(**body.model_dump()))
        return web.json_response({})

    async def _standing(self, _request: web.Request) -> web.Response:
        return web.json_response(asdict(self._session.standing()))

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()


async def _read(request: web.Request, kind: type[_Body]) -> _Body:
    """The body; ValueError names the first thing that is wrong with it."""
    try:
        async with asyncio.timeout(READ_S):
            body = await request.read()
    except TimeoutError as error:
        raise web.HTTPRequestTimeout from error
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place or 'the body'}: {first['msg']}") from error


def _error(status: int, error: ValueError) -> web.Response:
    return web.json_response({"error": str(error)}, status=status)


async def serve(
    session: AdviceSession,
    *,
    host: str,
    port: int,
    stop: asyncio.Event,
    ready: Callable[[str], None],
    say: Callable[[str], None],
) -> None:
    """Answer at host:port until ``stop``; OSError where nothing can listen there.

    ``ready`` is told the URL; ``say``, once, what has become impossible meanwhile.
    """
    runner = web.AppRunner(Endpoint(session).app(), access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{runner.addresses[0][1]}")
        said: str | None = None
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), timeout=POLL_S)
            session.poll()
            problem = session.standing().problem
            if problem is not None and problem != said:
                said = problem
                say(problem)
    finally:
        await runner.cleanup()
