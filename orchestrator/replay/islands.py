"""Paced islands without tensors: how many inner steps are done at a tick, and a stated loss.

The counts are those of actors/island at a perfect pace; the loss is a shape, fitted to nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from actors.events import MergePart, StartMerge
from orchestrator.config import StudyConfig
from policies.observation import IslandProgress
from policies.streams import stream
from policies.ticks import ticks_within

# Simulated, so that a score has a loss_drop: loss(n) = END + (START - END) / sqrt(1 + n / SCALE)
# plus normal noise, at inner step n. START is that of a byte-level model that knows nothing.
LOSS_START = 5.5
LOSS_END = 2.0
LOSS_SCALE_STEPS = 100.0
LOSS_NOISE = 0.05
PARAMETER_HASH = "replay: no parameters"  # equal on all islands, as after a real merge


@lru_cache(maxsize=8)
def steps_by_gap(*, step_interval_s: float, tick_s: float, horizon_ticks: int) -> tuple[int, ...]:
    """Inner steps that have passed g ticks after a start, g = 0..horizon_ticks.

    A step has passed when the next one is due: floor, as the corridor turns steps into ticks.
    """
    return tuple(
        ticks_within(g * tick_s, tick_s=step_interval_s, what="a gap of ticks")
        for g in range(horizon_ticks + 1)
    )


def loss_curves(*, islands: int, steps: int, seed: int) -> tuple[tuple[float, ...], ...]:
    """The simulated loss of each inner step, equal in every arm of a seed.  # [island][step]"""
    fall = LOSS_END + (LOSS_START - LOSS_END) / np.sqrt(1.0 + np.arange(steps) / LOSS_SCALE_STEPS)
    return tuple(
        tuple((fall + LOSS_NOISE * stream(seed, "replay loss", i).normal(size=steps)).tolist())
        for i in range(islands)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What is the same in every arm of a seed."""

    steps: tuple[int, ...]  # [ticks since a start]
    losses: tuple[tuple[float, ...], ...]  # [island][step]
    tokens_per_step: int
    step_interval_s: float
    tick_s: float


def make_pace(study: StudyConfig, *, seed: int, horizon_ticks: int) -> Pace:
    """ValueError for unpaced islands, whose steps no clock tells, and where nothing is served."""
    if study.clock == "steps":
        raise ValueError(
            "clock: is 'steps': such a study trains and serves nothing, so a replay of its server "
            "would judge what does not exist; `lull run` trains it, or set clock: wall"
        )
    islands = study.islands
    steps = steps_by_gap(
        step_interval_s=islands.step_interval_s, tick_s=study.tick_s, horizon_ticks=horizon_ticks
    )
    return Pace(
        steps=steps,
        losses=loss_curves(islands=islands.count, steps=steps[-1] + 1, seed=seed),
        tokens_per_step=islands.batch_size * islands.seq_len_tokens,
        step_interval_s=islands.step_interval_s,
        tick_s=study.tick_s,
    )


class PacedIslands:
    """All islands of one arm; they do the same at the same time, but for the loss."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._from_tick = 0  # since when they train; a window's end while in it
        self._cursor = 0  # inner steps before that
        self._stretches: list[tuple[int, int, int, int]] = []  # round, from tick, cursor, steps
        self._round = 0

    def progress(self, tick: int, *, now_s: float) -> tuple[IslandProgress, ...]:
        """Since the last merge: nothing yet inside its window, whose end staleness counts from."""
        pace = self._pace
        since = tick - self._from_tick
        steps = pace.steps[since] if since > 0 else 0
        first, last = self._cursor, self._cursor + steps - 1
        stale_s = max(0.0, now_s - self._from_tick * pace.tick_s)
        return tuple(
            [
                IslandProgress(
                    island=i,
                    steps_since_merge=steps,
                    tokens_since_merge=steps * pace.tokens_per_step,
                    loss_drop=losses[first] - losses[last] if steps >= 2 else None,
                    staleness_s=stale_s,
                )
                for i, losses in enumerate(pace.losses)
            ]
        )

    def pause(self, *, start_tick: int, end_tick: int, round_: int) -> int:
        """No inner step in [start, end); the steps done since the pause before."""
        steps = self._close(start_tick)
        self._cursor += steps
        self._from_tick = end_tick
        self._round = round_
        return steps

    def _close(self, tick: int) -> int:
        steps = self._pace.steps[max(0, tick - self._from_tick)]
        self._stretches.append((self._round, self._from_tick, self._cursor, steps))
        return steps

    def loss_at(self, island: int) -> float | None:
        """Of the last inner step before the pause."""
        return self._pace.losses[island][self._cursor - 1] if self._cursor else None

    def train_rows(self, *, horizon_ticks: int) -> Iterator[dict[str, Any]]:
        """Rows of train.parquet up to the horizon; how long a step took is unknown here."""
        self._close(horizon_ticks)
        pace = self._pace
        for round_, from_tick, cursor, steps in self._stretches:
            from_s = from_tick * pace.tick_s
            for k in range(steps):
                for island, losses in enumerate(pace.losses):
                    yield {
                        "island": island,
                        "round": round_,
                        "step": cursor + k + 1,
                        "at_s": from_s + k * pace.step_interval_s,
                        "loss": losses[cursor + k],
                        "tokens": pace.tokens_per_step,
                        "step_s": None,
                    }

    def tokens(self, steps: int) -> int:
        return steps * self._pace.tokens_per_step

    def totals(self) -> tuple[int, int]:
        """Inner steps and tokens of an island, after train_rows."""
        steps = sum(s for *_, s in self._stretches)
        return steps, self.tokens(steps)


def merge_parts(command: StartMerge, islands: PacedIslands, *, steps: int) -> tuple[MergePart, ...]:
    """What each island is said to have done: the model has one slow-down for the whole window, so
    all of it counts as emulated load, and no real part is claimed.
    """
    return tuple(
        MergePart(
            island=i,
            round=command.round,
            wait_s=0.0,
            codec_s=0.0,
            all_reduce_s=0.0,
            outer_step_s=0.0,
            checkpoint_s=0.0,
            real_s=0.0,
            emulated_s=command.end_s - command.start_s,
            fill_cpu_s=0.0,
            ended_at_s=command.start_s,
            weight=1.0 / len(command.islands),
            tokens=islands.tokens(steps),
            bytes_reduced=0,
            pseudo_gradient_norm=0.0,
            parameter_hash=PARAMETER_HASH,
            loss=islands.loss_at(i),
        )
        for i in command.islands
    )
