"""The floor: frozen, strict config models and the units that ride on names.

Seconds only (``_s``); steps, ticks and tokens are whole numbers; fractions lie in [0, 1].
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class FrozenModel(BaseModel):
    """Base of every config: immutable, strict, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=0)]
PositiveSteps = Annotated[int, Field(ge=1)]
Ticks = Annotated[int, Field(ge=0)]
Tokens = Annotated[int, Field(ge=0)]
PositiveTokens = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]  # a column of 64-bit whole numbers holds it
# Bounds of what is listed one by one in memory: far above any use, far below a machine's end.
MOST_SEEDS, MOST_DRAWS, MOST_TICKS = 1_000_000, 10_000, 2_000_000
Draws = Annotated[int, Field(ge=1, le=MOST_DRAWS)]  # matched_random runs of a policy and seed
Repeats = Annotated[int, Field(ge=1, le=1_000_000)]  # permutations, resamples, users, settings
Members = Annotated[int, Field(ge=1, le=10_000)]  # islands, sidecars: one process each
Bytes = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
