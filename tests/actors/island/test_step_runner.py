"""Islands that are told their steps: the clock is a function of them, calls take turns."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from actors.config import IslandsConfig, MergeConfig
from actors.island.island import WrongRound
from actors.island.state_file import TornFile
from actors.island.step_runner import StepRunner
from actors.merge_messages import Formation, RoundPlan, Saved

pytestmark = pytest.mark.torch

MakeIslands = Callable[..., IslandsConfig]
MakeMerge = Callable[..., MergeConfig]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made(config: IslandsConfig, merge: MergeConfig) -> list[StepRunner]:
    runners = [StepRunner(config, merge, i) for i in range(config.count)]
    for runner in runners:
        runner.reset(seed=2, folder=None)
    return runners


def form(runners: Sequence[StepRunner], *, epoch: int) -> None:
    told = [runner.introduce(address="127.0.0.1") for runner in runners]
    segments = tuple(one.segment for one in told if one.segment is not None)
    assert all(runner.can_share_with(segments) for runner in runners)
    formation = Formation(epoch=epoch, members=(0, 1), transport="shared_memory", segments=segments)
    banks = runners[0].form(formation)
    runners[1].form(replace(formation, banks=banks))


def plan_of(round_: int, *, epoch: int) -> RoundPlan:
    return RoundPlan(round=round_, epoch=epoch, weights=(0.5, 0.5), fragment=0)


def go(runners: Sequence[StepRunner], *, round_: int, epoch: int) -> str:
    """Three steps and a merge; what both prove."""
    for runner in runners:
        runner.advance(steps=3, from_s=10.0 * round_)
        runner.ready(round_=round_, fragment=0)
    plan = plan_of(round_, epoch=epoch)
    for runner in runners:
        runner.reduce(plan)
    (digest,) = {runner.commit(plan, end_s=10.0 * round_ + 5) for runner in runners}
    return digest


def test_the_run_clock_is_a_function_of_the_steps(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    runners = made(islands_config(2, step_interval_s=0.5), merge_config())
    form(runners, epoch=1)
    go(runners, round_=0, epoch=1)
    progress = runners[0].advance(steps=2, from_s=10.0)
    assert (progress.steps_since_merge, progress.staleness_s) == (2, 6.0)
    assert runners[0].progress(at_s=25.0).staleness_s == 20.0
    rows = runners[0].drain_rows()
    assert [row["at_s"] for row in rows] == [0.0, 0.5, 1.0, 10.0, 10.5]
    assert [row["round"] for row in rows] == [0, 0, 0, 1, 1]


def test_a_run_goes_on_from_its_files_to_the_bit(
    islands_config: MakeIslands, merge_config: MakeMerge, tmp_path: Path
) -> None:
    config = islands_config(2, step_interval_s=0.5)
    whole = made(config, merge_config())
    form(whole, epoch=1)
    first = go(whole, round_=0, epoch=1)
    saved: list[Saved] = [
        runner.save(tmp_path, round_=0, lead=i == 0) for i, runner in enumerate(whole)
    ]
    assert [len(one.files) for one in saved] == [2, 1]  # the leader's has what is global too
    assert [len(one.rows) for one in saved] == [3, 3]
    assert whole[0].drain_rows() == []
    files = tuple(file for one in saved for file in one.files)
    expected = [go(whole, round_=1, epoch=1), go(whole, round_=2, epoch=1)]
    again = made(config, merge_config())
    for i, runner in enumerate(again):
        assert runner.load(tmp_path, files, own=f"island-{i}.safetensors") == first
    form(again, epoch=1)
    assert [go(again, round_=1, epoch=1), go(again, round_=2, epoch=1)] == expected
    (tmp_path / "globals.safetensors").write_bytes(b"no")
    with pytest.raises(TornFile, match=r"globals\.safetensors"):
        again[0].load(tmp_path, files, own="island-0.safetensors")


def test_a_reset_waits_for_the_call_that_runs_and_ends_its_round(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    """A coordinator that is gone may have left a call behind when the next one begins."""
    runners = made(islands_config(2, step_interval_s=0.5), merge_config())
    form(runners, epoch=1)
    first = runners[0]
    first.ready(round_=0, fragment=0)
    begun = threading.Event()

    def reset() -> None:
        begun.set()
        first.reset(seed=2, folder=None)

    with first.turn:  # as a long call holds it
        waiter = threading.Thread(target=reset)
        waiter.start()
        assert begun.wait(10)
        assert waiter.is_alive()
    waiter.join(10)
    assert not waiter.is_alive()
    with pytest.raises(WrongRound):
        first.reduce(plan_of(0, epoch=1))


def test_a_reduction_runs_beside_the_steps(
    islands_config: MakeIslands, merge_config: MakeMerge
) -> None:
    runners = made(islands_config(2, step_interval_s=0.5), merge_config(overlap_steps=2))
    form(runners, epoch=1)
    for runner in runners:
        runner.advance(steps=2, from_s=0.0)
        runner.ready(round_=0, fragment=0)
    plan = plan_of(0, epoch=1)
    with runners[0].turn:  # while a step runs
        reduced = [runner.reduce(plan) for runner in runners]
    assert all(one.sum_squares > 0 for one in reduced)
    for runner in runners:
        runner.advance(steps=2, from_s=1.0)
    assert len({runner.commit(plan, end_s=2.0) for runner in runners}) == 1
    assert [runner.progress(at_s=2.0).steps_since_merge for runner in runners] == [2, 2]
