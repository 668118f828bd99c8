"""Virtual time for the load client: an event loop that never waits, servers made of functions."""

import asyncio
import json
import selectors
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest

from actors.load.request import Request

T = TypeVar("T")
Serve = Callable[[dict[str, Any]], AsyncGenerator[bytes]]


class VirtualSelector(selectors.DefaultSelector):
    """Instead of waiting for the next timer, move the loop's time to it."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("every task waits for something that will never come")
            self.now_s += max(0.0, timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """A second takes no time; also a Clock, for the client."""

    def __init__(self) -> None:
        self.selector = VirtualSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now_s

    def now_s(self) -> float:
        return self.selector.now_s


class FunctionTransport:
    """Gives each request to ``serve`` as the parsed body."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.closed = False

    async def stream(self, url: str, body: bytes) -> AsyncGenerator[bytes]:
        async for chunk in self._serve(json.loads(body)):
            yield chunk

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    virtual = VirtualLoop()
    yield virtual
    virtual.close()


@pytest.fixture
def run_virtual(loop: VirtualLoop) -> Callable[[Awaitable[T]], T]:
    """Run a coroutine in virtual time."""

    async def wrapped(work: Awaitable[T]) -> T:
        return await work

    return lambda work: loop.run_until_complete(wrapped(work))


@pytest.fixture
def transport() -> type[FunctionTransport]:
    return FunctionTransport


def _event(value: Mapping[str, Any] | str) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"data: {text}\n\n".encode()


class Wire:
    """Bytes as vLLM's completions API writes them."""

    event = staticmethod(_event)
    done = _event("[DONE]")

    @staticmethod
    def chunk(text: str = "x") -> bytes:
        return _event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})

    @staticmethod
    def usage(tokens: int) -> bytes:
        return _event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": tokens}})


@pytest.fixture
def wire() -> type[Wire]:
    return Wire


@pytest.fixture
def make_request() -> Callable[..., Request]:
    def make(
        request_id: int = 0, *, at_s: float = 0.0, output_tokens: int = 3, sidecar: int = 0
    ) -> Request:
        return Request(
            request_id=request_id,
            sidecar=sidecar,
            scheduled_at_s=at_s,
            prompt_tokens=4,
            output_tokens=output_tokens,
            prompt_seed=1000 + request_id,
        )

    return make
