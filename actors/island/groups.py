"""An island's place in a group: its memory that others can open, and the merger of the epoch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from actors.config import IslandsConfig, MergeConfig
from actors.island.comm import join_group
from actors.island.flat import FlatParameters
from actors.island.mergers import Merger, NetworkMerger, SharedMerger, longest_fragment
from actors.island.segment import Segment, memory_can_be_shared
from actors.merge_messages import Formation, SegmentName


class Memory:
    """The parameters' home, the same over all runs, and behind it room for a snapshot."""

    def __init__(self, merge: MergeConfig, *, device: torch.device, label: str) -> None:
        self._merge = merge
        self._device = device
        self._label = label
        self._segment: Segment | None = None
        self._whole: Tensor | None = None

    def vector(self, numbers: int) -> Tensor:
        """Zeroed, [numbers]; shared with the host's other islands where that is possible."""
        room = longest_fragment(numbers, self._merge) if self._merge.overlap_steps else 0
        if self._whole is None or self._whole.numel() != numbers + room:
            self._whole = self._allocate(numbers + room)
        self._whole.zero_()
        return self._whole[:numbers]

    def _allocate(self, numbers: int) -> Tensor:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        if self._device.type != "cpu" or not memory_can_be_shared():
            return torch.zeros(numbers, device=self._device)
        self._segment = Segment.create(numbers, label=self._label)
        return self._segment.vector

    @property
    def name(self) -> SegmentName | None:
        """None where it cannot be shared, or before there is any."""
        return None if self._segment is None else self._segment.name

    @property
    def whole(self) -> Tensor:
        """Parameters and room."""
        if self._whole is None:
            raise RuntimeError("an island's memory is asked for before it has parameters")
        return self._whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is carried from one group into the next."""

    anchor: Tensor
    buffer: Tensor
    feedback: Tensor | None


@dataclass(slots=True, kw_only=True)
class Group:
    """One epoch."""

    formation: Formation
    merger: Merger
    banks: Segment | None = None  # of the leader, which keeps it open for the others

    @classmethod
    def form(
        cls,
        formation: Formation,
        *,
        island: int,
        config: IslandsConfig,
        merge: MergeConfig,
        flat: FlatParameters,
        memory: Memory,
    ) -> "Group":
        """JoinFailed or NotShared when the others cannot be reached."""
        rank = formation.members.index(island)
        if formation.transport == "network":
            communicator = join_group(
                rank=rank,
                world_size=len(formation.members),
                master_addr=formation.master_addr,
                master_port=formation.master_port,
                join_timeout_s=formation.join_timeout_s,
                call_timeout_s=merge.timeout_s,
                device=torch.device("cpu" if merge.outer_on == "host" else config.device),
            )
            merger = NetworkMerger(flat, config.outer, merge, communicator=communicator)
            return cls(formation=formation, merger=merger)
        if formation.transport == "alone":
            return cls.alone(
                island=island,
                config=config,
                merge=merge,
                flat=flat,
                memory=memory,
                epoch=formation.epoch,
            )
        return cls._in_shared_memory(
            formation, rank=rank, config=config, merge=merge, flat=flat, memory=memory
        )

    @classmethod
    def _in_shared_memory(
        cls,
        formation: Formation,
        *,
        rank: int,
        config: IslandsConfig,
        merge: MergeConfig,
        flat: FlatParameters,
        memory: Memory,
    ) -> "Group":
        """The leader, which forms first, makes the banks; the others open them."""
        segments = [
            memory.whole if name == memory.name else Segment.open(name).vector
            for name in formation.segments
        ]
        own = None
        if formation.banks is None:
            own = Segment.create(4 * flat.numbers, label=f"globals-{formation.epoch}")
        banks = own if own is not None else Segment.open(_named(formation.banks))
        shared = SharedMerger(
            flat, config.outer, merge, rank=rank, segments=segments, banks=banks.vector
        )
        return cls(formation=formation, merger=shared, banks=own)

    @classmethod
    def alone(
        cls,
        *,
        island: int,
        config: IslandsConfig,
        merge: MergeConfig,
        flat: FlatParameters,
        memory: Memory,
        epoch: int = -1,
    ) -> "Group":
        """A group of one, which any later one replaces."""
        merger = SharedMerger(
            flat,
            config.outer,
            merge,
            rank=0,
            segments=[memory.whole],
            banks=flat.vector.new_zeros(4 * flat.numbers),
        )
        formation = Formation(epoch=epoch, members=(island,), transport="alone")
        return cls(formation=formation, merger=merger)

    @property
    def banks_name(self) -> SegmentName | None:
        """What the others open, where this island leads a group in shared memory."""
        return None if self.banks is None else self.banks.name

    def kept(self) -> Kept:
        """Global parameters, momentum and the codec's debt, copied."""
        return Kept(
            anchor=self.merger.anchor(),
            buffer=self.merger.buffer(),
            feedback=self.merger.feedback(),
        )

    def close(self) -> None:
        self.merger.close()
        if self.banks is not None:
            self.banks.close()


def _named(banks: SegmentName | None) -> SegmentName:
    assert banks is not None
    return banks
