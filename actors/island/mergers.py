"""A merge in two steps that cannot be half seen: ``reduce`` computes beside, ``commit`` takes over.

Shared memory: every island of a host reads the parameters of all, computes its own slice of the
new global parameters into the spare bank, and nobody waits for anybody inside. Network: the
islands sum their pseudo-gradients bucket by bucket. Which one merges, decides ``Formation``.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from actors.config import MergeConfig, OuterConfig
from actors.island.codecs import CodecName, Feedback, decode, encode, encoded_bytes
from actors.island.comm import Communicator, Pending
from actors.island.flat import FlatParameters, cut
from actors.island.outer import chunks, keeps_locals, merge_locals, step, sum_squares
from actors.island.staging import Buckets
from actors.merge_messages import RoundPlan

_BUCKET_NUMBERS = 4 * 1024 * 1024  # summed at a time: the next is measured meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a reduction took and moved."""

    sum_squares: float  # of the mean pseudo-gradient, over this island's own part
    codec_s: float = 0.0
    all_reduce_s: float = 0.0
    outer_step_s: float = 0.0
    bytes_reduced: int = 0
    codec_error: float | None = None


class Merger(Protocol):
    """One island's side of the merges of its group, epoch by epoch."""

    def begin(self, flat: FlatParameters) -> None:
        """A new run: these parameters are the global ones, without momentum."""
        ...

    def adopt(
        self, anchor: Tensor, buffer: Tensor | None, *, feedback: Tensor | None = None
    ) -> None:
        """Global parameters and momentum [numbers] from elsewhere; None: no momentum yet.

        All members are given the same; in shared memory the first one writes it down for all.
        ``feedback``: what this island's codec owes.
        """
        ...

    def snapshot(self, fragment: int) -> None:
        """Keep what the reduction has to read while training goes on (overlap only)."""
        ...

    def reduce(self, plan: RoundPlan) -> Work:
        """Compute the new global parameters beside the present ones; can be done again."""
        ...

    def rescale(self, plan: RoundPlan) -> None:
        """The same once more with ``plan.scale``: the norm was above its limit."""
        ...

    def commit(self, plan: RoundPlan, *, mixing: float) -> None:
        """Take the reduced parameters over; ``mixing`` of the local ones stays."""
        ...

    def anchor(self) -> Tensor:
        """Copy of the global parameters [numbers]."""
        ...

    def buffer(self) -> Tensor:
        """Copy of the momentum [numbers]."""
        ...

    def feedback(self) -> Tensor | None:
        """Copy of what this island's codec owes [numbers]; None where nothing is rounded."""
        ...

    def close(self) -> None: ...


def fragment_range(numbers: int, merge: MergeConfig, fragment: int) -> tuple[int, int]:
    """[first, last) of a fragment in the flat vector."""
    return cut(numbers, parts=merge.fragments, index=fragment)


def longest_fragment(numbers: int, merge: MergeConfig) -> int:
    """Numbers of the longest fragment."""
    ranges = (fragment_range(numbers, merge, f) for f in range(merge.fragments))
    return max(last - first for first, last in ranges)


def take_over(flat: FlatParameters, anchor: Tensor, *, first: int, mixing: float) -> None:
    """Local parameters from ``first`` on become ``anchor``, or keep ``mixing`` of themselves.

    arXiv:2501.18512, algorithm 2: theta = alpha * local + (1 - alpha) * global.
    """
    blend(flat.vector[first : first + anchor.numel()], anchor, mixing=mixing)
    flat.to_model(first=first, last=first + anchor.numel())
    _finish(flat.vector)


def blend(local: Tensor, anchor: Tensor, *, mixing: float) -> None:
    """``local`` becomes ``anchor``, or keeps ``mixing`` of itself."""
    if mixing == 0.0:
        local.copy_(anchor, non_blocking=True)
    else:
        local.lerp_(anchor.to(local.device), 1.0 - mixing)


class SharedMerger:
    """Members on one host (or one alone).

    Two banks hold global parameters and momentum. A fragment's present values stand in one, the
    reduction writes the other, and a commit swaps them for this island: no copy, nothing torn.
    Extra memory: four vectors for the whole host; where merges overlap with training, a fragment
    for each island; while a group forms anew, four more and two copies for each island.
    """

    def __init__(
        self,
        flat: FlatParameters,
        outer: OuterConfig,
        merge: MergeConfig,
        *,
        rank: int,
        segments: list[Tensor],
        banks: Tensor,
    ) -> None:
        """``segments``: of each member, its parameters [numbers] and then room for a fragment."""
        numbers = flat.numbers
        self._flat, self._outer, self._merge = flat, outer, merge
        self._rank, self._segments = rank, segments
        a, b, c, d = torch.split(banks, numbers)
        self._anchors, self._buffers = (a, c), (b, d)
        self._bank = [0] * merge.fragments
        self._owed: Tensor | None = None  # to a network, which the island may come back to

    def begin(self, flat: FlatParameters) -> None:
        self._flat = flat
        self._owed = None
        # By every member, though all write the same: another one may never get to its own reset.
        self._fill(flat.vector, None)

    def adopt(
        self, anchor: Tensor, buffer: Tensor | None, *, feedback: Tensor | None = None
    ) -> None:
        self._bank = [0] * self._merge.fragments
        self._owed = feedback
        # All by the leader, before the others open the banks: a group that does not come about,
        # because one of them dies while it forms, must not leave half of what is global behind.
        if self._rank == 0:
            self._fill(anchor, buffer)

    def _fill(self, anchor: Tensor, buffer: Tensor | None) -> None:
        self._bank = [0] * self._merge.fragments
        self._anchors[0].copy_(anchor)
        if buffer is None:
            self._buffers[0].zero_()
        else:
            self._buffers[0].copy_(buffer)

    def snapshot(self, fragment: int) -> None:
        first, last = fragment_range(self._flat.numbers, self._merge, fragment)
        room = self._segments[self._rank][self._flat.numbers :]
        room[: last - first].copy_(self._flat.vector[first:last])

    def reduce(self, plan: RoundPlan) -> Work:
        began_s = time.perf_counter()
        squares = self._merge_slice(plan)
        _finish(self._flat.vector)
        return Work(sum_squares=squares, all_reduce_s=time.perf_counter() - began_s)

    def rescale(self, plan: RoundPlan) -> None:
        self._merge_slice(plan)

    def _merge_slice(self, plan: RoundPlan) -> float:
        first, last = fragment_range(self._flat.numbers, self._merge, plan.fragment)
        low, high = cut(last - first, parts=len(self._segments), index=self._rank)
        mine = slice(first + low, first + high)
        at = self._flat.numbers - first if self._merge.overlap_steps else 0
        sources = [s[mine.start + at : mine.stop + at] for s in self._segments]
        now = self._bank[plan.fragment]
        return merge_locals(
            self._outer,
            anchor=self._anchors[now][mine],
            buffer=self._buffers[now][mine],
            sources=sources,
            weights=plan.weights,
            scale=plan.scale,
            new_anchor=self._anchors[1 - now][mine],
            new_buffer=self._buffers[1 - now][mine],
        )

    def commit(self, plan: RoundPlan, *, mixing: float) -> None:
        first, last = fragment_range(self._flat.numbers, self._merge, plan.fragment)
        now = self._bank[plan.fragment] = 1 - self._bank[plan.fragment]
        # Where training went on meanwhile, the parameters are no longer those that were merged.
        exact = keeps_locals(self._outer, islands=len(self._segments))
        if self._merge.overlap_steps or not exact:
            take_over(self._flat, self._anchors[now][first:last], first=first, mixing=mixing)

    def anchor(self) -> Tensor:
        return self._present(self._anchors)

    def buffer(self) -> Tensor:
        return self._present(self._buffers)

    def _present(self, banks: tuple[Tensor, Tensor]) -> Tensor:
        whole = torch.empty_like(self._flat.vector)
        for fragment, now in enumerate(self._bank):
            first, last = fragment_range(self._flat.numbers, self._merge, fragment)
            whole[first:last].copy_(banks[now][first:last])
        return whole

    def feedback(self) -> Tensor | None:
        return None if self._owed is None else self._owed.clone()

    def close(self) -> None:
        """Nothing is open; the memory goes with its last tensor."""


class NetworkMerger:
    """Members anywhere.

    Extra memory: two vectors, a fragment and some buckets; with int8 two vectors more; while a
    group forms anew, copies of the global ones and of the debt.
    """

    def __init__(
        self,
        flat: FlatParameters,
        outer: OuterConfig,
        merge: MergeConfig,
        *,
        communicator: Communicator,
    ) -> None:
        self._flat, self._outer, self._merge = flat, outer, merge
        self._group = communicator
        staged = merge.outer_on == "host"
        place = torch.device("cpu") if staged else flat.vector.device
        pinned = staged and flat.vector.is_cuda
        self._staged = staged
        self._anchor = torch.empty(flat.numbers, device=place, pin_memory=pinned)
        self._buffer = torch.empty(flat.numbers, device=place)
        self._delta = torch.empty(longest_fragment(flat.numbers, merge), device=place)
        self._feedback = Feedback(self._anchor) if merge.codec == "int8" else None
        self._locals = Buckets(flat.vector, numbers=_BUCKET_NUMBERS, staged=staged)
        self._measured = False
        self._scale = 1.0

    def begin(self, flat: FlatParameters) -> None:
        self._flat = flat
        self._locals = Buckets(flat.vector, numbers=_BUCKET_NUMBERS, staged=self._staged)
        self.adopt(flat.vector, None)

    def adopt(
        self, anchor: Tensor, buffer: Tensor | None, *, feedback: Tensor | None = None
    ) -> None:
        self._measured = False
        self._anchor.copy_(anchor)
        if buffer is None:
            self._buffer.zero_()
        else:
            self._buffer.copy_(buffer)
        if self._feedback is not None:
            self._feedback.begin(feedback)

    def feedback(self) -> Tensor | None:
        return None if self._feedback is None else self._feedback.vector.clone()

    def snapshot(self, fragment: int) -> None:
        first, last = fragment_range(self._flat.numbers, self._merge, fragment)
        for _ in self._parts(first, last, 1.0, measured=False):
            pass
        self._measured = True

    def _parts(
        self, first: int, last: int, weight: float, *, measured: bool
    ) -> Iterator[tuple[int, int, Tensor]]:
        """(low, high, its weighted pseudo-gradient), bucket by bucket, each made when asked for."""
        if measured:
            for low, high in _buckets(first, last):
                yield low, high, self._delta[low - first : high - first].mul_(weight)
            return
        for low, high, local in self._locals.read(first, last):
            delta = self._delta[low - first : high - first]
            torch.sub(self._anchor[low:high], local, out=delta)
            yield low, high, delta if weight == 1.0 else delta.mul_(weight)

    def reduce(self, plan: RoundPlan) -> Work:
        first, last = fragment_range(self._flat.numbers, self._merge, plan.fragment)
        weight = plan.weights[self._group.rank]
        measured, self._measured = self._measured, False
        if self._merge.overlap_steps and not measured:
            raise RuntimeError(
                f"round {plan.round}: its snapshot was used up by a reduction that failed"
            )
        self._scale = plan.scale
        if self._group.world_size == 1:
            work = Work(sum_squares=0.0)
            if not measured:
                for _ in self._parts(first, last, weight, measured=False):
                    pass
        elif self._merge.codec == "fp32":
            work = self._sum_plain(first, last, weight, measured=measured)
        else:
            work = self._sum_encoded(first, last, weight, measured=measured)
        low, high = cut(last - first, parts=self._group.world_size, index=self._group.rank)
        return Work(
            sum_squares=sum_squares(self._delta[low:high]),
            codec_s=work.codec_s,
            all_reduce_s=work.all_reduce_s,
            outer_step_s=work.outer_step_s,
            bytes_reduced=work.bytes_reduced,
            codec_error=work.codec_error,
        )

    def _sum_plain(self, first: int, last: int, weight: float, *, measured: bool) -> Work:
        """All-reduce bucket by bucket: one is measured while the one before it is on its way."""
        began_s = time.perf_counter()
        measure_s = 0.0
        pending: list[Pending] = []
        try:
            parts = self._parts(first, last, weight, measured=measured)
            lap_s = time.perf_counter()
            for _, _, part in parts:
                measure_s += time.perf_counter() - lap_s
                pending.append(self._group.sum_async(part))
                lap_s = time.perf_counter()
            for one in pending:
                one.wait()
        finally:
            pending.clear()  # of a group that broke they would hold the connections open
        _finish(self._delta)
        took_s = time.perf_counter() - began_s
        return Work(
            sum_squares=0.0,
            outer_step_s=measure_s,
            all_reduce_s=took_s - measure_s,
            bytes_reduced=encoded_bytes("fp32", last - first),
        )

    def _sum_encoded(self, first: int, last: int, weight: float, *, measured: bool) -> Work:
        codec_s = all_reduce_s = outer_step_s = 0.0
        sent_bytes, lost, whole = 0, 0.0, 0.0
        lap_s = time.perf_counter()
        for low, _, part in self._parts(first, last, weight, measured=measured):
            whole += sum_squares(part)
            outer_step_s += time.perf_counter() - lap_s
            done = exchange_encoded(
                part, self._merge.codec, group=self._group, feedback=self._feedback, at=low
            )
            codec_s += done.codec_s
            all_reduce_s += done.network_s
            lost += done.squared_error
            sent_bytes += done.sent_bytes
            lap_s = time.perf_counter()
        return Work(
            sum_squares=0.0,
            codec_s=codec_s,
            all_reduce_s=all_reduce_s,
            outer_step_s=outer_step_s,
            bytes_reduced=sent_bytes,
            codec_error=float((lost / whole) ** 0.5) if whole > 0 else None,
        )

    def rescale(self, plan: RoundPlan) -> None:
        self._scale = plan.scale

    @torch.no_grad()
    def commit(self, plan: RoundPlan, *, mixing: float) -> None:
        first, last = fragment_range(self._flat.numbers, self._merge, plan.fragment)
        anchor, buffer = self._anchor[first:last], self._buffer[first:last]
        delta = self._delta[: last - first]
        exact = keeps_locals(self._outer, islands=self._group.world_size)
        if exact and not self._merge.overlap_steps:
            anchor.copy_(self._flat.vector[first:last])
        else:
            local = self._flat.vector[first:last]
            for part in chunks(anchor):  # while it is in the core's cache
                self._step(delta[part], anchor[part], buffer[part])
                blend(local[part], anchor[part], mixing=mixing)
            self._flat.to_model(first=first, last=last)
            _finish(self._flat.vector)
        if self._feedback is not None and self._group.world_size > 1:  # alone nothing is encoded
            self._feedback.commit(first, last)

    def _step(self, delta: Tensor, anchor: Tensor, buffer: Tensor) -> None:
        if self._outer.kind == "none":
            anchor.sub_(delta)
            return
        if self._scale != 1.0:
            delta.mul_(self._scale)
        step(self._outer, delta, anchor, buffer, anchor, buffer)

    def anchor(self) -> Tensor:
        return self._anchor.clone()

    def buffer(self) -> Tensor:
        return self._buffer.clone()

    def close(self) -> None:
        self._group.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """What the encoded sum of one bucket took, and what its rounding lost."""

    codec_s: float
    network_s: float
    sent_bytes: int  # encoded, once over all ranks
    squared_error: float


@torch.no_grad()
def exchange_encoded(
    bucket: Tensor, codec: CodecName, *, group: Communicator, feedback: Feedback | None, at: int
) -> Exchanged:
    """Sum ``bucket`` [numbers] over the group in place, encoded on the wire.

    Every rank gets its share of the bucket from all, adds them up in float32 in rank order,
    encodes the sum and sends it to all: each number travels twice, whatever the number of ranks,
    and all ranks decode the same bytes. ``at`` is the bucket's place in the flat vector.
    """
    clock = time.perf_counter
    shares = [cut(bucket.numel(), parts=group.world_size, index=r) for r in range(group.world_size)]
    sizes = [encoded_bytes(codec, last - first) for first, last in shares]
    own_first, own_last = shares[group.rank]
    began_s = clock()
    sending = torch.empty(sum(sizes), dtype=torch.uint8, device=bucket.device)
    squared_error = 0.0
    for (first, last), out in zip(shares, torch.split(sending, sizes), strict=True):
        squared_error += _encode_share(bucket[first:last], codec, feedback, at=at + first, out=out)
    encoded_s = clock()
    received = group.exchange(sending, sizes, [sizes[group.rank]] * group.world_size)
    received_s = clock()
    total, spare = bucket.new_zeros(own_last - own_first), bucket.new_empty(own_last - own_first)
    for one in torch.split(received, sizes[group.rank]) if sizes[group.rank] else ():
        decode(codec, one, out=spare)
        total.add_(spare)
    answer = torch.empty(sizes[group.rank], dtype=torch.uint8, device=bucket.device)
    encode(codec, total, out=answer)
    decode(codec, answer, out=spare)
    if feedback is not None:
        feedback.add(total.sub_(spare), at=at + own_first)
    summed_s = clock()
    every = group.exchange(
        answer.repeat(group.world_size), [sizes[group.rank]] * group.world_size, sizes
    )
    answered_s = clock()
    for (first, last), one in zip(shares, torch.split(every, sizes), strict=True):
        decode(codec, one, out=bucket[first:last])
    ended_s = clock()
    network_s = (received_s - encoded_s) + (answered_s - summed_s)
    return Exchanged(
        codec_s=(ended_s - began_s) - network_s,
        network_s=network_s,
        sent_bytes=sum(sizes),
        squared_error=squared_error,
    )


def _encode_share(
    share: Tensor, codec: CodecName, feedback: Feedback | None, *, at: int, out: Tensor
) -> float:
    if feedback is not None:
        return feedback.send(codec, share, at=at, out=out)
    before = share.clone()
    encode(codec, share, out=out)
    decode(codec, out, out=share)
    return sum_squares(before.sub_(share))


def _buckets(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Of about equal length: a tiny last one could not be shared out among the ranks."""
    count = -(-(last - first) // _BUCKET_NUMBERS)
    for index in range(count):
        low, high = cut(last - first, parts=count, index=index)
        if low < high:
            yield first + low, first + high


def _finish(vector: Tensor) -> None:
    if vector.is_cuda:
        torch.cuda.synchronize(vector.device)
