"""The plant of a replay: a server with continuous batching, all at once or as far as is known.

Compiled loop in kernel.py; reference.py says the same step by step. The law: PlantConfig.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from orchestrator.replay.config import PlantConfig
from orchestrator.replay.state import LATEST_S, NO_PACES, Floats, Ints, Served, ServerState
from policies.streams import stream

__all__ = [
    "PlantConfig",
    "Served",
    "Server",
    "overheads",
    "paces",
    "serve",
    "slow_windows",
    "window_factor",
]

MOST_TOKENS = 2**31  # of one request; sums of such counts stay exact


class Server(ServerState):
    """One sidecar in an open loop, advanced bit by bit: `serve`'s bits, however it is cut.

    Requests queue in the order in which they get there (at_s + overheads_s; ties by index). At a
    step's start as many join as slots are free; each is prefilled in that step, whose end is its
    first token, and has one more token with each step after it. A slow-down delays the work, but
    can serve one request sooner: where it moves a step's end from just before its arrival to just
    after it.
    """

    def __init__(
        self,
        plant: PlantConfig,
        *,
        at_s: Floats,
        prompt_tokens: Ints,
        output_tokens: Ints,
        overheads_s: Floats,
        paces: Floats = NO_PACES,
    ) -> None:
        """All arrays [request]. ValueError where one holds a number that no request can have."""
        at_s = _checked("at_s", at_s, size=len(at_s))
        overheads_s = _checked("overheads_s", overheads_s, size=len(at_s))
        prompt = _checked("prompt_tokens", prompt_tokens, size=len(at_s), whole=True)
        output = _checked("output_tokens", output_tokens, size=len(at_s), whole=True, least=1)
        enter_s = at_s + overheads_s
        queue = np.argsort(enter_s, kind="stable")
        times = np.full((4, len(at_s)), np.nan)
        times[:2] = at_s, enter_s[queue]
        super().__init__(
            plant,
            times=times,
            asked=np.stack([queue, prompt, output]),
            known=len(at_s),
            paces=paces,
        )
        self._sorted_at_s: list[float] = np.sort(at_s).tolist()

    @property
    def scheduled_so_far(self) -> int:
        """Requests scheduled before the last ``until_s``."""
        return bisect_left(self._sorted_at_s, self._until_s)  # a tick asks for it often


def serve(
    plant: PlantConfig,
    *,
    at_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    overheads_s: Floats,
    windows: Floats,
    factors: Floats,
    paces: Floats = NO_PACES,
    until_s: float = math.inf,
) -> Served:
    """First and last tokens of requests [request] on one server with known merge windows.

    windows [window, (start_s, end_s)] and factors [window], in order. ValueError as for `Server`.
    """
    server = Server(
        plant,
        at_s=at_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        overheads_s=overheads_s,
        paces=paces,
    )
    server.add_windows(windows, factors)
    server.advance(until_s)
    return server.served()


def overheads(plant: PlantConfig, *, seed: int, request_ids: Ints) -> Floats:
    """Seconds before each request reaches the queue, by its id: equal in every arm of a seed.

    Lognormal with median overhead_s. ValueError for a negative id.
    """
    ids = np.asarray(request_ids, np.int64)
    if ids.size == 0 or plant.overhead_log_sd == 0.0:
        return np.full(ids.shape, plant.overhead_s)
    if ids.min() < 0:
        raise ValueError(f"request id {ids.min()}; ids count up from 0")
    noise = stream(seed, "overhead").lognormal(0.0, plant.overhead_log_sd, int(ids.max()) + 1)
    return plant.overhead_s * noise[ids]


def window_factor(plant: PlantConfig, *, seed: int, tick: int) -> float:
    """How much longer steps take in the window that starts at ``tick``: the same in every arm.

    1 and a lognormal with median merge_factor - 1: a merge speeds nothing up.
    """
    if plant.merge_factor_log_sd == 0.0:
        return plant.merge_factor
    noise = stream(seed, "merge_factor", tick).lognormal(0.0, plant.merge_factor_log_sd)
    return 1.0 + (plant.merge_factor - 1.0) * noise


def slow_windows(
    plant: PlantConfig, *, seed: int, ticks: Sequence[int], windows: Floats
) -> tuple[Floats, Floats]:
    """The part of each merge window [window, 2] that slows the server, and by how much [window].

    By the windows' start ticks; one that is calm to its end is left out.
    """
    edges = np.array(windows, dtype=np.float64).reshape(-1, 2)
    factors = np.array([window_factor(plant, seed=seed, tick=t) for t in ticks], dtype=np.float64)
    if plant.merge_calm_s > 0.0:
        edges[:, 0] += [_calm_s(plant, seed=seed, tick=t) for t in ticks]
    left = edges[:, 0] < edges[:, 1]
    return edges[left], factors[left]


def _calm_s(plant: PlantConfig, *, seed: int, tick: int) -> float:
    noise = stream(seed, "merge_calm", tick).lognormal(0.0, plant.merge_calm_log_sd)
    return plant.merge_calm_s * noise


def paces(plant: PlantConfig, *, seed: int, horizon_s: float) -> Floats:
    """The server's own pace in each pace_slot_s up to the horizon; steps take so much longer.

    Lognormal with median 1, the same in every arm and on every sidecar of a seed; empty without
    noise, and 1 after the horizon.
    """
    if plant.pace_log_sd == 0.0:
        return NO_PACES
    slots = math.ceil(horizon_s / plant.pace_slot_s)
    return stream(seed, "pace").lognormal(0.0, plant.pace_log_sd, slots)


def _checked(
    name: str, values: Floats | Ints, *, size: int, whole: bool = False, least: int = 0
) -> Floats:
    """The values as an array; ValueError that names the first bad one."""
    array = np.asarray(values)
    if array.shape != (size,):
        raise ValueError(f"{name} has shape {array.shape}; one number a request is ({size},)")
    if whole and array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} holds {array.dtype}; give whole numbers")
    most = MOST_TOKENS if whole else LATEST_S
    for i in np.flatnonzero(~((array >= least) & (array <= most)))[:1]:
        raise ValueError(f"{name}[{i}]={array[i]}; give a number from {least} to {most:g}")
    return array.astype(np.int64 if whole else np.float64)
