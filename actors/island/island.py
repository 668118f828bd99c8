"""One learner island: inner AdamW steps on its own shard, and its part in a merge.

Plain object: no Ray, no threads of its own, time from the injected clock. A merge goes through
``ready``, ``reduce`` and ``commit``; until the commit nothing but spare memory has changed, so an
``abort``, a lost peer or a death at any moment leaves no half of a merge behind.
"""

import math
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actors.clock import Clock, probe_clock
from actors.config import IslandsConfig, MergeConfig, ModelConfig
from actors.island.checkpoint import merged_tensors, write_checkpoint
from actors.island.comm import free_port
from actors.island.data.dataset import Data, open_data
from actors.island.data.shards import Shard
from actors.island.export import export_checkpoint, export_initial
from actors.island.flat import FlatParameters
from actors.island.groups import Group, Kept, Memory
from actors.island.inner import InnerOptimizer
from actors.island.language_model import IGNORED, LanguageModel, labels_of
from actors.island.mergers import Merger
from actors.island.model import build_model
from actors.island.model_folder import check_vocabulary
from actors.island.outer import parameter_hash, vector_hash
from actors.island.planned_faults import PlannedFaults
from actors.island.replicas import Replicas
from actors.island.segment import NotShared, check_shared
from actors.island.windows import on_device
from actors.merge_messages import (
    CheckpointFile,
    Formation,
    Introduction,
    Ready,
    Reduced,
    RoundPlan,
    SegmentName,
    ServeExport,
)
from policies.observation import IslandProgress
from policies.streams import stream


class LossNotFinite(RuntimeError):
    """Training diverged."""


class WrongRound(RuntimeError):
    """A command for a round or a group that is not the present one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalState:
    """Global parameters and momentum after ``rounds_applied`` merges, each float32 [numbers]."""

    anchor: Tensor
    buffer: Tensor
    rounds_applied: int


@dataclass(slots=True, kw_only=True)
class Counters:
    """Where training stands."""

    cursor: int = 0  # inner steps, which is the place in the data too
    rounds_applied: int = 0  # merges that the parameters hold
    missed_rounds: int = 0  # since the last merge that the island took part in
    steps_since_merge: int = 0
    tokens: int = 0
    tokens_since_merge: int = 0
    first_loss: float | None = None  # since the last merge
    first_loss_step: int = 0  # the inner step that it is of
    last_loss: float | None = None
    last_merge_at_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything that a reset makes new."""

    seed: int
    folder: Path | None
    shards: tuple[int, ...]
    model: LanguageModel
    flat: FlatParameters
    inner: InnerOptimizer
    rows: list[dict[str, Any]]
    counters: Counters


class Island:
    """Island number ``island``; numbers from ``config.count`` on are those that join later."""

    def __init__(
        self, config: IslandsConfig, merge: MergeConfig, island: int, *, clock: Clock
    ) -> None:
        self._config = config
        self._merge = merge
        self._island = island
        self._clock = clock
        self._device = torch.device(config.device)
        self._guard = threading.Lock()  # progress is asked for while a step runs
        # A reduction may outlive the coordinator that asked for it: the group, and the memory it
        # writes to, are not given to the next one before it has ended.
        self._in_use = threading.RLock()
        self._zero_s = 0.0
        self._run: Run | None = None
        self._memory = Memory(merge, device=self._device, label=f"island-{island}")
        self._group: Group | None = None
        self._kept: Kept | None = None  # what is global, between two groups
        self._epoch = -1
        self._open_round: int | None = None
        self._brought: Ready | None = None  # to the open round
        self._faults = PlannedFaults(config.faults, island=island)
        self._replicas: Replicas | None = None
        if config.replicas > 1:
            self._replicas = Replicas(config, island=island, timeout_s=merge.timeout_s)
        self._data: Data = open_data(
            config.data,
            islands=config.shards or config.count,
            seq_len_tokens=config.seq_len_tokens,
        )
        check_vocabulary(config.model, tokens=self._data.vocab_size)
        self._shards: dict[int, Shard] = {}

    # A run

    def reset(
        self, *, seed: int, folder: Path | None, shards: tuple[int, ...] | None = None
    ) -> str:
        """New weights, optimizer states and data position; returns the parameter hash.

        ``folder``: where checkpoints go. ``shards``: the parts of the text that each step takes a
        batch of; None: the island's own.
        """
        model = build_model(
            self._config.model, seed=seed, max_len_tokens=self._config.seq_len_tokens
        ).to(self._device)
        flat = FlatParameters(model, make=self._memory.vector)
        torch.manual_seed(int(stream(seed, "dropout", self._island).integers(2**63)))
        self._run = Run(
            seed=seed,
            folder=folder,
            shards=(self._island,) if shards is None else shards,
            model=model,
            flat=flat,
            inner=InnerOptimizer(flat, self._config.inner),
            rows=[],
            counters=Counters(),
        )
        if self._replicas is not None:
            self._replicas.start(device=self._device)
            self._replicas.reset(seed=seed, shards=self._run.shards)
        self._faults.begin(folder)
        with self._in_use:
            self._open_round = self._brought = None
            self._kept = None
            if self._group is not None:
                self._group.merger.begin(flat)
            elif self._config.count == 1:
                alone = Formation(epoch=self._epoch + 1, members=(self._island,), transport="alone")
                self.form(alone)
        return parameter_hash(model)

    def begin(self, *, zero_monotonic_s: float) -> None:
        """The run clock of this arm reads 0 at ``zero_monotonic_s``."""
        self._zero_s = zero_monotonic_s

    def step(self) -> None:
        """One inner AdamW step on the next batch."""
        run = self.run
        counters = run.counters
        self._faults.reached("inner_step", step=counters.cursor + 1)
        started_s, began_s = self._clock.now_s(), time.perf_counter()
        # By the place in the data: an island that was started anew, and one that takes a batch of
        # every shard, are where the others are.
        window_tokens = self._config.batch_size * self._config.seq_len_tokens
        shard_tokens = counters.cursor * window_tokens * self._config.replicas
        if self._replicas is not None:
            self._replicas.begin_step(cursor=counters.cursor, tokens=shard_tokens)
        tokens, documents = self._next_batch(run)
        loss = run.model.loss(tokens, documents)
        loss.backward()
        value = self._averaged(run, loss)
        rate = run.inner.apply(tokens=shard_tokens)
        if self._replicas is not None:
            self._replicas.end_step()
        self._finite(value, counters.cursor + 1)
        trained = tokens.shape[0] * self._config.seq_len_tokens * self._config.replicas
        row = {
            "island": self._island,
            "round": counters.rounds_applied,
            "step": counters.cursor + 1,
            "at_s": started_s - self._zero_s,
            "loss": value,
            "tokens": trained,
            "lr": rate,
            "step_s": time.perf_counter() - began_s,
        }
        with self._guard:
            run.rows.append(row)
            counters.cursor += 1
            counters.steps_since_merge += 1
            counters.tokens += trained
            counters.tokens_since_merge += trained
            if counters.first_loss is None:
                counters.first_loss, counters.first_loss_step = value, counters.cursor
            counters.last_loss = value

    def _next_batch(self, run: Run) -> tuple[Tensor, Tensor | None]:
        return on_device(
            [
                self.shard(number).batch(
                    seed=run.seed,
                    cursor=run.counters.cursor * self._config.replicas,
                    batch_size=self._config.batch_size,
                )
                for number in run.shards
            ],
            self._device,
        )

    def shard(self, number: int) -> Shard:
        """Part ``number`` of the text."""
        if number not in self._shards:
            self._shards[number] = self._data.shard(number)
        return self._shards[number]

    def _averaged(self, run: Run, loss: Tensor) -> float:
        """Gradients and loss over all processes of the island; the loss."""
        if self._replicas is None:
            return loss.item()
        return self._replicas.average(run.flat.parameters, loss)

    def _finite(self, value: float, step: int) -> None:
        if not math.isfinite(value):
            raise LossNotFinite(
                f"island {self._island}: loss {value} at inner step {step}; lower "
                "islands.inner.lr or islands.outer.lr"
            )

    def progress(self) -> IslandProgress:
        """What has been done since the last merge."""
        with self._guard:
            counters = self.run.counters
            drop = None
            if counters.first_loss is not None and counters.cursor > counters.first_loss_step:
                assert counters.last_loss is not None
                drop = counters.first_loss - counters.last_loss
            stale_s = self._clock.now_s() - self._zero_s - counters.last_merge_at_s
            return IslandProgress(
                island=self._island,
                steps_since_merge=counters.steps_since_merge,
                tokens_since_merge=counters.tokens_since_merge,
                loss_drop=drop,
                staleness_s=max(0.0, stale_s),
            )

    @torch.no_grad()
    def validation_loss(self, *, local: bool) -> float | None:
        """Mean loss (nats per token) on the held-out text; None when none is held out.

        Of the global parameters, or with ``local`` of the island's own.
        """
        if self._config.data.validation_fraction == 0:
            return None
        run = self.run
        own = run.flat.vector.clone()
        if not local:
            run.flat.vector.copy_(self._anchor())
            run.flat.to_model()
        was_training = run.model.training
        run.model.eval()
        try:
            total, count = 0.0, 0
            for batch in self._data.validation_batches(self._config.batch_size):
                tokens, documents = on_device([batch], self._device)
                labels = int((labels_of(tokens, documents) != IGNORED).sum())
                total += float(run.model.loss(tokens, documents)) * labels
                count += labels
        finally:
            run.model.train(was_training)
            run.flat.vector.copy_(own)
            run.flat.to_model()
        return total / count

    # The group

    def introduce(self, *, address: str) -> Introduction:
        """What the others need to merge with this island, which is reached at ``address``."""
        return Introduction(
            island=self._island,
            host=probe_clock().boot_id,
            address=address,
            port=free_port(address),
            device=self._device.type,
            numbers=self.run.flat.numbers,
            segment=self._memory.name,
            rounds_applied=self.run.counters.rounds_applied,
            epoch=self._epoch,
        )

    def can_share_with(self, segments: tuple[SegmentName, ...]) -> bool:
        """The memory of all these islands can be opened from here."""
        try:
            for name in segments:
                if name != self._memory.name:
                    check_shared(name)
        except NotShared:
            return False
        return self._memory.name is not None

    def form(self, formation: Formation) -> SegmentName | None:
        """Take the place in a new group; the leader of one in shared memory names its banks.

        What is global stays. In shared memory the leader has to form first; over a network all
        have to at once.
        """
        if formation.epoch <= self._epoch:
            raise WrongRound(f"island {self._island}: group {formation.epoch} after {self._epoch}")
        kept = self._now_global()
        self.keep(kept)
        self._epoch = formation.epoch
        self._group = Group.form(
            formation,
            island=self._island,
            config=self._config,
            merge=self._merge,
            flat=self.run.flat,
            memory=self._memory,
        )
        if kept is None:
            self._group.merger.adopt(self.run.flat.vector, None)
        else:
            self._group.merger.adopt(kept.anchor, kept.buffer, feedback=kept.feedback)
        self._kept = None  # the group holds it now: two vectors less
        return self._group.banks_name

    def keep(self, kept: Kept | None) -> None:
        """Leave the group; ``kept`` is what is global for the one that is formed next."""
        self.disconnect()
        self._kept = kept

    def disconnect(self) -> None:
        """Leave the group; what others have open of its memory stays theirs."""
        with self._in_use:
            if self._group is not None:
                self._group.close()
                self._group = None

    # A merge

    def ready(self, *, round_: int, fragment: int, wait_s: float) -> Ready:
        """Stand at this step boundary for ``round_``: what the island brings to the mean."""
        counters = self.run.counters
        self._faults.reached("ready", round_=round_)
        if self._merge.overlap_steps:
            self.merger.snapshot(fragment)
        self._brought = Ready(
            island=self._island,
            round=round_,
            tokens=counters.tokens_since_merge,
            steps=counters.steps_since_merge,
            missed_rounds=counters.missed_rounds,
            wait_s=wait_s,
            loss=counters.last_loss,
        )
        self._open_round = round_
        return self._brought

    def reduce(self, plan: RoundPlan) -> Reduced:
        """Mean pseudo-gradient and new global parameters, beside the present ones."""
        with self._in_use:
            self._check(plan)
            self._faults.reached("reduce", round_=plan.round)
            work = self.merger.reduce(plan)
        return Reduced(
            island=self._island,
            round=plan.round,
            sum_squares=work.sum_squares,
            codec_s=work.codec_s,
            all_reduce_s=work.all_reduce_s,
            outer_step_s=work.outer_step_s,
            bytes_reduced=work.bytes_reduced,
            codec_error=work.codec_error,
        )

    def rescale(self, plan: RoundPlan) -> None:
        """The same again with ``plan.scale``."""
        with self._in_use:
            self._check(plan)
            self.merger.rescale(plan)

    def commit(self, plan: RoundPlan, *, end_s: float) -> None:
        """Take the merged parameters over. ``end_s``: run clock, from which staleness counts."""
        self._check(plan)
        self._faults.reached("commit", round_=plan.round)
        mixing = self._merge.overlap_mixing if self._merge.overlap_steps else 0.0
        self.merger.commit(plan, mixing=mixing)
        self.send_to_replicas()
        brought, self._brought, self._open_round = self._brought, None, None
        assert brought is not None  # the round is open
        # What was trained while the merge was under way is for the next one to weigh.
        self._count_from(
            rounds_applied=plan.round + 1,
            at_s=end_s,
            steps=self.run.counters.steps_since_merge - brought.steps,
            tokens=self.run.counters.tokens_since_merge - brought.tokens,
        )

    def abort(self, *, round_: int) -> None:
        """The round does not take place; training goes on from where it stands."""
        if self._open_round == round_:
            self._open_round = self._brought = None

    def _check(self, plan: RoundPlan) -> None:
        epoch = None if self._group is None else self._group.formation.epoch
        if plan.round != self._open_round or plan.epoch != epoch:
            raise WrongRound(
                f"island {self._island}: round {plan.round} of group {plan.epoch}, but open is "
                f"round {self._open_round} of group {epoch}"
            )

    def _count_from(
        self, *, rounds_applied: int, at_s: float, steps: int = 0, tokens: int = 0
    ) -> None:
        """Stand on the last merge, with ``steps`` and ``tokens`` beyond it."""
        counters = self.run.counters
        with self._guard:
            counters.rounds_applied = rounds_applied
            counters.missed_rounds = 0
            counters.steps_since_merge = steps
            counters.tokens_since_merge = tokens
            counters.first_loss = None
            counters.last_merge_at_s = at_s

    # Coming back

    def global_state(self) -> GlobalState:
        """For an island that joins, or that missed a merge."""
        kept = self._now_global()  # also between two groups
        if kept is None:
            raise RuntimeError(f"island {self._island}: call form before a merge")
        return GlobalState(
            anchor=kept.anchor.cpu(),
            buffer=kept.buffer.cpu(),
            rounds_applied=self.run.counters.rounds_applied,
        )

    def adopt(self, given: GlobalState, *, keep_steps: bool, cursor: int, at_s: float) -> None:
        """Stand on the last merge of the others; a group with them has to be formed next.

        ``keep_steps``: the steps since this island's own last merge are carried over onto the
        merged parameters (they count as stale); else they are dropped. ``cursor``: the others'
        inner steps, so that the data go on there.
        """
        run, before = self.run, self._now_global()
        keep_steps = keep_steps and before is not None
        anchor = given.anchor.to(self._device)
        with torch.no_grad():
            if before is not None and keep_steps:
                # In this order: what was trained is small, and a large sum would round it.
                run.flat.vector.sub_(before.anchor).add_(anchor)
            else:
                run.flat.vector.copy_(anchor)
        run.flat.to_model()
        self.send_to_replicas()
        owed = None if before is None else before.feedback
        self.keep(Kept(anchor=anchor, buffer=given.buffer.to(self._device), feedback=owed))
        self._open_round = self._brought = None
        missed = given.rounds_applied - run.counters.rounds_applied
        if not keep_steps:
            self._count_from(rounds_applied=given.rounds_applied, at_s=at_s)
        with self._guard:
            run.counters.rounds_applied = given.rounds_applied
            run.counters.missed_rounds += missed if keep_steps else 0
            run.counters.cursor = cursor

    def send_to_replicas(self) -> None:
        """What a merge or a checkpoint made of the parameters, to the island's other processes."""
        if self._replicas is not None:
            self._replicas.take_over(self.run.flat.vector)

    def load_replicas(self, path: Path) -> None:
        """Optimizer state of the island's file, and the parameters as they stand now."""
        if self._replicas is not None:
            self._replicas.load(path)
            self.send_to_replicas()

    def close(self) -> None:
        """Leave the group and end the island's other processes."""
        self.disconnect()
        if self._replicas is not None:
            self._replicas.close()

    def _now_global(self) -> Kept | None:
        """Copies; None before this island was ever in a group."""
        return self._kept if self._group is None else self._group.kept()

    def _anchor(self) -> Tensor:
        """The global parameters [numbers], not to be changed; also between two groups."""
        if self._group is None and self._kept is not None:
            return self._kept.anchor
        return self.merger.anchor()

    def owed(self) -> Tensor | None:
        """What this island's codec owes [numbers]; None where nothing is rounded."""
        if self._group is None:
            return None if self._kept is None else self._kept.feedback
        return self._group.merger.feedback()

    # The record

    @property
    def last_loss(self) -> float | None:
        return self.run.counters.last_loss

    @property
    def steps(self) -> int:
        """Inner steps since the reset."""
        return self.run.counters.cursor

    @property
    def rank(self) -> int:
        """Place in the present group."""
        if self._group is None:
            raise RuntimeError(f"island {self._island}: call form before a merge")
        return self._group.formation.members.index(self._island)

    def merged_tensors(self) -> dict[str, Tensor]:
        """The merged model by parameter name; copies of a moment."""
        return merged_tensors(self.run.model, self.run.flat, self._anchor())

    def write_merged(
        self, folder: Path, tensors: dict[str, Tensor], *, round_: int
    ) -> CheckpointFile:
        """The merged model for others to load; DiskFull leaves the one before."""
        return write_checkpoint(
            folder,
            tensors,
            round_=round_,
            keep=self._merge.checkpoint_keep,
            halfway=lambda: self._faults.reached("checkpoint", round_=round_),
        )

    def export_merged(self, folder: Path, export: ServeExport, *, round_: int) -> Path:
        """The merged model as a server loads it; only the byte-level model has that form."""
        model = self._config.model
        assert isinstance(model, ModelConfig)  # the study refuses others
        return export_checkpoint(
            self.merged_tensors(),
            model,
            folder,
            round_=round_,
            max_len_tokens=export.max_len_tokens,
            keep=export.keep_rounds,
        )

    def export_start(self, folder: Path, export: ServeExport, *, seed: int) -> Path:
        """The weights that every island of ``seed`` starts from, as a server loads them."""
        model = self._config.model
        assert isinstance(model, ModelConfig)  # the study refuses others
        return export_initial(model, folder, seed=seed, max_len_tokens=export.max_len_tokens)

    def parameter_hash(self) -> str:
        return parameter_hash(self.run.model)

    def merged_hash(self) -> str:
        """Of what is global: after a merge the same on every island of the group.

        That is the model itself, unless a merge takes one fragment or overlaps with training.
        """
        if self._merge.fragments == 1 and not self._merge.overlap_steps:
            return self.parameter_hash()
        return vector_hash(self._anchor())

    def reached_checkpoint(self, *, round_: int) -> None:
        """The checkpoint after ``round_`` is half written: where a planned fault may happen."""
        self._faults.reached("checkpoint", round_=round_)

    def drain_rows(self) -> list[dict[str, Any]]:
        """Rows of the inner steps since the last call."""
        with self._guard:
            rows, self.run.rows = self.run.rows, []
            return rows

    def summary(self) -> dict[str, Any]:
        """Rows of the inner steps that were not drained, and the totals since the reset."""
        rows = self.drain_rows()
        return {
            "rows": rows,
            "parameter_hash": self.parameter_hash(),
            "tokens": self.run.counters.tokens,
            "steps": self.run.counters.cursor,
            "cpu_s": time.process_time(),
        }

    @property
    def run(self) -> Run:
        if self._run is None:
            raise RuntimeError(f"island {self._island}: call reset before this")
        return self._run

    @property
    def merger(self) -> Merger:
        if self._group is None:
            raise RuntimeError(f"island {self._island}: call form before a merge")
        return self._group.merger

    @property
    def epoch(self) -> int:
        """Of the present group."""
        return self._epoch

    @property
    def replica_processes(self) -> tuple[subprocess.Popen[bytes], ...]:
        """The island's processes beside this one."""
        return () if self._replicas is None else self._replicas.processes

    @property
    def number(self) -> int:
        return self._island

    @property
    def guard(self) -> threading.Lock:
        """Held while counters change."""
        return self._guard
