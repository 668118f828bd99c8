"""The plain island: determinism, counters, merges of one and of two in shared memory."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from actors.clock import VirtualClock
from actors.config import (
    DataConfig,
    InnerConfig,
    IslandsConfig,
    LrScheduleConfig,
    MergeConfig,
    OuterConfig,
)
from actors.island.data.dataset import open_data
from actors.island.island import Island, LossNotFinite, WrongRound
from actors.island.mergers import Work
from actors.island.model import build_model
from actors.island.outer import parameter_hash
from actors.island.state_file import DiskFull
from actors.island.windows import on_device
from actors.merge_messages import Formation, RoundPlan
from tests.actors.island.teams import begin_round, end_round, form, merge_islands

pytestmark = pytest.mark.torch

MakeIslands = Callable[..., IslandsConfig]
MakeMerge = Callable[..., MergeConfig]
MEAN = OuterConfig(lr=1.0, momentum=0.0)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(config: IslandsConfig, merge: MergeConfig, island: int = 0) -> Island:
    return Island(config, merge, island, clock=VirtualClock())


def group(config: IslandsConfig, merge: MergeConfig, *, seed: int = 1) -> list[Island]:
    islands = [made(config, merge, i) for i in range(config.count)]
    for island in islands:
        island.reset(seed=seed, folder=None)
    form(islands, epoch=10)
    return islands


def steps(island: Island, count: int) -> None:
    for _ in range(count):
        island.step()


def train(island: Island, *, seed: int, count: int) -> list[float]:
    island.reset(seed=seed, folder=None)
    steps(island, count)
    return losses(island)


def losses(island: Island) -> list[float]:
    return [row["loss"] for row in island.drain_rows()]


def test_same_seed_same_losses_and_a_reset_forgets_everything(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    island = made(islands_config(), merge_config())
    first = train(island, seed=1, count=6)
    hash_first = island.parameter_hash()
    other = train(island, seed=2, count=6)
    merge_islands([island], round_=0, epoch=0)
    assert train(island, seed=1, count=6) == first != other
    assert island.parameter_hash() == hash_first
    merge_islands([island], round_=0, epoch=0)  # the anchor was reset too: a merge from here
    again = made(islands_config(), merge_config())
    train(again, seed=1, count=6)
    merge_islands([again], round_=0, epoch=0)
    assert island.parameter_hash() == again.parameter_hash() != hash_first


def test_islands_start_alike_and_see_different_data(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    config = islands_config(2)
    left, right = (made(config, merge_config(), i) for i in (0, 1))
    assert left.reset(seed=5, folder=None) == right.reset(seed=5, folder=None)
    assert train(left, seed=5, count=3) != train(right, seed=5, count=3)


def test_training_lowers_the_loss(islands_config: MakeIslands, merge_config: MakeMerge) -> None:
    told = train(made(islands_config(), merge_config()), seed=0, count=60)
    assert sum(told[-5:]) < 0.8 * sum(told[:5])


def plain_training(config: IslandsConfig, *, seed: int, count: int) -> tuple[str, list[float]]:
    """The loop that everybody writes: the model, AdamW, batches in order; no island."""
    inner, length = config.inner, config.seq_len_tokens
    model = build_model(config.model, seed=seed, max_len_tokens=length)
    shard = open_data(config.data, islands=1, seq_len_tokens=length).shard(0)
    adamw = torch.optim.AdamW(
        [
            {
                "params": [p for p in model.parameters() if p.ndim >= 2],
                "weight_decay": inner.weight_decay,
            },
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=inner.lr,
        betas=(inner.beta1, inner.beta2),
        fused=True,
    )
    told = []
    for cursor in range(count):
        batch = shard.batch(seed=seed, cursor=cursor, batch_size=config.batch_size)
        loss = model.loss(torch.from_numpy(batch.tokens))
        adamw.zero_grad()
        loss.backward()
        assert inner.clip_norm is not None
        nn.utils.clip_grad_norm_(model.parameters(), inner.clip_norm)
        adamw.step()
        told.append(loss.item())
    return parameter_hash(model), told


@pytest.mark.parametrize("outer", [MEAN, OuterConfig(kind="none")])
@pytest.mark.parametrize("fragments", [1, 3])
def test_one_island_at_rate_one_without_momentum_is_plain_training_to_the_bit(
    islands_config: MakeIslands, merge_config: MakeMerge, outer: OuterConfig, fragments: int
) -> None:
    config = islands_config(outer=outer)
    island = made(config, merge_config(fragments=fragments))
    island.reset(seed=3, folder=None)
    for round_ in range(3):
        steps(island, 4)
        merge_islands([island], round_=round_, epoch=0, fragments=fragments)
    digest, told = plain_training(config, seed=3, count=12)
    assert losses(island) == told
    assert island.parameter_hash() == digest


def test_momentum_moves_one_island_away_from_plain_training(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    """So that the test above cannot pass because merges do nothing."""
    island = made(islands_config(), merge_config())
    train(island, seed=3, count=4)
    before = island.parameter_hash()
    merge_islands([island], round_=0, epoch=0)
    assert island.parameter_hash() != before


def test_two_islands_stand_on_the_weighted_mean_of_their_parameters(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    islands = group(islands_config(2, outer=MEAN), merge_config())
    steps(islands[0], 3)
    steps(islands[1], 1)
    vectors = [island.run.flat.vector.clone() for island in islands]
    plan = begin_round(islands, round_=0, epoch=10)
    assert plan.weights == (0.75, 0.25)
    reduced = [island.reduce(plan) for island in islands]
    for island, vector in zip(islands, vectors, strict=True):
        assert torch.equal(island.run.flat.vector, vector)  # nothing is visible before the commit
    for island in islands:
        island.commit(plan, end_s=0.0)
    mean = 0.75 * vectors[0] + 0.25 * vectors[1]
    for island in islands:
        torch.testing.assert_close(island.run.flat.vector, mean)
        assert island.progress().steps_since_merge == 0
    assert islands[0].parameter_hash() == islands[1].parameter_hash()
    assert islands[0].merged_hash() == islands[0].parameter_hash()
    assert all(one.bytes_reduced == 0 and one.sum_squares > 0 for one in reduced)
    assert reduced[0].sum_squares != reduced[1].sum_squares  # each its own slice


def test_what_is_global_is_proven_alike_where_the_models_differ_by_design(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    for changes in ({"fragments": 2}, {"overlap_steps": 1}):
        islands = group(islands_config(2), merge_config(**changes))
        proofs = []
        for round_ in range(2):
            for island in islands:
                steps(island, 2)
            fragments = changes.get("fragments", 1)
            plan = begin_round(islands, round_=round_, epoch=10, fragments=fragments)
            for island in islands:
                steps(island, changes.get("overlap_steps", 0))
            end_round(islands, plan)
            left, right = islands
            assert left.merged_hash() == right.merged_hash()
            proofs.append(left.merged_hash())
            assert left.parameter_hash() != right.parameter_hash()
        assert proofs[0] != proofs[1]


def test_steps_between_snapshot_and_commit_count_for_the_next_merge(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    island = made(islands_config(), merge_config(overlap_steps=2))
    island.reset(seed=0, folder=None)
    steps(island, 3)
    plan = begin_round([island], round_=0, epoch=0)
    steps(island, 2)
    end_round([island], plan)
    progress = island.progress()
    assert (progress.steps_since_merge, progress.tokens_since_merge) == (2, 2 * 2 * 16)
    assert progress.loss_drop is None
    steps(island, 2)
    brought = island.ready(round_=1, fragment=0, wait_s=0.0)
    assert (brought.steps, brought.tokens) == (4, 4 * 2 * 16)
    rows = island.drain_rows()
    assert island.progress().loss_drop == rows[-2]["loss"] - rows[-1]["loss"]


def test_progress_counts_since_the_last_merge(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    clock = VirtualClock(now_s=100.0)
    island = Island(islands_config(), merge_config(), 0, clock=clock)
    island.reset(seed=0, folder=None)
    island.begin(zero_monotonic_s=100.0)
    assert island.progress().loss_drop is None
    for done in range(3):
        assert island.progress().loss_drop is None or done == 2
        clock.advance(1.0)
        island.step()
    progress = island.progress()
    rows = island.drain_rows()
    assert (progress.steps_since_merge, progress.tokens_since_merge) == (3, 3 * 2 * 16)
    assert progress.loss_drop == rows[0]["loss"] - rows[2]["loss"]
    assert progress.staleness_s == 3.0
    plan = begin_round([island], round_=0, epoch=0)
    island.reduce(plan)
    island.commit(plan, end_s=5.0)
    clock.advance(4.0)
    island.step()
    progress = island.progress()
    assert (progress.steps_since_merge, progress.loss_drop) == (1, None)
    assert progress.staleness_s == 2.0
    rows += island.drain_rows()
    assert [row["round"] for row in rows] == [0, 0, 0, 1]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["at_s"] for row in rows] == [1.0, 2.0, 3.0, 7.0]


def test_an_aborted_round_changes_nothing_and_its_plan_is_refused_afterwards(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    island = made(islands_config(), merge_config())
    train(island, seed=0, count=3)
    before = island.parameter_hash()
    plan = begin_round([island], round_=0, epoch=0)
    island.reduce(plan)
    island.abort(round_=7)  # another round's
    island.rescale(plan)
    island.abort(round_=0)
    for late in (island.reduce, island.rescale, lambda plan: island.commit(plan, end_s=0.0)):
        with pytest.raises(WrongRound, match="round 0 of group 0, but open is round None"):
            late(plan)
    assert island.parameter_hash() == before
    assert island.progress().steps_since_merge == 3
    steps(island, 1)
    plan = begin_round([island], round_=1, epoch=0)
    with pytest.raises(WrongRound, match="of group 4"):
        island.reduce(replace(plan, epoch=4))
    with pytest.raises(WrongRound, match="open is round 1"):
        island.commit(replace(plan, round=0), end_s=0.0)
    end_round([island], plan)
    assert island.parameter_hash() != before


def test_a_group_of_the_past_is_refused_and_what_is_global_goes_into_the_next(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    islands = group(islands_config(3), merge_config())
    for island in islands:
        steps(island, 2)
    merge_islands(islands, round_=0, epoch=10)
    states = [island.global_state() for island in islands]
    assert all(torch.equal(states[0].anchor, state.anchor) for state in states)
    assert states[0].buffer.any()
    with pytest.raises(WrongRound, match="group 10 after 10"):
        form(islands[1:], epoch=10)
    form(islands[1:], epoch=11)  # another leader
    for island in islands[1:]:
        state = island.global_state()
        assert torch.equal(state.anchor, states[0].anchor)
        assert torch.equal(state.buffer, states[0].buffer)
    steps(islands[1], 1)
    steps(islands[2], 1)
    merge_islands(islands[1:], round_=1, epoch=11)
    assert islands[1].parameter_hash() == islands[2].parameter_hash()
    assert islands[0].global_state().rounds_applied == 1  # it was not there


def test_a_leader_whose_followers_never_came_still_knows_what_is_global(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    islands = group(islands_config(3), merge_config())
    for island in islands:
        steps(island, 2)
    merge_islands(islands, round_=0, epoch=10)
    before = islands[0].global_state()
    told = [island.introduce(address="127.0.0.1") for island in islands]
    segments = tuple(one.segment for one in told if one.segment is not None)
    half = Formation(epoch=11, members=(0, 1, 2), transport="shared_memory", segments=segments)
    banks = islands[0].form(half)
    islands[1].form(replace(half, banks=banks))  # and the third one dies here
    for island in islands[:2]:
        assert torch.equal(island.global_state().anchor, before.anchor)
        assert torch.equal(island.global_state().buffer, before.buffer)
    form(islands[:2], epoch=12)
    for island in islands[:2]:
        assert torch.equal(island.global_state().anchor, before.anchor)


@pytest.mark.parametrize("keep_steps", [True, False])
def test_a_late_island_comes_back_onto_the_last_merge(
    islands_config: MakeIslands, merge_config: MakeMerge, keep_steps: bool
) -> None:
    islands = group(islands_config(2), merge_config())
    there, late = islands
    for island in islands:
        steps(island, 2)
    merge_islands(islands, round_=0, epoch=10)
    form([there], epoch=11)
    steps(late, 2)
    own = late.run.flat.vector - late.global_state().anchor
    for round_ in (1, 2):
        steps(there, 2)
        merge_islands([there], round_=round_, epoch=11)
    given = there.global_state()
    late.adopt(given, keep_steps=keep_steps, cursor=6, at_s=3.0)
    expected = given.anchor + own if keep_steps else given.anchor
    torch.testing.assert_close(late.run.flat.vector, expected, rtol=0, atol=1e-6)
    progress = late.progress()
    assert progress.steps_since_merge == (2 if keep_steps else 0)
    assert torch.equal(late.global_state().anchor, given.anchor)  # before any group
    assert late.validation_loss(local=False) is None
    late.step()
    assert late.drain_rows()[-1]["step"] == 7  # the others' place in the data
    form(islands, epoch=12)
    steps(there, 1)
    brought = late.ready(round_=3, fragment=0, wait_s=0.0)
    assert brought.missed_rounds == (2 if keep_steps else 0)
    late.abort(round_=3)
    merge_islands(islands, round_=3, epoch=12)
    assert there.parameter_hash() == late.parameter_hash()
    assert late.ready(round_=4, fragment=0, wait_s=0.0).missed_rounds == 0


def test_two_that_come_back_at_once_can_tell_each_other(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    """The first one has adopted and is in no group yet when the second asks it."""
    islands = group(islands_config(3), merge_config())
    for island in islands:
        steps(island, 1)
    merge_islands(islands, round_=0, epoch=10)
    islands[0].adopt(islands[2].global_state(), keep_steps=False, cursor=1, at_s=0.0)
    islands[1].adopt(islands[0].global_state(), keep_steps=False, cursor=1, at_s=0.0)
    form(islands, epoch=11)
    merge_islands(islands, round_=1, epoch=11)
    assert len({island.parameter_hash() for island in islands}) == 1


def test_the_rate_goes_by_the_place_in_the_data(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    """An island on all shards, and a new process where the others are, learn at the same rate."""
    schedule = LrScheduleConfig(kind="linear", total_tokens=10 * 32, final_fraction=0.0)
    config = islands_config(2, inner=InnerConfig(lr=0.01, schedule=schedule))
    plain, on_all = (made(config, merge_config()) for _ in range(2))
    plain.reset(seed=0, folder=None)
    on_all.reset(seed=0, folder=None, shards=(0, 1))
    steps(plain, 5)
    steps(on_all, 5)
    rates: list[list[Any]] = [[r["lr"] for r in one.drain_rows()] for one in (plain, on_all)]
    assert rates[0] == rates[1] == pytest.approx([0.01, 0.009, 0.008, 0.007, 0.006])
    assert on_all.summary()["tokens"] == 2 * plain.summary()["tokens"]
    form([plain], epoch=1)
    new = made(config, merge_config(), 1)
    new.reset(seed=0, folder=None)
    new.adopt(plain.global_state(), keep_steps=True, cursor=5, at_s=0.0)
    new.step()
    assert new.drain_rows()[0]["lr"] == pytest.approx(0.005)


def test_a_step_on_all_shards_takes_a_batch_of_each(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    config = islands_config(2)
    data = open_data(config.data, islands=2, seq_len_tokens=16)
    batches = [data.shard(i).batch(seed=0, cursor=0, batch_size=2) for i in range(2)]
    tokens, documents = on_device(batches, torch.device("cpu"))
    assert documents is None
    model = build_model(config.model, seed=0, max_len_tokens=16)
    island = made(config, merge_config())
    island.reset(seed=0, folder=None, shards=(0, 1))
    island.step()
    (row,) = island.drain_rows()
    assert row["loss"] == model.loss(tokens).item()
    assert row["tokens"] == 4 * 16


def test_validation_is_of_what_is_global_and_leaves_training_alone(
    islands_config: MakeIslands, merge_config: MakeMerge, text_folder: Path
) -> None:
    data = DataConfig(source="folder", folder=str(text_folder), validation_fraction=0.1)
    config = islands_config(data=data)
    looked, not_looked = (made(config, merge_config()) for _ in range(2))
    for island in (looked, not_looked):
        island.reset(seed=0, folder=None)
    start = looked.validation_loss(local=False)
    steps(looked, 10)
    assert looked.validation_loss(local=False) == start  # nothing was merged
    own = looked.validation_loss(local=True)
    assert own is not None
    assert start is not None
    assert own < start
    steps(not_looked, 10)
    for island in (looked, not_looked):
        steps(island, 2)
    assert looked.parameter_hash() == not_looked.parameter_hash()


def test_a_full_disk_loses_the_checkpoint_and_not_the_merge(
    islands_config: MakeIslands,
    merge_config: MakeMerge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskFull("no space")

    island = made(islands_config(), merge_config())
    train(island, seed=0, count=1)
    monkeypatch.setattr("actors.island.island.write_checkpoint", full)
    before = island.parameter_hash()
    merge_islands([island], round_=0, epoch=0)
    with pytest.raises(DiskFull):
        island.write_merged(tmp_path, island.merged_tensors(), round_=0)
    assert island.parameter_hash() != before
    assert island.progress().steps_since_merge == 0


def test_the_merged_tensors_are_the_global_ones_of_a_moment(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    island = made(islands_config(), merge_config())
    train(island, seed=0, count=2)
    merge_islands([island], round_=0, epoch=0)
    tensors = island.merged_tensors()
    parameters = dict(island.run.model.named_parameters())
    assert set(tensors) == set(parameters)
    assert all(torch.equal(tensors[name], parameters[name]) for name in tensors)
    island.step()
    assert not torch.equal(tensors["embedding"], parameters["embedding"])


def test_a_diverged_loss_is_named(islands_config: MakeIslands, merge_config: MakeMerge) -> None:
    config = islands_config(inner=InnerConfig(lr=1e30, clip_norm=None))
    island = made(config, merge_config())
    with pytest.raises(LossNotFinite, match=r"island 0: loss \S+ at inner step \d"):
        train(island, seed=0, count=20)


def test_use_before_reset_or_form_says_what_to_call(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    island = made(islands_config(2), merge_config())
    with pytest.raises(RuntimeError, match="call reset"):
        island.step()
    island.reset(seed=0, folder=None)
    with pytest.raises(RuntimeError, match="call form"):
        island.global_state()
    with pytest.raises(RuntimeError, match="call form"):
        island.merged_tensors()
    island.ready(round_=0, fragment=0, wait_s=0.0)
    with pytest.raises(WrongRound, match="of group None"):
        island.reduce(RoundPlan(round=0, epoch=0, weights=(1.0,), fragment=0))


def test_a_reduction_that_outlives_its_coordinator_cannot_write_into_the_next_run(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    """The next coordinator resets the island while the reduction of the one before still runs."""
    islands = group(islands_config(2), merge_config())
    for merges in (0, 1):  # so that it writes into either bank
        for round_ in range(merges):
            merge_islands(islands, round_=round_, epoch=10)
        for island in islands:
            steps(island, 1)
        plan = begin_round(islands, round_=merges, epoch=10)
        started, may_end = threading.Event(), threading.Event()
        merger = islands[0].merger
        reduce = merger.reduce

        def slowly(
            plan: RoundPlan,
            *,
            reduce: Callable[[RoundPlan], Work] = reduce,
            started: threading.Event = started,
            may_end: threading.Event = may_end,
        ) -> Work:
            started.set()
            assert may_end.wait(10)
            return reduce(plan)

        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
            patch.setattr(merger, "reduce", slowly)
            old = pool.submit(islands[0].reduce, plan)
            assert started.wait(10)
            fresh = pool.submit(islands[0].reset, seed=9, folder=None)
            islands[1].reset(seed=9, folder=None)
            may_end.set()
            old.result(10)
            fresh.result(10)
        for island in islands:
            assert torch.equal(island.global_state().anchor, island.run.flat.vector)
            assert not island.global_state().buffer.any()
            with pytest.raises(WrongRound):
                island.reduce(plan)
