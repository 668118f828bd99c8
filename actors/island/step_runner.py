"""An island whose time is counted in inner steps: it trains when told to, as fast as it can.

What the run clock reads is a function of the steps, so that a run is the same to the bit however
fast the machine is, and however often it was interrupted.
"""

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from actors.config import IslandsConfig, MergeConfig
from actors.island.island import GlobalState, Island
from actors.island.island_state import (
    GLOBALS,
    load_island,
    load_optimizer,
    save_globals,
    save_island,
)
from actors.merge_messages import (
    CheckpointFile,
    Formation,
    Introduction,
    Ready,
    Reduced,
    RoundPlan,
    Saved,
    SegmentName,
)
from policies.observation import IslandProgress

P = ParamSpec("P")
T = TypeVar("T")


class SetClock:
    """Reads what it was set to."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s


def _in_turn(
    method: Callable[Concatenate["StepRunner", P], T],
) -> Callable[Concatenate["StepRunner", P], T]:
    """One at a time: a call of a coordinator that is gone may still run when a new one begins."""

    @functools.wraps(method)
    def taking_turn(self: "StepRunner", *args: P.args, **kwargs: P.kwargs) -> T:
        with self.turn:
            return method(self, *args, **kwargs)

    return taking_turn


class StepRunner:
    """What the Ray shell calls, one call at a time but for ``progress`` and ``reduce``."""

    def __init__(self, config: IslandsConfig, merge: MergeConfig, island: int) -> None:
        torch.set_num_threads(config.torch_threads)
        self._config = config
        self._merge = merge
        self._clock = SetClock()
        self._island = Island(config, merge, island, clock=self._clock)
        self.turn = threading.Lock()

    @_in_turn
    def reset(
        self, *, seed: int, folder: Path | None, shards: tuple[int, ...] | None = None
    ) -> str:
        """A new run; returns the parameter hash."""
        self._clock.at_s = 0.0
        digest = self._island.reset(seed=seed, folder=folder, shards=shards)
        self._island.begin(zero_monotonic_s=0.0)
        return digest

    def process_id(self) -> int:
        return os.getpid()

    def introduce(self, *, address: str) -> Introduction:
        return self._island.introduce(address=address)

    def can_share_with(self, segments: tuple[SegmentName, ...]) -> bool:
        return self._island.can_share_with(segments)

    @_in_turn
    def form(self, formation: Formation) -> SegmentName | None:
        return self._island.form(formation)

    @_in_turn
    def advance(self, *, steps: int, from_s: float) -> IslandProgress:
        """``steps`` inner steps, the first at ``from_s`` on the run clock."""
        for number in range(steps):
            self._clock.at_s = from_s + number * self._config.step_interval_s
            self._island.step()
        self._clock.at_s = from_s + steps * self._config.step_interval_s
        return self._island.progress()

    def progress(self, *, at_s: float) -> IslandProgress:
        """What has been done since the last merge, at ``at_s``."""
        self._clock.at_s = at_s
        return self._island.progress()

    @_in_turn
    def ready(self, *, round_: int, fragment: int) -> Ready:
        return self._island.ready(round_=round_, fragment=fragment, wait_s=0.0)

    def reduce(self, plan: RoundPlan) -> Reduced:
        return self._island.reduce(plan)

    def rescale(self, plan: RoundPlan) -> None:
        self._island.rescale(plan)

    @_in_turn
    def commit(self, plan: RoundPlan, *, end_s: float) -> str:
        """Take the merge over; the hash of what is global now."""
        self._island.commit(plan, end_s=end_s)
        return self._island.merged_hash()

    @_in_turn
    def abort(self, *, round_: int) -> None:
        self._island.abort(round_=round_)

    @_in_turn
    def global_state(self) -> GlobalState:
        return self._island.global_state()

    @_in_turn
    def adopt(self, given: GlobalState, *, keep_steps: bool, cursor: int, at_s: float) -> None:
        self._island.adopt(given, keep_steps=keep_steps, cursor=cursor, at_s=at_s)

    @_in_turn
    def save(self, folder: Path, *, round_: int, lead: bool) -> Saved:
        """The island's state, and what is global too by the one that leads."""
        files = [save_island(self._island, folder, round_=round_)]
        if lead:
            files.append(save_globals(self._island, folder))
        return Saved(files=tuple(files), rows=tuple(self._island.drain_rows()))

    @_in_turn
    def load(self, folder: Path, files: tuple[CheckpointFile, ...], *, own: str) -> str:
        """State from file ``own`` and the global one; a group has to be formed next."""
        by_name = {file.name: file for file in files}
        return load_island(self._island, folder, own=by_name[own], common=by_name[GLOBALS])

    @_in_turn
    def load_optimizer(self, folder: Path, files: tuple[CheckpointFile, ...], *, own: str) -> None:
        """The inner optimizer of file ``own``, for an island that was started anew."""
        by_name = {file.name: file for file in files}
        load_optimizer(self._island, folder, own=by_name[own])

    @_in_turn
    def write_merged(self, folder: Path, *, round_: int) -> CheckpointFile:
        """The merged model for others to load."""
        return self._island.write_merged(folder, self._island.merged_tensors(), round_=round_)

    @_in_turn
    def validation_loss(self, *, local: bool) -> float | None:
        return self._island.validation_loss(local=local)

    def drain_rows(self) -> list[dict[str, Any]]:
        return self._island.drain_rows()

    @_in_turn
    def summary(self) -> dict[str, Any]:
        return self._island.summary()

    @_in_turn
    def close(self) -> None:
        self._island.close()
