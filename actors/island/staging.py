"""The parameters of a GPU in buckets on the host, one bucket ahead of the network.

Where what is global stands on the host (``merge.outer_on: host``), a bucket is copied from the
device while the one before it is on its way to the peers; without a device they are views, and
nothing is copied. Extra memory: two pinned buckets.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


class Buckets:
    """Reads ``vector`` [numbers] bucket by bucket as host memory."""

    def __init__(self, vector: Tensor, *, numbers: int, staged: bool) -> None:
        self._vector = vector
        self._numbers = numbers
        self._stream: torch.cuda.Stream | None = None
        self._pinned: list[Tensor] = []
        if staged and vector.is_cuda:
            self._stream = torch.cuda.Stream(vector.device)
            size = min(numbers, vector.numel())
            self._pinned = [torch.empty(size, pin_memory=True) for _ in range(2)]

    def read(self, first: int, last: int) -> Iterator[tuple[int, int, Tensor]]:
        """(low, high, numbers of it) in order; a bucket may be used until the next but one."""
        places = [
            (low, min(low + self._numbers, last)) for low in range(first, last, self._numbers)
        ]
        if self._stream is None:
            for low, high in places:
                yield low, high, self._vector[low:high]
            return
        fetched = [self._fetch(i, *place) for i, place in enumerate(places[:1])]
        for index, (low, high) in enumerate(places):
            if index + 1 < len(places):
                fetched.append(self._fetch(index + 1, *places[index + 1]))
            event, host = fetched[index]
            event.synchronize()
            yield low, high, host

    def _fetch(self, index: int, low: int, high: int) -> tuple[torch.cuda.Event, Tensor]:
        assert self._stream is not None
        host = self._pinned[index % 2][: high - low]
        self._stream.wait_stream(torch.cuda.current_stream(self._vector.device))
        with torch.cuda.stream(self._stream):
            host.copy_(self._vector[low:high], non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return event, host
