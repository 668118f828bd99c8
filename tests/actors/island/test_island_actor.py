"""Two islands as Ray actors: merges, identical parameters, priority, nothing left."""

import asyncio
import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

import ray

from actors.config import FillConfig, IslandsConfig, MergeConfig
from actors.coordinator.calls import Caller
from actors.coordinator.gone_actor import is_gone
from actors.coordinator.group_keeper import GroupKeeper
from actors.coordinator.rounds import Outcome, Rounds
from actors.island.island_actor import IslandActor
from actors.island.step_island_actor import StepIslandActor

pytestmark = [pytest.mark.ray, pytest.mark.slow]

BURNER = "actors.island.burner"
WINDOW_S = 1.5
INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Pair:
    actors: list[Any]
    keeper: GroupKeeper
    rounds: Rounds


def paired(actors: list[Any], config: IslandsConfig, merge: MergeConfig) -> Pair:
    keeper = GroupKeeper(
        dict(enumerate(actors)), islands=config, merge=merge, caller=Caller(is_gone=is_gone)
    )
    return Pair(actors, keeper, Rounds(keeper, islands=config, merge=merge))


@pytest.fixture(scope="module")
def cluster(checkout: Path) -> Iterator[None]:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(checkout)}},
    )
    yield
    ray.shutdown()


@pytest.fixture
def pair(
    cluster: None,
    islands_config: Callable[..., IslandsConfig],
    merge_config: Callable[..., MergeConfig],
) -> Iterator[Pair]:
    config = islands_config(2, step_interval_s=INTERVAL_S, num_cpus=0.5)
    fill = FillConfig(kind="matmul", threads=1, matrix_size=64)
    merge = merge_config(window_s=WINDOW_S, fill=fill, timeout_s=10.0)
    actors = [
        IslandActor.options(num_cpus=config.num_cpus).remote(config, merge, i)  # type: ignore[attr-defined]
        for i in range(2)
    ]
    yield paired(actors, config, merge)
    for actor in actors:
        ray.kill(actor)


def begin(pair: Pair, *, seed: int, folder: Path) -> float:
    resets = [a.reset.remote(seed=seed, checkpoint_dir=str(folder)) for a in pair.actors]
    assert len(set(ray.get(resets))) == 1
    formation = asyncio.run(pair.keeper.ensure(pair.keeper.here))
    assert formation.transport == "shared_memory"
    zero_s = time.monotonic()
    ray.get([actor.start.remote(zero_s) for actor in pair.actors])
    return zero_s


def merge(pair: Pair, zero_s: float, *, round_: int) -> Outcome:
    start_s = time.monotonic() - zero_s
    end_s = start_s + WINDOW_S

    async def merge_and_ask() -> tuple[Outcome, Any]:
        merging = asyncio.ensure_future(
            pair.rounds.merge(round_, ready_args=(start_s,), commit_args=(end_s,))
        )
        during = await asyncio.gather(*[actor.progress.remote() for actor in pair.actors])
        assert time.monotonic() - zero_s < end_s  # progress is answered during the merge
        return await merging, during

    outcome, during = asyncio.run(merge_and_ask())
    assert [progress.island for progress in during] == [0, 1]
    return outcome


def wait_for_steps(actors: list[Any], steps: int) -> None:
    limit_s = time.monotonic() + 60
    while min(p.steps_since_merge for p in ray.get([a.progress.remote() for a in actors])) < steps:
        assert time.monotonic() < limit_s
        time.sleep(0.05)


def descendants_named(name: str) -> list[int]:
    """Processes below this one whose command line holds ``name``; burners keep their parent."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if name in " ".join(process.info["cmdline"] or ()):
            found.append(process.info["pid"])
    return found


def autogroup_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/autogroup").read_text().split()


def test_two_islands_train_and_merge_twice_and_leave_nothing(pair: Pair, tmp_path: Path) -> None:
    before = set(descendants_named(BURNER))
    zero_s = begin(pair, seed=11, folder=tmp_path)
    hashes = set()
    for round_ in (0, 1):
        wait_for_steps(pair.actors, 3)
        outcome = merge(pair, zero_s, round_=round_)
        assert outcome.merged
        assert outcome.dropped == {}
        assert outcome.norm is not None
        assert outcome.norm > 0
        left, right = outcome.committed[0], outcome.committed[1]
        assert left.parameter_hash == right.parameter_hash
        hashes.add(left.parameter_hash)
        assert left.weight + right.weight == pytest.approx(1.0)
        assert left.tokens == pytest.approx(left.weight * (left.tokens + right.tokens))
        assert left.checkpoint_s > 0 == right.checkpoint_s
        for part in (left, right):
            assert (part.round, part.bytes_reduced) == (round_, 0)
            assert part.real_s + part.emulated_s == pytest.approx(WINDOW_S)
            assert part.fill_cpu_s > 0
    assert len(hashes) == 2
    wait_for_steps(pair.actors, 2)
    for island, done in enumerate(ray.get([actor.finish.remote() for actor in pair.actors])):
        assert {row["island"] for row in done["rows"]} == {island}
        assert {row["round"] for row in done["rows"]} == {0, 1, 2}
        assert [row["step"] for row in done["rows"]] == list(range(1, done["steps"] + 1))
        assert all(row["step_s"] > 0 for row in done["rows"])
        assert done["tokens"] == 32 * done["steps"]
        assert done["cpu_s"] > 0
    stored = sorted(p.name for p in tmp_path.glob("merged*"))
    assert stored == ["merged-r00001.safetensors", "merged-r00001.sha256"]
    again = ray.get([a.reset.remote(seed=11, checkpoint_dir=None) for a in pair.actors])
    assert again[0] == again[1] not in hashes
    burners = set(descendants_named(BURNER)) - before
    assert len(burners) == 2
    ray.get([actor.shutdown.remote() for actor in pair.actors])
    assert not burners & set(psutil.pids())


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="this kernel has no scheduler autogroups"
)
def test_an_island_is_de_prioritised_and_the_session_it_came_from_is_not(
    cluster: None,
    islands_config: Callable[..., IslandsConfig],
    merge_config: Callable[..., MergeConfig],
) -> None:
    ours = autogroup_of(os.getpid())
    before = set(descendants_named("ray::IslandActor"))
    config = islands_config(1, autogroup_nice=15)
    actor = IslandActor.options(num_cpus=0.5).remote(config, merge_config(), 0)  # type: ignore[attr-defined]
    ray.get(actor.reset.remote(seed=0, checkpoint_dir=None))
    (pid,) = set(descendants_named("ray::IslandActor")) - before
    group = autogroup_of(pid)
    assert group[-1] == "15"
    raylet = autogroup_of(psutil.Process(pid).ppid())
    # A process in the root group, as in some containers, has no autogroup line at all.
    assert group[0] not in raylet
    assert "15" not in raylet
    assert autogroup_of(os.getpid()) == ours
    ray.get(actor.start.remote(time.monotonic()))
    assert ray.get(actor.finish.remote())["warnings"] == []
    ray.kill(actor)


def test_a_killed_island_is_lost_by_name_and_takes_its_burners_along(
    pair: Pair, tmp_path: Path
) -> None:
    before = set(descendants_named(BURNER))
    zero_s = begin(pair, seed=1, folder=tmp_path)
    wait_for_steps(pair.actors, 2)
    burners = set(descendants_named(BURNER)) - before
    handles = [os.pidfd_open(pid) for pid in burners]
    survivor, killed = pair.actors
    ray.kill(killed)
    start_s = time.monotonic() - zero_s
    outcome = asyncio.run(
        pair.rounds.merge(0, ready_args=(start_s,), commit_args=(start_s + WINDOW_S,))
    )
    assert not outcome.merged
    assert list(outcome.dropped) == [1]
    assert pair.keeper.members[1].gone
    gone = 0
    for handle in handles:
        gone += bool(select.select([handle], [], [], 5.0 if gone == 0 else 0.0)[0])
        os.close(handle)
    assert gone == 1  # the survivor keeps its own
    done_s = ray.get(survivor.progress.remote()).steps_since_merge
    wait_for_steps([survivor], done_s + 1)  # and goes on training
    done = ray.get(survivor.finish.remote())
    assert {row["round"] for row in done["rows"]} == {0}
    ray.get(survivor.shutdown.remote())


def test_islands_that_are_told_their_steps_save_load_and_go_on_to_the_bit(
    cluster: None,
    islands_config: Callable[..., IslandsConfig],
    merge_config: Callable[..., MergeConfig],
    tmp_path: Path,
) -> None:
    config, merging = islands_config(2, step_interval_s=1.0, num_cpus=0.5), merge_config()
    actors = [
        StepIslandActor.options(num_cpus=0.5).remote(config, merging, i)  # type: ignore[attr-defined]
        for i in range(2)
    ]

    def start() -> Pair:
        ray.get([actor.reset.remote(3, str(tmp_path), None) for actor in actors])
        return paired(actors, config, merging)

    def go(pair: Pair, *, round_: int) -> list[str]:
        ray.get([actor.advance.remote(3, 3.0 * round_) for actor in actors])
        outcome = asyncio.run(pair.rounds.merge(round_, ready_args=(), commit_args=(1.0,)))
        assert outcome.merged
        return [outcome.committed[0], outcome.committed[1]]

    pair = start()
    first = go(pair, round_=0)
    saved = ray.get([actors[i].save.remote(str(tmp_path / "c"), 0, i == 0) for i in range(2)])
    assert [len(one.rows) for one in saved] == [3, 3]
    files = tuple(file for one in saved for file in one.files)
    later = go(pair, round_=1)
    pair = start()  # as a coordinator that begins anew does
    loads = [
        actors[i].load.remote(str(tmp_path / "c"), files, f"island-{i}.safetensors")
        for i in range(2)
    ]
    assert ray.get(loads) == first
    assert go(pair, round_=1) == later
    assert later[0] == later[1] != first[0]
    rows = ray.get(actors[0].drain_rows.remote())
    assert [(row["step"], row["round"], row["at_s"]) for row in rows] == [
        (4, 1, 3.0),
        (5, 1, 4.0),
        (6, 1, 5.0),
    ]
    for actor in actors:
        ray.kill(actor)
