"""Islands of one process that merge with each other, for tests: bare vectors, and whole islands.

The network is a meeting of threads that sums in rank order; shared memory is the same tensors, or
for whole islands real segments that the process opens of itself.
"""

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from actors.config import FillConfig, MergeConfig, OuterConfig
from actors.coordinator.quorum import merge_weights
from actors.island.flat import FlatParameters
from actors.island.island import Island
from actors.island.mergers import (
    Merger,
    NetworkMerger,
    SharedMerger,
    Work,
    fragment_range,
    longest_fragment,
)
from actors.merge_messages import Formation, Reduced, RoundPlan

T = TypeVar("T")
TRANSPORTS: tuple[Literal["shared_memory", "network"], ...] = ("shared_memory", "network")


def merge_of(**changes: Any) -> MergeConfig:
    fields: dict[str, Any] = {"window_s": 1.0, "fill": FillConfig(kind="none", threads=0)}
    return MergeConfig(**(fields | changes))


class Meeting:
    """Where the ranks of one group exchange what they brought."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=30)
        self.slots: list[Any] = [None] * world_size

    def exchange(self, rank: int, mine: Any) -> list[Any]:
        self.slots[rank] = mine
        self.barrier.wait()
        every = list(self.slots)
        self.barrier.wait()
        return every


class Done:
    def wait(self) -> None:
        pass


class ThreadCommunicator:
    """A rank of a group whose ranks are threads."""

    def __init__(self, meeting: Meeting, *, rank: int) -> None:
        self.meeting, self.rank = meeting, rank
        self.world_size = len(meeting.slots)

    def sum_async(self, flat: Tensor) -> Done:
        first, *others = self.meeting.exchange(self.rank, flat.clone())
        total = first.clone()
        for other in others:
            total += other
        flat.copy_(total)
        return Done()

    def exchange(self, sending: Tensor, sizes: list[int], expected: list[int]) -> Tensor:
        every = self.meeting.exchange(self.rank, torch.split(sending.clone(), sizes))
        mine = [parts[self.rank] for parts in every]
        assert [part.numel() for part in mine] == expected
        return torch.cat(mine)

    def close(self) -> None:
        pass


class Vectors(nn.Module):
    """Parameters of these sizes and nothing else."""

    def __init__(self, start: npt.ArrayLike, sizes: Sequence[int]) -> None:
        super().__init__()
        whole = torch.tensor(np.asarray(start), dtype=torch.float32)
        parts = torch.split(whole, list(sizes))
        self.parts = nn.ParameterList(nn.Parameter(part.clone()) for part in parts)


class Team:
    """K islands that start alike and merge in this process; no training of their own."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        outer: OuterConfig,
        merge: MergeConfig | None = None,
        *,
        transport: str = "shared_memory",
    ) -> None:
        self.models, self.outer = models, outer
        self.config = merge_of() if merge is None else merge
        wholes: list[Tensor] = []
        self.flats = [
            FlatParameters(model, make=lambda n: self._room(n, wholes)) for model in models
        ]
        self.mergers: list[Merger] = []
        meeting = Meeting(len(models))
        banks = torch.zeros(4 * self.flats[0].numbers)
        for rank, flat in enumerate(self.flats):
            if transport == "network":
                group = ThreadCommunicator(meeting, rank=rank)
                self.mergers.append(NetworkMerger(flat, outer, self.config, communicator=group))
            else:
                self.mergers.append(
                    SharedMerger(flat, outer, self.config, rank=rank, segments=wholes, banks=banks)
                )
        for merger, flat in zip(self.mergers, self.flats, strict=True):
            merger.begin(flat)

    def _room(self, numbers: int, wholes: list[Tensor]) -> Tensor:
        room = longest_fragment(numbers, self.config) if self.config.overlap_steps else 0
        wholes.append(torch.zeros(numbers + room))
        return wholes[-1][:numbers]

    def each(self, do: Callable[[Merger], T]) -> list[T]:
        """At once, as islands do: the ranks of a network wait for each other."""
        with ThreadPoolExecutor(len(self.mergers)) as pool:
            return list(pool.map(do, self.mergers))

    def plan(self, weights: Sequence[float], *, round_: int = 0) -> RoundPlan:
        fragment = round_ % self.config.fragments
        return RoundPlan(round=round_, epoch=0, weights=tuple(weights), fragment=fragment)

    def reduce(self, plan: RoundPlan) -> list[Work]:
        return self.each(lambda merger: merger.reduce(plan))

    def commit(self, plan: RoundPlan, *, mixing: float = 0.0) -> None:
        self.each(lambda merger: merger.commit(plan, mixing=mixing))

    def merge(self, weights: Sequence[float], *, round_: int = 0, mixing: float = 0.0) -> float:
        """A whole round; the norm of the mean pseudo-gradient before it was clipped."""
        plan = self.plan(weights, round_=round_)
        norm = math.sqrt(math.fsum(work.sum_squares for work in self.reduce(plan)))
        if self.outer.clip_norm is not None and norm > self.outer.clip_norm:
            plan = replace(plan, scale=self.outer.clip_norm / norm)
            self.each(lambda merger: merger.rescale(plan))
        self.commit(plan, mixing=mixing)
        return norm

    def snapshot(self, *, round_: int) -> None:
        for merger in self.mergers:
            merger.snapshot(round_ % self.config.fragments)

    def part(self, round_: int) -> slice:
        """Of the flat vector, which a round merges."""
        numbers, fragment = self.flats[0].numbers, round_ % self.config.fragments
        return slice(*fragment_range(numbers, self.config, fragment))

    @torch.no_grad()
    def train(self, move: Callable[[int, Tensor], Tensor]) -> None:
        """``move(island, x)`` gives the new value of each parameter x."""
        for island, flat in enumerate(self.flats):
            for parameter in flat.masters:
                parameter.copy_(move(island, parameter))
            flat.to_model()

    def vector(self, island: int = 0) -> npt.NDArray[np.float32]:
        return self.flats[island].vector.detach().numpy().copy()

    def values(self) -> npt.NDArray[np.float32]:
        """The islands' one vector; they must be alike to the bit."""
        vectors = [self.vector(i) for i in range(len(self.flats))]
        assert all(np.array_equal(vectors[0], other) for other in vectors)
        return vectors[0]


def form(islands: Sequence[Island], *, epoch: int) -> None:
    """A group in shared memory, or of one alone."""
    told = [island.introduce(address="127.0.0.1") for island in islands]
    formation = Formation(
        epoch=epoch,
        members=tuple(one.island for one in told),
        transport="alone" if len(islands) == 1 else "shared_memory",
        segments=tuple(one.segment for one in told if one.segment is not None),
    )
    banks = islands[0].form(formation)
    for other in islands[1:]:
        other.form(replace(formation, banks=banks))


def meet_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups over the network are meetings of threads; ``form_network`` names them by epoch."""
    meetings: dict[int, Meeting] = {}

    def join(*, rank: int, world_size: int, master_port: int, **_: Any) -> ThreadCommunicator:
        meeting = meetings.setdefault(master_port, Meeting(world_size))
        return ThreadCommunicator(meeting, rank=rank)

    monkeypatch.setattr("actors.island.groups.join_group", join)


def form_network(islands: Sequence[Island], *, epoch: int) -> None:
    """A group over ``meet_in_threads``."""
    members = tuple(island.number for island in islands)
    for island in islands:
        island.form(Formation(epoch=epoch, members=members, transport="network", master_port=epoch))


def begin_round(
    islands: Sequence[Island], *, round_: int, epoch: int, fragments: int = 1
) -> RoundPlan:
    """All are ready; their tokens weigh."""
    fragment = round_ % fragments
    ready = [island.ready(round_=round_, fragment=fragment, wait_s=0.0) for island in islands]
    weights = merge_weights(
        [one.tokens for one in ready], [one.missed_rounds for one in ready], OuterConfig()
    )
    return RoundPlan(round=round_, epoch=epoch, weights=weights, fragment=fragment)


def end_round(islands: Sequence[Island], plan: RoundPlan) -> list[Reduced]:
    with ThreadPoolExecutor(len(islands)) as pool:
        reduced = list(pool.map(lambda island: island.reduce(plan), islands))
    for island in islands:
        island.commit(plan, end_s=0.0)
    return reduced


def merge_islands(
    islands: Sequence[Island], *, round_: int, epoch: int, fragments: int = 1
) -> RoundPlan:
    plan = begin_round(islands, round_=round_, epoch=epoch, fragments=fragments)
    end_round(islands, plan)
    return plan
