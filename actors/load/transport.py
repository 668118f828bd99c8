"""How a request travels: a stream of bytes for a body, or a failure that names its outcome.

The client depends on the protocol only, so tests drive it without a network.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

import aiohttp

from actors.load.request import Outcome

# Below the 5 s after which vLLM's server drops an idle connection: a request that picks one up in
# that moment would fail, and the failure would be ours.
KEEP_ALIVE_S = 2.0
HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}


class RequestFailed(RuntimeError):
    """A request came to nothing; ``outcome`` says in which way."""

    def __init__(self, message: str, *, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


class Transport(Protocol):
    """Carries requests for as long as it is open."""

    def stream(self, url: str, body: bytes) -> AsyncGenerator[bytes]:
        """POST ``body``; chunks of the answer as they arrive. Raises RequestFailed."""
        ...

    async def close(self) -> None: ...


class HttpTransport:
    """aiohttp without a cap on connections and without time limits of its own."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=HEADERS,
            raise_for_status=False,
        )

    async def stream(self, url: str, body: bytes) -> AsyncGenerator[bytes]:
        outcome = Outcome.CONNECTION_ERROR
        try:
            async with self._session.post(url, data=body, allow_redirects=False) as response:
                outcome = Outcome.BAD_STREAM
                if response.status != 200:
                    text = " ".join((await response.text(errors="replace")).split())
                    raise RequestFailed(
                        f"{url}: status {response.status}: {text[:200]}",
                        outcome=Outcome.HTTP_ERROR,
                    )
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise RequestFailed(
                f"{url}: {type(error).__name__}: {error}", outcome=outcome
            ) from error

    async def close(self) -> None:
        await self._session.close()
