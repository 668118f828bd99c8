"""A trace in memory: when requests came and how many tokens they had; the same for all formats."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class TraceWarning(UserWarning):
    """A trace was read, but something about it is odd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the file was taken for."""

    format: str
    time_form: str  # e.g. "a time with a zone", "epoch milliseconds", "seconds"
    zone: str
    first_ns: int  # the first arrival: since 1970, or since the file's own zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of time; ``at_ns`` counts from the first one."""

    path: Path
    at_ns: Ints
    context_tokens: Ints
    generated_tokens: Ints
    notes: tuple[str, ...]  # what is odd, as warned
    origin: Origin | None = None  # None: made in memory
    steps: tuple[str, ...] = ()  # how it was read and what was done to it, in order

    @property
    def duration_s(self) -> float:
        return float(self.at_ns[-1]) / 1e9


def frozen(*columns: Ints) -> tuple[Ints, ...]:
    """Columns that nobody changes any more."""
    for column in columns:
        column.setflags(write=False)
    return columns
