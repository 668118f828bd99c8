"""An island of two processes trains as one process does on both their batches."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from actors.clock import MonotonicClock
from actors.config import IslandsConfig, MergeConfig
from actors.island.gradients import ReplicaLost
from actors.island.island import Island
from actors.island.windows import on_device
from actors.merge_messages import RoundPlan

pytestmark = pytest.mark.torch

STEPS = 3


@pytest.fixture
def pair(
    islands_config: Callable[..., IslandsConfig], merge_config: Callable[..., MergeConfig]
) -> Iterator[Island]:
    island = Island(islands_config(1, replicas=2), merge_config(), 0, clock=MonotonicClock())
    yield island
    island.close()


def test_two_processes_equal_one_on_both_batches_also_after_a_merge_and_a_reset(
    pair: Island,
    islands_config: Callable[..., IslandsConfig],
    merge_config: Callable[..., MergeConfig],
) -> None:
    alone = Island(islands_config(1), merge_config(), 0, clock=MonotonicClock())
    for seed in (3, 4):
        pair.reset(seed=seed, folder=None)
        alone.reset(seed=seed, folder=None)
        losses = []
        for step in range(STEPS):
            pair.step()
            losses.append(both_batches(alone, step))
            if step == 1:
                plan = RoundPlan(round=0, epoch=pair.epoch, weights=(1.0,), fragment=0)
                pair.ready(round_=0, fragment=0, wait_s=0.0)
                pair.reduce(plan)
                pair.commit(plan, end_s=0.0)
                alone.run.flat.vector.copy_(pair.run.flat.vector)
        told = [row["loss"] for row in pair.drain_rows()]
        np.testing.assert_allclose(told, losses, rtol=1e-5)
        torch.testing.assert_close(
            pair.run.flat.vector, alone.run.flat.vector, rtol=1e-4, atol=1e-6
        )
        assert pair.run.counters.tokens == STEPS * 2 * 2 * 16


def both_batches(island: Island, step: int) -> float:
    """One step on the mean gradient of the two batches that the pair takes."""
    shard = island.shard(0)
    run = island.run
    total = 0.0
    for part in (0, 1):
        batch = shard.batch(seed=run.seed, cursor=2 * step + part, batch_size=2)
        loss = run.model.loss(*on_device([batch], torch.device("cpu"))) / 2
        loss.backward()
        total += loss.item()
    run.inner.apply(tokens=step * 2 * 2 * 16)
    return total


def test_a_lost_process_is_the_island_s_loss_by_name(pair: Island, tmp_path: Path) -> None:
    pair.reset(seed=0, folder=tmp_path)
    pair.step()
    (process,) = pair.replica_processes
    process.kill()
    process.wait()
    with pytest.raises(ReplicaLost, match=r"island 0: its process|replica 0 of 2"):
        pair.step()
