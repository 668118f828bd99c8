"""Two islands as Ray actors: merges over Gloo, identical parameters, priority, nothing left."""

import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

import ray

from actors.config import FillConfig, IslandsConfig, MergeConfig
from actors.events import MergePart
from actors.island.comm import PeerLost
from actors.island.island_actor import IslandActor

pytestmark = [pytest.mark.ray, pytest.mark.slow]

BURNER = "actors.island.burner"
WINDOW_S = 1.5
INTERVAL_S = 0.05


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
) -> Iterator[list[Any]]:
    config = islands_config(2, step_interval_s=INTERVAL_S, num_cpus=0.5)
    fill = FillConfig(kind="matmul", threads=1, matrix_size=64)
    merge = merge_config(window_s=WINDOW_S, fill=fill, timeout_s=10.0)
    actors = [
        IslandActor.options(num_cpus=config.num_cpus).remote(config, merge, i)  # type: ignore[attr-defined]
        for i in range(2)
    ]
    join(actors)
    yield actors
    for actor in actors:
        ray.kill(actor)


def join(actors: list[Any]) -> None:
    address, port = ray.get(actors[0].address.remote())
    ray.get([actor.join.remote(address, port, len(actors), 60.0) for actor in actors])


def begin(actors: list[Any], *, seed: int, folder: Path) -> float:
    hashes = ray.get([a.reset.remote(seed=seed, checkpoint_dir=str(folder)) for a in actors])
    assert len(set(hashes)) == 1
    zero_s = time.monotonic()
    ray.get([actor.start.remote(zero_s) for actor in actors])
    return zero_s


def merge(actors: list[Any], zero_s: float, *, round_: int) -> list[MergePart]:
    start_s = time.monotonic() - zero_s
    end_s = start_s + WINDOW_S
    asked = [actor.merge.remote(round_, start_s, end_s) for actor in actors]
    during = ray.get([actor.progress.remote() for actor in actors], timeout=WINDOW_S)
    assert time.monotonic() - zero_s < end_s  # progress is answered during the merge
    assert [progress.island for progress in during] == [0, 1]
    parts: list[MergePart] = ray.get(asked)
    return parts


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


def test_two_islands_train_and_merge_twice_and_leave_nothing(
    pair: list[Any], tmp_path: Path
) -> None:
    before = set(descendants_named(BURNER))
    zero_s = begin(pair, seed=11, folder=tmp_path)
    hashes = set()
    for round_ in (1, 2):
        wait_for_steps(pair, 3)
        left, right = merge(pair, zero_s, round_=round_)
        assert left.parameter_hash == right.parameter_hash
        hashes.add(left.parameter_hash)
        assert left.weight + right.weight == pytest.approx(1.0)
        assert left.tokens == pytest.approx(left.weight * (left.tokens + right.tokens))
        assert left.pseudo_gradient_norm == right.pseudo_gradient_norm > 0
        assert left.checkpoint_s > 0 == right.checkpoint_s
        for part in (left, right):
            assert (part.round, part.bytes_reduced > 0) == (round_, True)
            assert part.real_s + part.emulated_s == pytest.approx(WINDOW_S)
            assert part.fill_cpu_s > 0
    assert len(hashes) == 2
    wait_for_steps(pair, 2)
    for island, done in enumerate(ray.get([actor.finish.remote() for actor in pair])):
        assert {row["island"] for row in done["rows"]} == {island}
        assert {row["round"] for row in done["rows"]} == {0, 1, 2}
        assert [row["step"] for row in done["rows"]] == list(range(1, done["steps"] + 1))
        assert all(row["step_s"] > 0 for row in done["rows"])
        assert done["tokens"] == 32 * done["steps"]
        assert done["cpu_s"] > 0
    assert [p.name for p in tmp_path.glob("merged*")] == ["merged-r00002.safetensors"]
    again = ray.get([a.reset.remote(seed=11, checkpoint_dir=None) for a in pair])
    assert again[0] == again[1] not in hashes
    burners = set(descendants_named(BURNER)) - before
    assert len(burners) == 2
    ray.get([actor.shutdown.remote() for actor in pair])
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
    pair: list[Any], tmp_path: Path
) -> None:
    before = set(descendants_named(BURNER))
    zero_s = begin(pair, seed=1, folder=tmp_path)
    wait_for_steps(pair, 2)
    burners = set(descendants_named(BURNER)) - before
    handles = [os.pidfd_open(pid) for pid in burners]
    ray.kill(pair[1])
    start_s = time.monotonic() - zero_s
    with pytest.raises(PeerLost, match="island 0 of 2"):
        ray.get(pair[0].merge.remote(1, start_s, start_s + WINDOW_S))
    gone = 0
    for handle in handles:
        gone += bool(select.select([handle], [], [], 5.0 if gone == 0 else 0.0)[0])
        os.close(handle)
    assert gone == 1  # the survivor keeps its own
    wait_for_steps(pair[:1], 1)  # and goes on training
    done = ray.get(pair[0].finish.remote())
    assert {row["round"] for row in done["rows"]} == {0}
    ray.get(pair[0].shutdown.remote())
