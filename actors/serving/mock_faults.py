"""What is told to a mock server: POST /mock/merge, and /mock/fault with one of the faults as JSON.

Merge windows are marked by the coordinator; faults are asked for by tests.
"""

import random
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from policies.units import Fraction, FrozenModel, PositiveSeconds


class Merge(FrozenModel):
    """Whether a merge window is open: steps then take merge_slowdown times as long."""

    slow: bool


class Die(FrozenModel):
    """End the process at once."""

    kind: Literal["die"]
    exit_code: Annotated[int, Field(ge=0, le=125)] = 3


class ErrorRate(FrozenModel):
    """Answer this fraction of the requests with status 500."""

    kind: Literal["error_rate"]
    fraction: Fraction
    seed: int = 0


class CutStreams(FrozenModel):
    """Break the connection of this fraction of the streams after half of their tokens."""

    kind: Literal["cut_streams"]
    fraction: Fraction
    seed: int = 0


class Stall(FrozenModel):
    """Make no step for so long; requests wait."""

    kind: Literal["stall"]
    duration_s: PositiveSeconds


class RenameMetric(FrozenModel):
    """Serve a metric under another name, as a new vLLM release would."""

    kind: Literal["rename_metric"]
    metric: str
    to: str


class Reload(FrozenModel):
    """What goes wrong when weights are reloaded."""

    kind: Literal["reload"]
    how: Literal["fail", "die", "hang", "ignore", "garble"]


class Clear(FrozenModel):
    """No more faults."""

    kind: Literal["clear"]


Fault = Annotated[
    Die | ErrorRate | CutStreams | Stall | RenameMetric | Reload | Clear,
    Field(discriminator="kind"),
]
FAULT: TypeAdapter[Fault] = TypeAdapter(Fault)


class Chance:
    """A seeded coin that falls on its side with the fault's fraction."""

    def __init__(self, fraction: float = 0.0, *, seed: int = 0) -> None:
        self._fraction = fraction
        self._random = random.Random(seed)

    def falls(self) -> bool:
        return self._random.random() < self._fraction
