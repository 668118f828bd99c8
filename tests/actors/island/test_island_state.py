"""An island on disk and back: going on from a file is going on, to the bit."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from actors.clock import VirtualClock
from actors.config import InnerConfig, IslandsConfig, LrScheduleConfig, MergeConfig
from actors.island.island import Island
from actors.island.island_state import load_island, save_globals, save_island
from actors.island.model import ByteLM, build_model
from actors.island.state_file import DiskFull, TornFile
from actors.merge_messages import CheckpointFile
from tests.actors.island.teams import form, form_network, meet_in_threads, merge_islands

pytestmark = pytest.mark.torch

MakeIslands = Callable[..., IslandsConfig]
MakeMerge = Callable[..., MergeConfig]
Files = tuple[list[CheckpointFile], CheckpointFile]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config(islands_config: MakeIslands) -> IslandsConfig:
    """A schedule and shuffled windows, so that the place in the data and the rate matter."""
    schedule = LrScheduleConfig(
        kind="cosine", warmup_tokens=60, total_tokens=40 * 32, final_fraction=0.1
    )
    base = islands_config(2, inner=InnerConfig(lr=0.02, schedule=schedule))
    data = base.data.model_copy(update={"order": "shuffled"})
    return base.model_copy(update={"data": data})


def reset(config: IslandsConfig, merge: MergeConfig) -> list[Island]:
    islands = [Island(config, merge, i, clock=VirtualClock()) for i in range(config.count)]
    for island in islands:
        island.reset(seed=4, folder=None)
    return islands


def go(
    islands: list[Island], moves: str, *, round_: int = 0, epoch: int = 10, fragments: int = 1
) -> int:
    """``s``: a step of both and one more of the second; ``m``: a merge. The next round."""
    for move in moves:
        if move == "s":
            for island in (*islands, islands[-1]):
                island.step()
        else:
            merge_islands(islands, round_=round_, epoch=epoch, fragments=fragments)
            round_ += 1
    return round_


def save(islands: list[Island], folder: Path) -> Files:
    own = [save_island(island, folder, round_=0) for island in islands]
    return own, save_globals(islands[0], folder)


def load(islands: list[Island], folder: Path, files: Files) -> list[str]:
    own, common = files
    return [
        load_island(island, folder, own=file, common=common)
        for island, file in zip(islands, own, strict=True)
    ]


def everything(islands: list[Island]) -> list[Any]:
    """All that could differ, as bytes and numbers."""
    told: list[Any] = []
    for island in islands:
        state = island.global_state()
        inner = island.run.inner.tensors()
        told += [
            island.parameter_hash(),
            island.run.flat.vector.numpy().tobytes(),
            state.anchor.numpy().tobytes(),
            state.buffer.numpy().tobytes(),
            None if (owed := island.owed()) is None else owed.numpy().tobytes(),
            {name: tensor.numpy().tobytes() for name, tensor in sorted(inner.items())},
            island.run.counters,
            [{k: v for k, v in row.items() if k != "step_s"} for row in island.drain_rows()],
        ]
    return told


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize(
    ("before", "after"),
    [("", "ssm"), ("s", "mss"), ("ssm", "ssmsm"), ("smsms", "smsss"), ("ssmssm", "sm")],
)
def test_going_on_from_a_file_is_never_having_stopped(
    config: IslandsConfig,
    merge_config: MakeMerge,
    tmp_path: Path,
    fragments: int,
    before: str,
    after: str,
) -> None:
    merge = merge_config(fragments=fragments)
    whole = reset(config, merge)
    form(whole, epoch=10)
    round_ = go(whole, before, fragments=fragments)
    files = save(whole, tmp_path)
    digests = [island.parameter_hash() for island in whole]
    for island in whole:
        island.drain_rows()
    torch.rand(3)  # whoever draws between now and then must not matter
    resumed = reset(config, merge)
    assert load(resumed, tmp_path, files) == digests
    form(resumed, epoch=11)
    chance = torch.get_rng_state()
    go(whole, after, round_=round_, fragments=fragments)
    go(resumed, after, round_=round_, epoch=11, fragments=fragments)
    assert everything(resumed) == everything(whole)
    assert torch.equal(torch.get_rng_state(), chance)  # this model draws nothing


def test_what_int8_still_owes_comes_back(
    config: IslandsConfig,
    merge_config: MakeMerge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meet_in_threads(monkeypatch)
    merge = merge_config(codec="int8")
    whole = reset(config, merge)
    form_network(whole, epoch=10)
    go(whole, "smsm")
    files = save(whole, tmp_path)
    for island in whole:
        island.drain_rows()
    debts = [island.owed() for island in whole]
    resumed = reset(config, merge)
    load(resumed, tmp_path, files)
    form_network(resumed, epoch=11)
    for island, debt in zip(resumed, debts, strict=True):
        found = island.owed()
        assert found is not None
        assert debt is not None
        assert found.any()
        assert torch.equal(found, debt)
    go(whole, "smsm", round_=2)
    go(resumed, "smsm", round_=2, epoch=11)
    assert everything(resumed) == everything(whole)


def test_a_rounded_model_goes_on_from_its_float32_masters(
    config: IslandsConfig,
    merge_config: MakeMerge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rounded(*args: Any, **named: Any) -> ByteLM:
        model: ByteLM = build_model(*args, **named).to(torch.bfloat16)
        return model

    monkeypatch.setattr("actors.island.island.build_model", rounded)
    whole = reset(config, merge_config())
    assert whole[0].run.flat.rounds_to_model
    form(whole, epoch=10)
    go(whole, "ssms")
    files = save(whole, tmp_path)
    for island in whole:
        island.drain_rows()
    resumed = reset(config, merge_config())
    load(resumed, tmp_path, files)
    form(resumed, epoch=11)
    go(whole, "smss", round_=1)
    go(resumed, "smss", round_=1, epoch=11)
    assert everything(resumed) == everything(whole)
    for master, parameter in zip(
        resumed[0].run.flat.masters, resumed[0].run.flat.parameters, strict=True
    ):
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, master.to(torch.bfloat16))
        assert not torch.equal(parameter.float(), master)


def test_chance_goes_on_where_it_stood(
    config: IslandsConfig, merge_config: MakeMerge, tmp_path: Path
) -> None:
    islands = reset(config, merge_config())
    form(islands, epoch=1)
    torch.rand(5)
    files = save(islands, tmp_path)
    expected = torch.rand(4)
    again = reset(config, merge_config())
    load(again, tmp_path, files)
    assert torch.equal(torch.rand(4), expected)


def test_an_island_that_already_trained_forgets_it_when_it_loads(
    config: IslandsConfig, merge_config: MakeMerge, tmp_path: Path
) -> None:
    islands = reset(config, merge_config())
    form(islands, epoch=1)
    go(islands, "ssm", epoch=1)
    files = save(islands, tmp_path)
    for island in islands:
        island.drain_rows()
    go(islands, "ss", round_=1, epoch=1)
    first = everything(islands)
    for island in islands:
        island.reset(seed=4, folder=None)
    load(islands, tmp_path, files)
    form(islands, epoch=2)
    go(islands, "ss", round_=1, epoch=2)
    assert everything(islands) == first


def test_buffers_of_the_model_come_back(
    config: IslandsConfig, merge_config: MakeMerge, tmp_path: Path
) -> None:
    islands = reset(config, merge_config())
    form(islands, epoch=1)
    islands[0].run.model.register_buffer("seen", torch.tensor([3, 4]))
    files = save(islands, tmp_path)
    again = reset(config, merge_config())
    again[0].run.model.register_buffer("seen", torch.tensor([0, 0]))
    load(again, tmp_path, files)
    assert dict(again[0].run.model.named_buffers())["seen"].tolist() == [3, 4]


def saved(config: IslandsConfig, merge: MergeConfig, folder: Path) -> Files:
    islands = reset(config, merge)
    form(islands, epoch=1)
    go(islands, "sm", epoch=1)
    return save(islands, folder)


def test_a_run_of_another_seed_or_other_shards_is_refused(
    config: IslandsConfig, merge_config: MakeMerge, tmp_path: Path
) -> None:
    own, common = saved(config, merge_config(), tmp_path)
    island = Island(config, merge_config(), 0, clock=VirtualClock())
    island.reset(seed=5, folder=None)
    with pytest.raises(ValueError, match=r"with seed 4 on shards .0., asked for are seed 5"):
        load_island(island, tmp_path, own=own[0], common=common)
    island.reset(seed=4, folder=None, shards=(0, 1))
    with pytest.raises(ValueError, match=r"asked for are seed 4 on .0, 1."):
        load_island(island, tmp_path, own=own[0], common=common)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def change(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


@pytest.mark.parametrize("name", ["island-0.safetensors", "globals.safetensors"])
@pytest.mark.parametrize("damage", [cut_short, change, Path.unlink])
def test_a_torn_changed_or_missing_file_is_refused_and_the_island_stays_as_it_was(
    config: IslandsConfig,
    merge_config: MakeMerge,
    tmp_path: Path,
    name: str,
    damage: Callable[[Path], None],
) -> None:
    own, common = saved(config, merge_config(), tmp_path)
    damage(tmp_path / name)
    island = Island(config, merge_config(), 0, clock=VirtualClock())
    before = island.reset(seed=4, folder=None)
    with pytest.raises(TornFile, match=name):
        load_island(island, tmp_path, own=own[0], common=common)
    assert island.parameter_hash() == before
    assert island.run.inner.tensors() == {}
    assert island.steps == 0


def test_a_full_disk_leaves_nothing_behind_and_the_island_goes_on(
    config: IslandsConfig,
    merge_config: MakeMerge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    islands = reset(config, merge_config())
    form(islands, epoch=1)
    go(islands, "sm", epoch=1)
    with monkeypatch.context() as patch:
        patch.setattr("actors.island.state_file.sync_file", full)
        with pytest.raises(DiskFull, match=r"island-0\.safetensors: no space left"):
            save(islands, tmp_path)
        with pytest.raises(DiskFull, match=r"globals\.safetensors: no space left"):
            save_globals(islands[0], tmp_path)
    assert list(tmp_path.glob("island-*")) == list(tmp_path.glob("globals*")) == []
    go(islands, "sm", round_=1, epoch=1)
    assert islands[0].parameter_hash() == islands[1].parameter_hash()
