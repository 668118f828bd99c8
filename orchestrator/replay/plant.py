"""The plant of a replay: a server with continuous batching, advanced as far as is known.

Compiled loops in kernel.py; reference.py says the same step by step. See PlantConfig for the law.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.replay.config import PlantConfig

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

__all__ = ["PlantConfig", "Served", "Server", "overheads", "serve", "window_factor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """When each request had its first and its last token; NaN where that was not reached."""

    first_token_at_s: Floats  # [request]
    done_at_s: Floats  # [request]


class Server:
    """One sidecar's server, advanced bit by bit; the same bits as `serve` however it is cut."""

    def __init__(
        self,
        plant: PlantConfig,
        *,
        at_s: Floats,
        prompt_tokens: Ints,
        output_tokens: Ints,
        overheads_s: Floats,
    ) -> None:
        raise NotImplementedError

    scheduled_so_far: int  # at_s before the last `until_s`
    in_flight: int  # scheduled so far and not done before the last `until_s`
    running: int  # in the step under way
    waiting: int  # past their overhead, in no step yet

    def advance(self, until_s: float) -> None:
        """All that happens before ``until_s``; windows must be added before they are reached."""
        raise NotImplementedError

    def add_window(self, start_s: float, end_s: float, factor: float) -> None:
        raise NotImplementedError

    def served(self) -> Served:
        raise NotImplementedError


def serve(
    plant: PlantConfig,
    *,
    at_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    overheads_s: Floats,
    windows: Floats,  # [window, (start_s, end_s)]
    factors: Floats,  # [window]
    until_s: float = math.inf,
) -> Served:
    raise NotImplementedError


def overheads(plant: PlantConfig, *, seed: int, request_ids: Ints) -> Floats:
    raise NotImplementedError


def window_factor(plant: PlantConfig, *, seed: int, tick: int) -> float:
    raise NotImplementedError
