"""An island at work, without Ray: windows by part, training around them, no silent loss."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file

from actors.clock import MonotonicClock
from actors.config import FillConfig, InnerConfig, IslandsConfig, MergeConfig
from actors.events import MergePart
from actors.island.fill import FillFailed
from actors.island.island import LossNotFinite, WrongRound
from actors.island.runner import IslandRunner, IslandStopped
from actors.island.state_file import DiskFull
from actors.merge_messages import SERVED, Formation, RoundPlan, ServeExport
from actors.priority import Priority
from actors.serving.exported import read_exported
from actors.serving.llama_folder import WEIGHTS

pytestmark = pytest.mark.torch

MakeRunner = Callable[..., IslandRunner]
INTERVAL_S = 0.02
WINDOW_S = 0.8
SHORT_S = 0.2  # a window where nothing is asked of its length


@pytest.fixture
def runner(
    islands_config: Callable[..., IslandsConfig], merge_config: Callable[..., MergeConfig]
) -> Iterator[MakeRunner]:
    """Runners of one paced island that burns; none may take this process out of its session."""
    made = []

    def make(
        *,
        fill: bool = True,
        merge: dict[str, object] | None = None,
        export: ServeExport | None = None,
        priority: Priority | None = None,
        **changes: object,
    ) -> IslandRunner:
        burning = FillConfig(kind="matmul", threads=1, matrix_size=64)
        fields: dict[str, object] = {"window_s": WINDOW_S, **(merge or {})}
        merging = merge_config(**fields, **({"fill": burning} if fill else {}))
        config = islands_config(**({"step_interval_s": INTERVAL_S} | changes))
        made.append(
            IslandRunner(
                config,
                merging,
                0,
                clock=MonotonicClock(),
                priority=priority or Priority(0, own_group=False, warning=None),
                export=export,
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    limit_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit_s
        pause.wait(0.005)


def steps(runner: IslandRunner) -> int:
    return runner.progress().steps_since_merge


def plan_of(round_: int) -> RoundPlan:
    """Of the group of one that a reset forms."""
    return RoundPlan(round=round_, epoch=0, weights=(1.0,), fragment=0)


def reduced(runner: IslandRunner, *, start_s: float, round_: int = 0) -> RoundPlan:
    """A merge up to its commit."""
    runner.ready(round_=round_, fragment=0, start_s=start_s)
    told = runner.reduce(plan_of(round_))
    assert told.sum_squares > 0
    return plan_of(round_)


def merge_from_now(
    runner: IslandRunner,
    zero_s: float,
    *,
    round_: int = 0,
    late_s: float = 0.0,
    window_s: float = WINDOW_S,
) -> MergePart:
    start_s = time.monotonic() - zero_s - late_s
    plan = reduced(runner, start_s=start_s, round_=round_)
    return runner.commit(plan, end_s=start_s + window_s)


def begun(runner: IslandRunner, *, folder: Path | None = None) -> float:
    runner.reset(seed=0, folder=folder)
    zero_s = time.monotonic()
    runner.start(zero_monotonic_s=zero_s)
    wait_for(lambda: steps(runner) >= 3)
    return zero_s


def test_a_window_is_accounted_for_by_part(runner: MakeRunner, tmp_path: Path) -> None:
    island = runner()
    zero_s = begun(island, folder=tmp_path)
    part = merge_from_now(island, zero_s)
    returned_at_s = time.monotonic() - zero_s
    start_s = part.ended_at_s - part.real_s
    assert returned_at_s >= start_s + WINDOW_S
    parts_s = (part.wait_s, part.codec_s, part.all_reduce_s, part.outer_step_s, part.checkpoint_s)
    assert sum(parts_s) == pytest.approx(part.real_s, abs=0.05)
    assert min(part.wait_s, part.all_reduce_s, part.outer_step_s, part.checkpoint_s) > 0
    assert part.codec_s == 0.0
    assert part.codec_error is None
    assert part.real_s + part.emulated_s == pytest.approx(WINDOW_S)
    assert 0 < part.fill_cpu_s <= 1.1 * WINDOW_S
    assert (part.weight, part.bytes_reduced, part.missed_rounds) == (1.0, 0, 0)
    assert (tmp_path / "merged-r00000.safetensors").exists()
    assert (tmp_path / "merged-r00000.sha256").exists()


def test_training_halts_in_the_window_and_goes_on_after_it(runner: MakeRunner) -> None:
    island = runner()
    zero_s = begun(island)
    part = merge_from_now(island, zero_s)
    start_s = part.ended_at_s - part.real_s
    wait_for(lambda: steps(island) >= 2)
    done = island.finish()
    at_s = [row["at_s"] for row in done["rows"]]
    halted = [moment for moment in at_s if start_s + part.wait_s < moment < start_s + WINDOW_S]
    assert halted == []
    assert part.tokens == 32 * sum(row["round"] == 0 for row in done["rows"])
    assert done["rows"][-1]["round"] == 1
    assert done["steps"] == len(done["rows"])
    assert done["tokens"] == 32 * done["steps"]
    assert done["cpu_s"] > 0
    assert done["warnings"] == []


def test_without_fill_the_window_still_lasts(runner: MakeRunner) -> None:
    island = runner(fill=False)
    part = merge_from_now(island, begun(island))
    assert (part.emulated_s, part.fill_cpu_s) == (0.0, 0.0)
    assert part.real_s < WINDOW_S


def test_a_command_that_comes_early_waits_for_the_start(runner: MakeRunner) -> None:
    island = runner(fill=False)
    zero_s = begun(island)
    start_s = time.monotonic() - zero_s + 0.2
    plan = reduced(island, start_s=start_s)
    assert time.monotonic() - zero_s >= start_s
    part = island.commit(plan, end_s=start_s + WINDOW_S)
    assert part.wait_s >= 0
    assert part.ended_at_s >= start_s


def test_real_work_that_overran_is_not_filled(runner: MakeRunner) -> None:
    island = runner()
    zero_s = begun(island)
    part = merge_from_now(island, zero_s, late_s=10.0)  # the command comes after its own window
    assert part.real_s > WINDOW_S
    assert (part.emulated_s, part.fill_cpu_s) == (0.0, 0.0)
    wait_for(lambda: steps(island) >= 1)


def test_an_aborted_merge_lets_training_go_on_as_it_was(runner: MakeRunner) -> None:
    island = runner(fill=False)
    zero_s = begun(island)
    plan = reduced(island, start_s=time.monotonic() - zero_s)
    stood = steps(island)
    island.abort(round_=0)
    wait_for(lambda: steps(island) >= stood + 2)
    with pytest.raises(RuntimeError, match="merge 0, but it stands ready for none"):
        island.commit(plan, end_s=0.0)
    assert merge_from_now(island, zero_s, round_=1).round == 1
    assert {row["round"] for row in island.finish()["rows"]} <= {0, 2}


def test_an_abort_ends_no_round_but_its_own(runner: MakeRunner) -> None:
    """One that reaches an island late must neither end another round nor hurry its training."""
    island = runner(fill=False)
    zero_s = begun(island)
    start_s = time.monotonic() - zero_s
    plan = reduced(island, start_s=start_s, round_=1)
    island.abort(round_=0)
    part = island.commit(plan, end_s=start_s + SHORT_S)
    assert part.round == 1
    island.abort(round_=1)  # which it has taken over
    wait_for(lambda: steps(island) >= 3)
    rows = island.finish()["rows"]
    after = [row["at_s"] for row in rows if row["round"] == 2]
    assert after[0] >= start_s + SHORT_S
    assert min(b - a for a, b in itertools.pairwise(after)) > 0.5 * INTERVAL_S


def test_an_arm_that_ends_inside_a_window_leaves_nothing_to_the_next(runner: MakeRunner) -> None:
    """Whoever asked for the merge is gone: nobody commits or aborts it."""
    island = runner(fill=False)
    zero_s = begun(island)
    reduced(island, start_s=time.monotonic() - zero_s)
    assert {row["round"] for row in island.finish()["rows"]} == {0}
    part = merge_from_now(island, begun(island), window_s=SHORT_S)
    assert part.tokens == 32 * sum(row["round"] == 0 for row in island.finish()["rows"])


class Noted(Priority):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(5, own_group=False, warning=None)
        self.told: list[str] = []

    def raised(self) -> str | None:
        self.told.append("raised")
        return None

    def lowered(self) -> str | None:
        self.told.append("lowered")
        return None


@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_priority_is_high_while_a_merge_halts_the_training(
    runner: MakeRunner, overlap_steps: int
) -> None:
    noted = Noted()
    island = runner(fill=False, priority=noted, merge={"overlap_steps": overlap_steps})
    merge_from_now(island, begun(island), window_s=SHORT_S)
    halts = 2 if overlap_steps else 1  # once to measure, once to take over
    assert noted.told == ["lowered", *["raised", "lowered"] * halts]


def test_the_model_is_left_for_a_server_after_the_merges_that_are_due(
    runner: MakeRunner, tmp_path: Path
) -> None:
    export = ServeExport(every_merges=2, max_len_tokens=64, keep_rounds=1)
    island = runner(fill=False, export=export)
    zero_s = begun(island, folder=tmp_path)
    island.export_start(tmp_path / SERVED, seed=0)
    assert merge_from_now(island, zero_s, window_s=SHORT_S).export_s == 0.0
    wait_for(lambda: steps(island) >= 2)
    part = merge_from_now(island, zero_s, round_=1, window_s=SHORT_S)
    assert 0 < part.export_s < part.real_s
    folders = sorted(path.name for path in (tmp_path / SERVED).iterdir())
    assert folders == ["round-00001", "round-initial"]
    left = read_exported(tmp_path / SERVED / "round-00001")
    assert left.round == 1
    served = load_file(left.folder / WEIGHTS)
    merged = load_file(tmp_path / "merged-r00001.safetensors")
    assert torch.equal(served["model.embed_tokens.weight"], merged["embedding"])


def test_a_server_that_keeps_its_weights_is_left_none(runner: MakeRunner, tmp_path: Path) -> None:
    export = ServeExport(every_merges=None, max_len_tokens=64, keep_rounds=1)
    island = runner(fill=False, export=export)
    part = merge_from_now(island, begun(island, folder=tmp_path), window_s=SHORT_S)
    assert part.export_s == 0.0
    assert not (tmp_path / SERVED).exists()


def test_training_goes_on_in_a_window_that_overlaps_with_it(runner: MakeRunner) -> None:
    island = runner(fill=False, merge={"overlap_steps": 3, "overlap_mixing": 0.5})
    zero_s = begun(island)
    start_s = time.monotonic() - zero_s
    at_snapshot = island.ready(round_=0, fragment=0, start_s=start_s).steps
    island.reduce(plan_of(0))
    part = island.commit(plan_of(0), end_s=start_s + WINDOW_S)
    wait_for(lambda: steps(island) >= 5)
    rows = island.finish()["rows"]
    before = [row for row in rows if row["round"] == 0]
    assert len(before) >= at_snapshot + 3  # tau steps more, before the merge was taken over
    in_window = [row for row in rows if start_s < row["at_s"] < start_s + WINDOW_S]
    assert len(in_window) > 3  # and on to the window's end
    gaps_s = [b["at_s"] - a["at_s"] for a, b in itertools.pairwise(rows)]
    assert min(gaps_s) > 0.5 * INTERVAL_S  # no burst where it stood for a moment
    assert part.tokens == 32 * at_snapshot


def test_a_new_arm_starts_as_the_first_one_did(runner: MakeRunner) -> None:
    island = runner()
    first = island.reset(seed=4, folder=None)
    merge_from_now(island, begun(island))
    assert island.reset(seed=4, folder=None) == first  # also without finish
    island.start(zero_monotonic_s=time.monotonic())
    wait_for(lambda: steps(island) >= 2)
    rows = island.finish()["rows"]
    assert (rows[0]["step"], rows[0]["round"]) == (1, 0)


def test_an_error_in_training_reaches_progress_merge_and_finish(runner: MakeRunner) -> None:
    island = runner(inner=InnerConfig(lr=1e30, clip_norm=None))
    island.reset(seed=0, folder=None)
    island.start(zero_monotonic_s=time.monotonic())

    def failed() -> bool:
        try:
            island.progress()
        except LossNotFinite:
            return True
        return False

    wait_for(failed)
    with pytest.raises(LossNotFinite):
        island.ready(round_=0, fragment=0, start_s=0.0)
    with pytest.raises(LossNotFinite):
        island.finish()
    island.reset(seed=0, folder=None)  # and the next arm is clean
    assert steps(island) == 0


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskFull("no space")

    monkeypatch.setattr("actors.island.island.write_checkpoint", full)


def test_a_full_disk_is_raised_and_training_goes_on(
    runner: MakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch)
    island = runner()
    zero_s = begun(island, folder=tmp_path)
    with pytest.raises(DiskFull):
        merge_from_now(island, zero_s)
    wait_for(lambda: steps(island) >= 2)
    assert island.finish()["rows"][-1]["round"] == 1


def test_a_disk_that_was_full_in_the_background_is_told_of_before_the_arm_ends(
    runner: MakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch)
    island = runner(fill=False, merge={"checkpoint_in_background": True})
    zero_s = begun(island, folder=tmp_path)
    part = merge_from_now(island, zero_s)
    assert part.checkpoint_s < 0.5
    with pytest.raises(DiskFull):
        island.finish()
    merge_from_now(island, begun(island, folder=tmp_path))  # the next arm
    island.reset(seed=0, folder=None)  # which nobody finished: nothing is raised, but told
    island.start(zero_monotonic_s=time.monotonic())
    (warning,) = island.finish()["warnings"]
    assert "a checkpoint of the arm before was lost: no space" in warning


@pytest.mark.parametrize("fill", [True, False])
def test_shutdown_ends_a_window_early(runner: MakeRunner, fill: bool) -> None:
    island = runner(fill=fill)
    zero_s = begun(island)
    start_s = time.monotonic() - zero_s
    plan = reduced(island, start_s=start_s)
    raised: list[BaseException] = []

    def commit() -> None:
        try:
            island.commit(plan, end_s=start_s + 600)
        except (FillFailed, IslandStopped) as error:
            raised.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    wait_for(lambda: steps(island) == 0)  # merged, and waiting for the end of the window
    island.shutdown()
    thread.join(20)
    assert len(raised) == 1


def test_calls_out_of_order_say_what_to_call(runner: MakeRunner) -> None:
    island = runner(fill=False)
    with pytest.raises(RuntimeError, match="call reset and start"):
        island.finish()
    begun(island)
    with pytest.raises(RuntimeError, match="started twice"):
        island.start(zero_monotonic_s=time.monotonic())
    with pytest.raises(RuntimeError, match="merge 5, but it stands ready for none"):
        island.reduce(plan_of(5))
    with pytest.raises(RuntimeError, match="merge 5, but it stands ready for none"):
        island.rescale(plan_of(5))
    with pytest.raises(WrongRound, match="group 0 after 0"):
        island.form(Formation(epoch=0, members=(0,), transport="alone"))
