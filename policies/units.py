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
Bytes = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
