"""The plain island: determinism, counters, merges of one."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from actors.clock import VirtualClock
from actors.config import InnerConfig, IslandsConfig, MergeConfig, OuterConfig
from actors.island.checkpoint import DiskFull
from actors.island.island import Island, LossNotFinite

pytestmark = pytest.mark.torch

MakeIslands = Callable[..., IslandsConfig]
MakeMerge = Callable[..., MergeConfig]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def made(config: IslandsConfig, merge: MergeConfig, island: int = 0) -> Island:
    return Island(config, merge, island, clock=VirtualClock())


def train(island: Island, *, seed: int, steps: int) -> list[float]:
    island.reset(seed=seed, checkpoint_dir=None)
    for _ in range(steps):
        island.step()
    return [row["loss"] for row in island.summary()["rows"]]


def test_same_seed_same_losses_and_a_reset_forgets_everything(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    island = made(islands_config(), merge_config())
    first = train(island, seed=1, steps=6)
    hash_first = island.parameter_hash()
    other = train(island, seed=2, steps=6)
    assert train(island, seed=1, steps=6) == first != other
    assert island.parameter_hash() == hash_first


def test_islands_start_alike_and_see_different_data(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    config = islands_config(2)
    left, right = (made(config, merge_config(), i) for i in (0, 1))
    assert left.reset(seed=5, checkpoint_dir=None) == right.reset(seed=5, checkpoint_dir=None)
    assert train(left, seed=5, steps=3) != train(right, seed=5, steps=3)


def test_training_lowers_the_loss(islands_config: MakeIslands, merge_config: MakeMerge) -> None:
    losses = train(made(islands_config(), merge_config()), seed=0, steps=60)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def merge_now(island: Island, *, round_: int) -> None:
    island.perform(island.prepare(), round_=round_, end_s=0.0)


def test_one_island_at_rate_one_without_momentum_is_plain_training_to_the_bit(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    config = islands_config(outer=OuterConfig(lr=1.0, momentum=0.0))
    plain, merging = (made(config, merge_config()) for _ in range(2))
    train(plain, seed=3, steps=12)
    merging.reset(seed=3, checkpoint_dir=None)
    for round_ in (1, 2, 3):
        for _ in range(4):
            merging.step()
        merge_now(merging, round_=round_)
    assert merging.parameter_hash() == plain.parameter_hash()
    losses = [[row["loss"] for row in island.summary()["rows"]] for island in (plain, merging)]
    assert losses[0] == losses[1]


def test_momentum_moves_one_island_away_from_plain_training(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    """So that the test above cannot pass because merges do nothing."""
    island = made(islands_config(), merge_config())
    train(island, seed=3, steps=4)
    before = island.parameter_hash()
    merge_now(island, round_=1)
    assert island.parameter_hash() != before


def test_progress_counts_since_the_last_merge(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    clock = VirtualClock(now_s=100.0)
    island = Island(islands_config(), merge_config(), 0, clock=clock)
    island.reset(seed=0, checkpoint_dir=None)
    island.begin(zero_monotonic_s=100.0)
    assert island.progress().loss_drop is None
    for _ in range(3):
        clock.advance(1.0)
        island.step()
    progress = island.progress()
    losses = [row["loss"] for row in island.summary()["rows"]]
    assert (progress.steps_since_merge, progress.tokens_since_merge) == (3, 3 * 2 * 16)
    assert progress.loss_drop == losses[0] - losses[2]
    assert progress.staleness_s == 3.0
    island.perform(island.prepare(), round_=1, end_s=5.0)
    clock.advance(4.0)
    island.step()
    progress = island.progress()
    assert (progress.steps_since_merge, progress.loss_drop) == (1, None)
    assert progress.staleness_s == 2.0
    rows = island.summary()["rows"]
    assert [row["round"] for row in rows] == [0, 0, 0, 1]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["at_s"] for row in rows] == [1.0, 2.0, 3.0, 7.0]


def test_a_full_disk_loses_the_checkpoint_and_not_the_merge(
    islands_config: MakeIslands,
    merge_config: MakeMerge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskFull("no space")

    island = made(islands_config(), merge_config())
    island.reset(seed=0, checkpoint_dir=tmp_path)
    island.step()
    monkeypatch.setattr("actors.island.island.write_checkpoint", full)
    before = island.parameter_hash()
    with pytest.raises(DiskFull):
        merge_now(island, round_=1)
    assert island.parameter_hash() != before
    assert island.progress().steps_since_merge == 0


def test_a_diverged_loss_is_named(islands_config: MakeIslands, merge_config: MakeMerge) -> None:
    config = islands_config(inner=InnerConfig(lr=1e30, clip_norm=None))
    island = made(config, merge_config())
    with pytest.raises(LossNotFinite, match=r"island 0: loss \S+ at inner step \d"):
        train(island, seed=0, steps=20)


def test_use_before_reset_or_join_says_what_to_call(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    island = made(islands_config(2), merge_config())
    with pytest.raises(RuntimeError, match="call reset"):
        island.step()
    island.reset(seed=0, checkpoint_dir=None)
    with pytest.raises(RuntimeError, match="call join"):
        island.prepare()
