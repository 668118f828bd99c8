"""Islands in pure Python that really train and merge, so that a wrong merge shows in numbers.

They follow the protocol of actors/island: every member computes its slice of the new global
parameters into a spare bank, a commit takes the whole bank over, and a new formation has new banks.
Processes die, freeze and answer with errors where a test says so.
"""

import asyncio
import hashlib
import inspect
import itertools
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from actors.config import (
    DataConfig,
    ElasticConfig,
    FillConfig,
    InnerConfig,
    IslandsConfig,
    MergeConfig,
    ModelConfig,
    OuterConfig,
)
from actors.coordinator.calls import Caller
from actors.coordinator.group_keeper import GroupKeeper
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

Vector = npt.NDArray[np.float64]
NUMBERS = 7  # of parameters: no multiple of any number of islands here


class Gone(Exception):
    """The process is lost."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to an island when ``method`` is called for the ``nth`` time (from 1 on)."""

    island: int
    method: str
    do: Literal["dies", "freezes", "errors"]
    when: Literal["before", "after"] = "before"  # the method has done its work
    nth: int = 1
    always: bool = False  # from the nth time on
    freeze_s: float = math.inf
    also: Callable[[], None] | None = None  # called when it happens
    happened: int = 0


@dataclass(slots=True, kw_only=True)
class State:
    """What a reset makes new; ``local`` is what others can read in shared memory."""

    seed: int
    shards: tuple[int, ...]
    local: Vector
    cursor: int = 0
    tokens: int = 0
    tokens_since_merge: int = 0
    steps_since_merge: int = 0
    rounds_applied: int = 0
    missed_rounds: int = 0
    last_merge_at_s: float = 0.0
    snapshot: Vector | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)


class Group:
    """Banks of one formation; the spare one holds nan until all slices are computed."""

    def __init__(self, formation: Formation, anchor: Vector, buffer: Vector) -> None:
        self.formation = formation
        self.anchors = [anchor.copy(), np.full_like(anchor, np.nan)]
        self.buffers = [buffer.copy(), np.full_like(buffer, np.nan)]
        self.sources: dict[int, State] = {}
        self.reducing: tuple[int, int] | None = None  # round and fragment that the spare is for


class World:
    """All islands, and what can happen to them."""

    def __init__(
        self,
        count: int,
        *faults: Fault,
        islands: IslandsConfig | None = None,
        merge: MergeConfig | None = None,
        hosts: tuple[str, ...] = (),
        numbers: tuple[int, ...] = (),
    ) -> None:
        self.islands = islands or islands_config(count)
        self.merge = merge or merge_config()
        self.faults = list(faults)
        self.hosts = hosts or ("host",) * count
        self.numbers = numbers or (NUMBERS,) * count
        self.pids = itertools.count(1000)
        self.groups: dict[tuple[int, tuple[int, ...]], Group] = {}
        self.saved: dict[tuple[str, str], Any] = {}
        self.called: list[tuple[int, str]] = []
        self.commits: list[tuple[int, int]] = []  # island, round
        self.trained: list[tuple[int, int, float]] = []  # island, inner step, run clock
        self.wrong: list[str] = []  # what must never happen; a coordinator sees only an error
        self.step_s = 1.0  # real time of an inner step
        self.handles = {i: Handle(self, i) for i in range(count)}

    def keeper(self) -> GroupKeeper:
        """As a coordinator that has just begun makes one."""
        caller = Caller(is_gone=lambda error: isinstance(error, Gone))
        return GroupKeeper(self.handles, islands=self.islands, merge=self.merge, caller=caller)

    def newcomer(self) -> "Handle":
        """One island more, which no keeper knows yet."""
        island = len(self.handles)
        self.handles[island] = Handle(self, island)
        return self.handles[island]

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)
            raise AssertionError(what)

    def local(self, island: int) -> Vector:
        return self.handles[island].process.state.local.copy()

    def locals_equal(self, *islands: int) -> bool:
        """All of them have the same parameters, to the bit."""
        return len({self.local(i).tobytes() for i in islands}) == 1

    async def reset(self, seed: int = 3) -> None:
        for handle in self.handles.values():
            await handle.reset.remote(seed, "folder", None)

    async def train(self, steps: int) -> None:
        for handle in self.handles.values():
            await handle.advance.remote(steps, 0.0)


class Method:
    def __init__(self, handle: "Handle", name: str) -> None:
        self._handle, self._name = handle, name

    def remote(self, *args: Any) -> "asyncio.Task[Any]":
        return asyncio.ensure_future(self._handle.call(self._name, args))


class Handle:
    """Like Ray's handle of an actor that is started anew when its process is lost."""

    def __init__(self, world: World, island: int) -> None:
        self.world, self.island = world, island
        self.process = Process(world, island)
        self.counts: dict[str, int] = {}

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)

    async def call(self, name: str, args: tuple[Any, ...]) -> Any:
        process = self.process
        self.world.called.append((self.island, name))
        try:
            given = [await a if inspect.isawaitable(a) else a for a in args]
        except Gone as error:
            raise RuntimeError("an argument was lost with its process") from error
        await process.stands()
        self.counts[name] = nth = self.counts.get(name, 0) + 1
        await self._reach(process, name, nth, "before")
        if name == "advance":
            await asyncio.sleep(given[0] * self.world.step_s)
            await process.stands()
        answer = getattr(process, name)(*given)
        await self._reach(process, name, nth, "after")
        return answer

    async def _reach(self, process: "Process", name: str, nth: int, when: str) -> None:
        for fault in self.world.faults:
            here = (fault.island, fault.method, fault.when) == (self.island, name, when)
            if not here or not (nth == fault.nth or (fault.always and nth > fault.nth)):
                continue
            fault.happened += 1
            if fault.also is not None:
                fault.also()
            if fault.do == "errors":
                raise RuntimeError(f"planned error in {name}")
            if fault.do == "dies":
                self.kill()
                raise Gone(f"killed in {name}")
            await process.freeze(fault.freeze_s)

    def kill(self) -> None:
        """The process is lost with every call in it, and Ray starts another one."""
        process, self.process = self.process, Process(self.world, self.island)
        process.die()


class Process:
    """One process of an island; methods as those of StepIslandActor."""

    def __init__(self, world: World, island: int) -> None:
        self._world, self._island = world, island
        self.pid = next(world.pids)
        self._running = asyncio.Event()
        self._running.set()
        self._alive = True
        self._state: State | None = None
        self._group: Group | None = None
        self._kept: tuple[Vector, Vector] | None = None
        self._bank: list[int] = []
        self._epoch = -1
        self._open_round: int | None = None

    # Life

    def die(self) -> None:
        self._alive = False
        self._running.set()

    async def stands(self) -> None:
        """Return when the process runs; Gone when it died meanwhile."""
        await self._running.wait()
        if not self._alive:
            raise Gone(f"island {self._island}")

    async def freeze(self, seconds: float) -> None:
        """Stopped for so long, as by SIGSTOP: no call of it goes on."""
        self._running.clear()
        if math.isfinite(seconds):
            asyncio.get_running_loop().call_later(seconds, self._running.set)
        await self.stands()

    @property
    def state(self) -> State:
        if self._state is None:
            raise RuntimeError("call reset before this")
        return self._state

    # What coordinators call

    def process_id(self) -> int:
        return self.pid

    def reset(self, seed: int, folder: str | None, shards: tuple[int, ...] | None) -> str:
        numbers = self._world.numbers[self._island % len(self._world.numbers)]
        rng = np.random.default_rng(seed)
        self._state = State(
            seed=seed,
            shards=(self._island,) if shards is None else shards,
            local=rng.normal(size=numbers),
        )
        self._group, self._kept, self._open_round = None, None, None
        return self._hash()

    def introduce(self) -> Introduction:
        host = self._world.hosts[self._island % len(self._world.hosts)]
        return Introduction(
            island=self._island,
            host=host,
            address=f"{host}.example",
            port=7000 + self._island,
            device="cpu",
            numbers=len(self.state.local),
            segment=self._name(),
            rounds_applied=self.state.rounds_applied,
            epoch=self._epoch,
        )

    def _name(self) -> SegmentName:
        return SegmentName(pid=self.pid, fd=9, token="ab", numbers=len(self.state.local))

    def can_share_with(self, segments: tuple[SegmentName, ...]) -> bool:
        return True

    def form(self, formation: Formation) -> SegmentName | None:
        if formation.epoch <= self._epoch:
            raise RuntimeError(f"group {formation.epoch} after {self._epoch}")
        anchor, buffer = self._now_global()
        self._epoch = formation.epoch
        pids = tuple(self._world.handles[i].process.pid for i in formation.members)
        key = (formation.epoch, pids)  # new processes begin to count anew
        group = self._world.groups.get(key)
        if group is None:
            group = self._world.groups[key] = Group(formation, anchor, buffer)
        same = np.array_equal(group.anchors[0], anchor) and np.array_equal(group.buffers[0], buffer)
        self._world.require(same, "members of a group bring different global parameters")
        group.sources[self._island] = self.state
        self._group, self._kept = group, None
        self._bank = [0] * self._world.merge.fragments
        leads = formation.transport == "shared_memory" and formation.banks is None
        return self._name() if leads else None

    def _now_global(self) -> tuple[Vector, Vector]:
        if self._group is None:
            if self._kept is not None:
                return self._kept
            return self.state.local.copy(), np.zeros_like(self.state.local)
        return self._present(self._group.anchors), self._present(self._group.buffers)

    def _present(self, banks: list[Vector]) -> Vector:
        whole = np.empty_like(banks[0])
        for fragment, bank in enumerate(self._bank):
            part = self._fragment(fragment)
            whole[part] = banks[bank][part]
        self._world.require(bool(np.isfinite(whole).all()), "half a merge can be seen")
        return whole

    def _fragment(self, fragment: int) -> slice:
        return _cut(len(self.state.local), parts=self._world.merge.fragments, index=fragment)

    def ready(self, round_: int, fragment: int) -> Ready:
        self._open_round = round_
        self.state.snapshot = self.state.local.copy()
        return Ready(
            island=self._island,
            round=round_,
            tokens=self.state.tokens_since_merge,
            steps=self.state.steps_since_merge,
            missed_rounds=self.state.missed_rounds,
            wait_s=0.0,
            loss=1.0,
        )

    def reduce(self, plan: RoundPlan) -> Reduced:
        group = self._check(plan)
        if group.reducing != (plan.round, plan.fragment):
            group.reducing = (plan.round, plan.fragment)
            spare = 1 - self._bank[plan.fragment]
            group.anchors[spare][self._fragment(plan.fragment)] = np.nan
        return Reduced(
            island=self._island,
            round=plan.round,
            sum_squares=self._merge_slice(plan, group),
            codec_s=0.0,
            all_reduce_s=0.0,
            outer_step_s=0.0,
            bytes_reduced=0,
            codec_error=None,
        )

    def rescale(self, plan: RoundPlan) -> None:
        self._merge_slice(plan, self._check(plan))

    def _merge_slice(self, plan: RoundPlan, group: Group) -> float:
        members, outer = group.formation.members, self._world.islands.outer
        whole = self._fragment(plan.fragment)
        part = _cut(whole.stop - whole.start, parts=len(members), index=members.index(self._island))
        mine = slice(whole.start + part.start, whole.start + part.stop)
        bank = self._bank[plan.fragment]
        anchor, buffer = group.anchors[bank][mine], group.buffers[bank][mine]
        overlaps = self._world.merge.overlap_steps > 0
        mean = np.zeros_like(anchor)
        for member, weight in zip(members, plan.weights, strict=True):
            state = group.sources[member]
            source = state.snapshot if overlaps else state.local
            assert source is not None
            mean += weight * source[mine]
        delta = anchor - mean
        momentum = outer.momentum * buffer + plan.scale * delta
        step = plan.scale * delta + outer.momentum * momentum
        group.buffers[1 - bank][mine] = momentum
        group.anchors[1 - bank][mine] = anchor - outer.lr * step
        return float(delta @ delta)

    def _check(self, plan: RoundPlan) -> Group:
        group = self._group
        if group is None or (plan.round, plan.epoch) != (self._open_round, self._epoch):
            raise RuntimeError(
                f"round {plan.round} of group {plan.epoch}, but open is {self._open_round} of "
                f"{self._epoch}"
            )
        return group

    def commit(self, plan: RoundPlan, end_s: float) -> str:
        group, part = self._check(plan), self._fragment(plan.fragment)
        self._bank[plan.fragment] = bank = 1 - self._bank[plan.fragment]
        merged = group.anchors[bank][part]
        self._world.require(bool(np.isfinite(merged).all()), "half a merge is taken over")
        mixing = self._world.merge.overlap_mixing if self._world.merge.overlap_steps else 0.0
        self.state.local[part] = mixing * self.state.local[part] + (1 - mixing) * merged
        self._open_round = None
        self._world.commits.append((self._island, plan.round))
        self._count_from(rounds_applied=plan.round + 1, at_s=end_s)
        return self._hash()

    def abort(self, round_: int) -> None:
        if self._open_round == round_:
            self._open_round = None

    def global_state(self) -> dict[str, Any]:
        if self._group is None:
            raise RuntimeError("call form before a merge")
        anchor, buffer = self._now_global()
        return {"anchor": anchor, "buffer": buffer, "rounds": self.state.rounds_applied}

    def adopt(self, given: dict[str, Any], keep_steps: bool, cursor: int, at_s: float) -> None:
        state, (anchor, _) = self.state, self._now_global()
        missed = given["rounds"] - state.rounds_applied
        if keep_steps:
            state.local += given["anchor"] - anchor
            state.missed_rounds += missed
        else:
            state.local[:] = given["anchor"]
            self._count_from(rounds_applied=given["rounds"], at_s=at_s)
        state.rounds_applied, state.cursor = given["rounds"], cursor
        self._group, self._kept = None, (given["anchor"].copy(), given["buffer"].copy())
        self._open_round = None

    def _count_from(self, *, rounds_applied: int, at_s: float) -> None:
        state = self.state
        state.rounds_applied, state.missed_rounds, state.last_merge_at_s = rounds_applied, 0, at_s
        state.tokens_since_merge = state.steps_since_merge = 0

    def advance(self, steps: int, from_s: float) -> IslandProgress:
        state = self.state
        for number in range(steps):
            at_s = from_s + number * self._world.islands.step_interval_s
            state.cursor += 1
            for shard in state.shards:
                places = np.arange(len(state.local))
                state.local += 0.1 * np.sin(0.37 * state.cursor + shard + 0.5 * places)
                tokens = 10 + shard
                state.tokens += tokens
                state.tokens_since_merge += tokens
                state.rows.append(_row(self._island, state, at_s=at_s, tokens=tokens))
            state.steps_since_merge += 1
            self._world.trained.append((self._island, state.cursor, at_s))
        return self.progress(from_s + steps * self._world.islands.step_interval_s)

    def progress(self, at_s: float) -> IslandProgress:
        state = self.state
        return IslandProgress(
            island=self._island,
            steps_since_merge=state.steps_since_merge,
            tokens_since_merge=state.tokens_since_merge,
            loss_drop=None,
            staleness_s=max(0.0, at_s - state.last_merge_at_s),
        )

    def save(self, folder: str, round_: int, lead: bool) -> Saved:
        state = self.state
        rows, state.rows = tuple(state.rows), []
        files = [self._save(folder, f"island-{self._island}.safetensors", deepcopy(state))]
        if lead:
            files.append(self._save(folder, "globals.safetensors", self._now_global()))
        return Saved(files=tuple(files), rows=rows)

    def _save(self, folder: str, name: str, what: Any) -> CheckpointFile:
        self._world.saved[folder, name] = what
        digest = hashlib.sha256(repr(what).encode()).hexdigest()
        return CheckpointFile(name=name, size_bytes=1, sha256=digest)

    def load(self, folder: str, files: tuple[CheckpointFile, ...], own: str) -> str:
        assert {own, "globals.safetensors"} <= {file.name for file in files}
        state = deepcopy(self._world.saved[folder, own])
        assert (state.seed, state.shards) == (self.state.seed, self.state.shards)
        self._state, self._group = state, None
        anchor, buffer = self._world.saved[folder, "globals.safetensors"]
        self._kept = (anchor.copy(), buffer.copy())
        return self._hash()

    def load_optimizer(self, folder: str, files: tuple[CheckpointFile, ...], own: str) -> None:
        assert own in {file.name for file in files}
        assert (folder, own) in self._world.saved

    def validation_loss(self, local: bool) -> float | None:
        if self._world.islands.data.validation_fraction == 0:
            return None
        vector = self.state.local if local else self._now_global()[0]
        return float(np.mean(vector**2))

    def _hash(self) -> str:
        return hashlib.sha256(self.state.local.tobytes()).hexdigest()[:16]


def _row(island: int, state: State, *, at_s: float, tokens: int) -> dict[str, Any]:
    return {
        "island": island,
        "round": state.rounds_applied,
        "step": state.cursor,
        "at_s": at_s,
        "loss": float(np.mean(state.local**2)),
        "tokens": tokens,
        "lr": 0.01,
        "step_s": 0.0,
    }


def _cut(numbers: int, *, parts: int, index: int) -> slice:
    return slice(numbers * index // parts, numbers * (index + 1) // parts)


def islands_config(count: int, **changes: Any) -> IslandsConfig:
    """Three inner steps a tick of 1.5 s; ``quorum`` makes it elastic."""
    quorum, late = changes.pop("quorum", None), changes.pop("late", "rebase")
    if quorum is not None:
        changes["elastic"] = ElasticConfig(quorum=quorum, grace_s=5.0, late=late)
    fields: dict[str, Any] = {
        "count": count,
        "model": ModelConfig(hidden_size=8, layers=1, heads=1, kv_heads=1, ffn_size=8),
        "data": DataConfig(source="stdlib", validation_fraction=0.1),
        "inner": InnerConfig(lr=0.01),
        "outer": OuterConfig(),
        "batch_size": 1,
        "seq_len_tokens": 8,
        "step_interval_s": 0.5,
    }
    return IslandsConfig(**(fields | changes))


def merge_config(**changes: Any) -> MergeConfig:
    """Whole checkpoints after every merge."""
    fields: dict[str, Any] = {
        "window_s": 3.0,
        "fill": FillConfig(kind="none", threads=0),
        "checkpoint_content": "full",
        "timeout_s": 20.0,
    }
    return MergeConfig(**(fields | changes))
