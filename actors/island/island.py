"""One learner island: inner AdamW steps on its own shard, and its part in a merge.

Plain object: no Ray, no threads of its own, time from the injected clock. A merge has two phases,
as in torchft: ``prepare`` meets the peers and settles the weights, ``perform`` does the work.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from actors.clock import Clock
from actors.config import InnerConfig, IslandsConfig, MergeConfig
from actors.island.checkpoint import write_checkpoint
from actors.island.comm import Communicator, LocalCommunicator
from actors.island.data import batch_at, load_corpus, shard_of
from actors.island.model import ByteLM, build_model
from actors.island.outer import OuterStep, parameter_hash, token_weight
from policies.observation import IslandProgress


class LossNotFinite(RuntimeError):
    """Training diverged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The peers have met: what this island brings to the mean."""

    tokens: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWork:
    """What the real work of a merge took, by part, and what it moved."""

    codec_s: float
    all_reduce_s: float
    outer_step_s: float
    checkpoint_s: float
    bytes_reduced: int
    pseudo_gradient_norm: float


@dataclass(slots=True)
class _State:
    """Everything that a reset makes new."""

    seed: int
    checkpoint_dir: Path | None
    model: ByteLM
    inner: torch.optim.Optimizer
    outer: OuterStep
    rows: list[dict[str, Any]]
    cursor: int = 0
    round: int = 0
    steps_since_merge: int = 0
    tokens: int = 0
    tokens_since_merge: int = 0
    first_loss: float | None = None  # since the last merge
    last_loss: float | None = None
    last_merge_at_s: float = 0.0


class Island:
    """Island number ``island`` of ``config.count``."""

    def __init__(
        self, config: IslandsConfig, merge: MergeConfig, island: int, *, clock: Clock
    ) -> None:
        self._config = config
        self._merge = merge
        self._island = island
        self._clock = clock
        self._device = torch.device(config.device)
        self._communicator: Communicator | None = LocalCommunicator() if config.count == 1 else None
        self._counters = threading.Lock()  # progress is asked for while a step runs
        self._zero_s = 0.0
        self._state: _State | None = None
        self._shard = self._load_shard()

    def _load_shard(self) -> npt.NDArray[np.uint8]:
        return shard_of(
            load_corpus(self._config.data),
            island=self._island,
            islands=self._config.count,
            seq_len_tokens=self._config.seq_len_tokens,
        )

    def connect(self, make: Callable[[], Communicator]) -> None:
        """Take the communicator that ``make`` gives, after closing the one in use."""
        self.disconnect()
        self._communicator = make()

    def disconnect(self) -> None:
        if self._communicator is not None:
            self._communicator.close()
            self._communicator = None

    def reset(self, *, seed: int, checkpoint_dir: Path | None) -> str:
        """New weights, optimizer states and data position; returns the parameter hash."""
        model = build_model(
            self._config.model, seed=seed, max_len_tokens=self._config.seq_len_tokens
        ).to(self._device)
        self._state = _State(
            seed=seed,
            checkpoint_dir=checkpoint_dir,
            model=model,
            inner=inner_optimizer(model, self._config.inner),
            outer=OuterStep(model.parameters(), self._config.outer),
            rows=[],
        )
        return parameter_hash(model)

    def begin(self, *, zero_monotonic_s: float) -> None:
        """The run clock of this arm reads 0 at ``zero_monotonic_s``."""
        self._zero_s = zero_monotonic_s

    def step(self) -> None:
        """One inner AdamW step on the next batch."""
        state = self._live()
        started_s = self._clock.now_s()
        loss = self._train_on(state, self._next_window(state))
        tokens = self._config.batch_size * self._config.seq_len_tokens
        with self._counters:
            state.cursor += 1
            state.steps_since_merge += 1
            state.tokens += tokens
            state.tokens_since_merge += tokens
            state.first_loss = loss if state.first_loss is None else state.first_loss
            state.last_loss = loss
            state.rows.append(
                {
                    "island": self._island,
                    "round": state.round,
                    "step": state.cursor,
                    "at_s": started_s - self._zero_s,
                    "loss": loss,
                    "tokens": tokens,
                    "step_s": self._clock.now_s() - started_s,
                }
            )

    def _next_window(self, state: _State) -> Tensor:
        window = batch_at(
            self._shard,
            seed=state.seed,
            island=self._island,
            cursor=state.cursor,
            batch_size=self._config.batch_size,
            seq_len_tokens=self._config.seq_len_tokens,
        )
        return torch.from_numpy(window).to(self._device)  # [batch, seq_len + 1]

    def _train_on(self, state: _State, window: Tensor) -> float:
        loss = state.model.loss(window)
        state.inner.zero_grad(set_to_none=True)
        loss.backward()
        if self._config.inner.clip_norm is not None:
            nn.utils.clip_grad_norm_(state.model.parameters(), self._config.inner.clip_norm)
        state.inner.step()
        value = loss.item()
        if not math.isfinite(value):
            raise LossNotFinite(
                f"island {self._island}: loss {value} at inner step {state.cursor + 1}; lower "
                "islands.inner.lr or islands.outer.lr"
            )
        return value

    def progress(self) -> IslandProgress:
        """What has been done since the last merge."""
        state = self._live()
        with self._counters:
            drop = None
            if state.steps_since_merge >= 2:
                assert state.first_loss is not None
                assert state.last_loss is not None
                drop = state.first_loss - state.last_loss
            return IslandProgress(
                island=self._island,
                steps_since_merge=state.steps_since_merge,
                tokens_since_merge=state.tokens_since_merge,
                loss_drop=drop,
                staleness_s=max(0.0, self._clock.now_s() - self._zero_s - state.last_merge_at_s),
            )

    def prepare(self) -> Prepared:
        """Meet the peers: everyone's tokens since the last merge give the weights."""
        state, communicator = self._live(), self._connected()
        counts = communicator.gather_counts(state.tokens_since_merge)
        return Prepared(
            tokens=state.tokens_since_merge, weight=token_weight(counts, rank=communicator.rank)
        )

    def perform(self, prepared: Prepared, *, round_: int, end_s: float) -> MergeWork:
        """Mean pseudo-gradient, outer step, identical parameters everywhere, checkpoint.

        ``end_s`` is the end of the window on the run clock, from which staleness counts.
        """
        state, communicator = self._live(), self._connected()
        watch = _Watch(self._clock)
        state.outer.measure(weight=prepared.weight)
        measured_s = watch.lap(self._device)
        codec_s, all_reduce_s, sent_bytes = self._sum(state.outer.delta, communicator, watch)
        norm = state.outer.apply(alone=communicator.world_size == 1)
        outer_step_s = measured_s + watch.lap(self._device)
        # Before the checkpoint: a full disk does not undo the merge.
        self._count_from(state, round_=round_, at_s=end_s)
        checkpoint_s = self._checkpoint(state, communicator, round_=round_, watch=watch)
        return MergeWork(
            codec_s=codec_s,
            all_reduce_s=all_reduce_s,
            outer_step_s=outer_step_s,
            checkpoint_s=checkpoint_s,
            bytes_reduced=sent_bytes,
            pseudo_gradient_norm=norm,
        )

    def _sum(
        self, delta: Tensor, communicator: Communicator, watch: "_Watch"
    ) -> tuple[float, float, int]:
        """Sum ``delta`` over the islands in place; codec and all-reduce seconds, bytes sent."""
        wire = delta.to(torch.bfloat16) if self._merge.codec == "bf16" else delta
        codec_s = watch.lap(self._device) if wire is not delta else 0.0
        communicator.sum_in_place(wire)
        all_reduce_s = watch.lap(self._device)
        if wire is not delta:
            delta.copy_(wire)
            codec_s += watch.lap(self._device)
        sent = 0 if communicator.world_size == 1 else wire.numel() * wire.element_size()
        return codec_s, all_reduce_s, sent

    def _checkpoint(
        self, state: _State, communicator: Communicator, *, round_: int, watch: "_Watch"
    ) -> float:
        """Seconds that rank 0 took to store the merged model; the others have nothing to do."""
        if not self._merge.checkpoint or state.checkpoint_dir is None or communicator.rank != 0:
            return 0.0
        write_checkpoint(state.checkpoint_dir, state.model, round_=round_)
        return watch.lap(self._device)

    def _count_from(self, state: _State, *, round_: int, at_s: float) -> None:
        with self._counters:
            state.round = round_
            state.steps_since_merge = 0
            state.tokens_since_merge = 0
            state.first_loss = None
            state.last_merge_at_s = at_s

    @property
    def last_loss(self) -> float | None:
        return self._live().last_loss

    def parameter_hash(self) -> str:
        return parameter_hash(self._live().model)

    def summary(self) -> dict[str, Any]:
        """Rows of all inner steps since the reset, and their totals."""
        state = self._live()
        with self._counters:
            return {
                "rows": list(state.rows),
                "parameter_hash": parameter_hash(state.model),
                "tokens": state.tokens,
                "steps": state.cursor,
            }

    def _live(self) -> _State:
        if self._state is None:
            raise RuntimeError(f"island {self._island}: call reset before this")
        return self._state

    def _connected(self) -> Communicator:
        if self._communicator is None:
            raise RuntimeError(f"island {self._island}: call join before a merge")
        return self._communicator


class _Watch:
    """Seconds between laps, with the device's queue emptied at each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s = clock.now_s()

    def lap(self, device: torch.device) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        last_s, self._last_s = self._last_s, self._clock.now_s()
        return self._last_s - last_s


def inner_optimizer(model: nn.Module, config: InnerConfig) -> torch.optim.Optimizer:
    """AdamW; norms are not decayed."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)
