"""One row for each request, whatever became of it, and the counts that go with it.

Written by the client's event loop alone; counts and rows may be taken from any thread.
"""

from collections import deque
from collections.abc import Sequence

from actors.load.request import Outcome, Request, RequestRow
from actors.load.stream import CompletionStream


class Ledger:
    """Requests by their place in the order of sending: open, in flight, final."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._flights: dict[int, tuple[float, CompletionStream]] = {}
        self._open = set(range(len(requests)))
        self._fresh: deque[RequestRow] = deque()
        self._in_flight_by: dict[int, int] = {r.sidecar: 0 for r in requests}
        self.sent = 0
        self.finished = 0
        self.failed = 0

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def in_flight_of(self, sidecar: int) -> int:
        """In flight to one sidecar."""
        return self._in_flight_by.get(sidecar, 0)

    def send(self, index: int, *, at_s: float) -> CompletionStream:
        """The request goes out now; what comes back is folded into the stream given."""
        stream = CompletionStream()
        self._flights[index] = (at_s, stream)
        self._in_flight_by[self._requests[index].sidecar] += 1
        self.sent += 1
        return stream

    def close(self, index: int, outcome: Outcome, *, error: str | None, at_s: float) -> None:
        """Write the row. One that was never sent is not_sent, whatever ended the run."""
        sent_at_s, stream = self._flights.pop(index, (None, CompletionStream()))
        self._open.remove(index)
        request = self._requests[index]
        if sent_at_s is None:
            outcome, done_at_s = Outcome.NOT_SENT, None
        else:
            self._in_flight_by[request.sidecar] -= 1
            # As vLLM's benchmark client takes it; else when the failure was known.
            done_at_s = stream.last_token_at_s if outcome is Outcome.OK else at_s
        self._fresh.append(
            RequestRow(
                request_id=request.request_id,
                sidecar=request.sidecar,
                scheduled_at_s=request.scheduled_at_s,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
                prompt_seed=request.prompt_seed,
                sent_at_s=sent_at_s,
                first_token_at_s=stream.first_token_at_s,
                done_at_s=done_at_s,
                completion_tokens=stream.completion_tokens,
                outcome=outcome,
                error=error,
                itl_s=tuple(stream.itl_s),
            )
        )
        self.finished += 1
        self.failed += outcome is not Outcome.OK

    def close_rest(self, *, error: str | None, at_s: float) -> None:
        """Rows for all that have none yet."""
        for index in sorted(self._open):
            self.close(index, Outcome.CLIENT_LOST, error=error, at_s=at_s)

    def drain(self) -> list[RequestRow]:
        """Rows that became final since the last call."""
        return [self._fresh.popleft() for _ in range(len(self._fresh))]
