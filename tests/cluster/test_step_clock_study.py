"""Studies on the step clock on Ray: whole, with its driver killed, and with an island lost.

Planned faults hold a run at a known inner step, so that nothing depends on how fast it is.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.events import (
    ArmFinished,
    Checkpointed,
    Decided,
    Event,
    IslandDropped,
    IslandFinished,
    IslandJoined,
    MergeFinished,
    MergePart,
    MergeStarted,
    Ticked,
    Validated,
)
from orchestrator.redecide import redecide
from orchestrator.rundir import read_run
from orchestrator.training.record import StepRecord, read_events, read_step_run
from tests.cluster.studies import Lull, wait_for, write_study

pytest.importorskip("ray")
pytest.importorskip("torch")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.step_clock,
    pytest.mark.slow,
    pytest.mark.usefixtures("nothing_left"),
]

# Merges after 30, 60 and 90 inner steps of each island, and 10 more.
MERGE_STEPS, STEPS = 30, 100


def steps_study(folder: Path, *faults: dict[str, Any], **changes: Any) -> Path:
    return write_study(
        folder,
        clock="steps",
        corridor={"floor_steps": 20, "ceiling_steps": 60, "target_steps": 30, "budget_merges": 3},
        policies={"every": {"kind": "fixed_h", "h_steps": MERGE_STEPS}},
        arms=[{"kind": "policy", "policy": "every"}],
        judge=[],
        merge={
            "window_s": 1.0,
            "fill": {"kind": "none"},
            "checkpoint_content": "full",
            "checkpoint_keep": 2,
        },
        islands__data={"source": "stdlib", "max_bytes": 400_000, "validation_fraction": 0.01},
        islands__faults=list(faults),
        training={"validate_every_merges": 1},
        **changes,
    )


def freeze(island: int, *, step: int, seconds: float) -> dict[str, Any]:
    return {
        "island": island, "at": "inner_step", "step": step, "do": "freeze", "freeze_s": seconds
    }  # fmt: skip


def the_run(out: Path) -> Path:
    (run,) = (out / "tiny").glob("every-s0-*")
    return run


def bare(event: Event) -> Event:
    """Without what a wall clock measured, which is no part of the result."""
    match event:
        case Checkpointed():
            return replace(event, took_s=0.0)
        case IslandFinished():
            return replace(event, cpu_s=0.0)
        case MergeFinished(parts=parts):
            return replace(event, parts=tuple(_bare_part(part) for part in parts))
        case _:
            return event


def _bare_part(part: MergePart) -> MergePart:
    return replace(part, codec_s=0.0, all_reduce_s=0.0, outer_step_s=0.0, real_s=0.0)


def of(record: StepRecord, kind: type) -> list[Any]:
    return [event for event in record.events if isinstance(event, kind)]


def test_a_run_whose_driver_was_killed_ends_as_the_one_that_was_not(
    lull: Lull, tmp_path: Path
) -> None:
    study = steps_study(tmp_path, freeze(1, step=75, seconds=6.0))
    code, output = lull("run", str(study), "--out", "whole")
    assert code == 0, output
    assert "trained on the step clock, nothing was served" in output
    assert "minus every" in output
    whole = read_step_run(the_run(tmp_path / "whole"))
    assert (whole.status, len(of(whole, MergeFinished))) == ("complete", 3)
    assert [row.tick for row in of(whole, MergeStarted)] == [6, 16, 26]
    assert len({e.parameter_hash for e in of(whole, IslandFinished)}) == 1
    assert whole.train.num_rows == 2 * STEPS
    (closing,) = [e for e in of(whole, Validated) if e.closing]
    assert 0.0 < closing.loss < 6.0
    again = redecide(read_run(whole.path))
    assert (again.mismatches, again.ticks) == (0, len(of(whole, Ticked)))

    child = lull.start("run", str(study), "--out", "cut")

    def frozen() -> bool:
        assert child.poll() is None, child.communicate()[0]
        made = ("planned-fault-0", "checkpoint-r00002/manifest.json")  # the islands do not wait
        return all(any((tmp_path / "cut").glob(f"tiny/every-s0-*/{name}")) for name in made)

    wait_for(frozen, limit_s=120.0, what="island 1 frozen after 75 steps")
    child.kill()
    child.wait()
    run = the_run(tmp_path / "cut")
    assert not isinstance(read_events(run / "events.jsonl")[-1], ArmFinished)
    code, output = lull("run", "--resume", str(run))
    assert code == 0, output
    assert "goes on after merge 2 (tick 16)" in output
    cut = read_step_run(run)
    assert cut.status == "complete"
    assert [bare(e) for e in cut.events] == [bare(e) for e in whole.events]
    assert of(cut, Decided) == of(whole, Decided)
    assert cut.train.drop_columns(["step_s"]).equals(whole.train.drop_columns(["step_s"]))

    code, output = lull("run", str(study), "--out", "cut", "--resume")
    assert code == 0, output
    assert "1 complete runs reused" in output
    assert read_step_run(run).events == cut.events


def test_an_elastic_run_loses_an_island_in_a_reduction_and_takes_it_back(
    lull: Lull, tmp_path: Path
) -> None:
    kill = {"island": 1, "at": "reduce", "round": 1, "do": "kill"}
    # Alone, island 0 is waited for: long enough for Ray to start the other one anew.
    study = steps_study(
        tmp_path,
        kill,
        freeze(0, step=61, seconds=16.0),
        freeze(0, step=66, seconds=8.0),
        islands__elastic={"quorum": 1, "grace_s": 20.0},
    )
    code, output = lull("run", str(study), "--out", "runs")
    assert code == 0, output
    record = read_step_run(the_run(tmp_path / "runs"))
    assert record.status == "complete"
    dropped, joined = of(record, IslandDropped), of(record, IslandJoined)
    assert dropped[0].island == 1
    assert [e.island for e in joined][:1] == [1]
    assert not joined[0].kept_steps
    merges = of(record, MergeFinished)
    assert [e.round for e in merges] == [0, 1, 2]
    assert [part.island for part in merges[1].parts] == [0]
    assert [part.island for part in merges[2].parts] == [0, 1]
    for merge in (merges[0], merges[2]):
        assert len({part.parameter_hash for part in merge.parts}) == 1
    assert len({e.parameter_hash for e in of(record, IslandFinished)}) == 1
    assert len(of(record, IslandFinished)) == 2
