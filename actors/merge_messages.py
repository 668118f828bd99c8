"""What coordinator and islands say to each other about a merge; plain data, no tensors, no torch.

ready  ->  reduce (-> rescale)  ->  commit        every island has to answer one phase
  \\----------- abort -----------/                 before any is told the next
"""

from dataclasses import dataclass
from typing import Any, Literal

Transport = Literal["alone", "shared_memory", "network"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentName:
    """Anonymous shared memory of a live process, which others of this host and user can open."""

    pid: int
    fd: int
    token: str  # hex; stands at the segment's start, so that a reused fd is not taken for it
    numbers: int  # float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What the others have to know of an island before they can merge with it."""

    island: int
    host: str  # boot id: islands of one boot may share memory
    address: str
    port: int  # free on ``address`` when it was asked
    device: str
    numbers: int  # length of the flat parameter vector
    segment: SegmentName | None  # None where memory cannot be shared
    rounds_applied: int  # merges that the island's parameters hold
    epoch: int  # of the last group that it formed; -1: none yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Formation:
    """One group of islands; a new one has a larger epoch, and what names an older is refused."""

    epoch: int
    members: tuple[int, ...]  # in rank order
    transport: Transport
    segments: tuple[SegmentName, ...] = ()  # of the members, for shared memory
    banks: SegmentName | None = None  # the leader's shared anchor and momentum; None for the leader
    master_addr: str = ""
    master_port: int = 0
    join_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The island stands at a step boundary and waits: what it brings to the mean."""

    island: int
    round: int
    tokens: int  # since its last merge
    steps: int
    missed_rounds: int  # merges since the last one that it took part in
    wait_s: float  # from the command to the boundary
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """A round's members are settled: the same plan goes to all of them."""

    round: int
    epoch: int
    weights: tuple[float, ...]  # in rank order; their sum is 1
    fragment: int
    scale: float = 1.0  # of the mean pseudo-gradient, below 1 where it is clipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The new global parameters are computed and nothing is changed yet."""

    island: int
    round: int
    sum_squares: float  # of the mean pseudo-gradient, over this island's own part of it
    codec_s: float
    all_reduce_s: float
    outer_step_s: float
    bytes_reduced: int
    codec_error: float | None  # relative L2 error of what this island sent; None: sent as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """A file of a checkpoint as it was written."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What an island left in a checkpoint, and its rows of inner steps since the one before."""

    files: tuple[CheckpointFile, ...]
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeExport:
    """When the first island leaves the merged model for the server, and for how long a context."""

    every_merges: int | None  # None: only what the islands start from
    max_len_tokens: int
    keep_rounds: int


SERVED = "served"  # folder of exported weights, in the folder that an island's reset is given
