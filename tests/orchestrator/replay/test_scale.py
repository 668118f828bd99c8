"""Many seeds: the same bytes however they are spread and wherever they were stopped."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.replay import scale
from orchestrator.replay.block import replay_seed, with_draws
from orchestrator.replay.scale import Batch, ReplayJob, in_this_process, run_replay
from orchestrator.replay.table import SCHEMA, cut_batches, from_table, read_rows, to_table
from orchestrator.study import load_study
from tests.replaying import PLANT, replay_study

STUDY = replay_study(
    horizon_s=40.0,
    corridor={"budget_merges": 3},
    seeds=list(range(6)),
    arms=[{"kind": "no_sync"}, {"kind": "policy", "policy": "wa_ewma"}],
)


class Killed(Exception):
    """Stands for the end of the driver."""


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.replay.table.ROWS_IN_GROUP", 6)  # two seeds
    monkeypatch.setattr("orchestrator.replay.scale.study_provenance", dict)  # it asks git


@pytest.fixture
def plant_file(tmp_path: Path) -> Path:
    path = tmp_path / "plant.json"
    path.write_text(PLANT.model_dump_json())
    return path


def job_of(seeds: int = 6, **changes: object) -> ReplayJob:
    study = STUDY.model_copy(update={"seeds": tuple(range(seeds)), **changes})
    return ReplayJob(study=study, plant=PLANT, study_dir=Path(), arms=None)


def run(
    job: ReplayJob,
    folder: Path,
    plant_file: Path,
    *,
    spread: scale.Spread = in_this_process,
) -> list[tuple[int, int]]:
    """The progress that was told."""
    told: list[tuple[int, int]] = []
    folder.mkdir(exist_ok=True)
    run_replay(
        job,
        folder,
        spread=spread,
        plant_file=plant_file,
        progress=lambda done, total: told.append((done, total)),
    )
    return told


def killed_after(batches_done: int) -> scale.Spread:
    def spread(job: ReplayJob, batches: Sequence[Batch]) -> Iterator[tuple[int, pa.Table]]:
        for i, found in enumerate(in_this_process(job, batches)):
            if i == batches_done:
                raise Killed
            yield found

    return spread


def backwards(job: ReplayJob, batches: Sequence[Batch]) -> Iterator[tuple[int, pa.Table]]:
    return in_this_process(job, batches[::-1])


def test_rows_come_back_from_the_table_as_they_went_in() -> None:
    study = with_draws(replay_study(), 2)
    rows = replay_seed(study, seed=1, plant=PLANT, study_dir=Path())
    assert from_table(to_table(rows)) == rows
    assert to_table(rows).schema == SCHEMA


def test_a_killed_replay_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, plant_file: Path
) -> None:
    run(job_of(), tmp_path / "whole", plant_file)
    broken = tmp_path / "broken"
    with pytest.raises(Killed):
        run(job_of(), broken, plant_file, spread=killed_after(2))
    assert not (broken / "replay.parquet").exists()
    torn = broken / "replay.parts" / "000000.parquet"
    torn.write_bytes(torn.read_bytes()[:100])  # a batch that a full disk cut is made again
    assert run(job_of(), broken, plant_file, spread=backwards)[0] == (2, 6)
    whole = (tmp_path / "whole" / "replay.parquet").read_bytes()
    assert (broken / "replay.parquet").read_bytes() == whole
    assert not (broken / "replay.parts").exists()
    groups = list(read_rows(broken / "replay.parquet"))
    assert [[r.replicate for r in g] for g in groups] == [
        [0, 0, 0, 1, 1, 1],
        [2, 2, 2, 3, 3, 3],
        [4, 4, 4, 5, 5, 5],
    ]


def test_more_seeds_go_on_from_those_that_are_there(tmp_path: Path, plant_file: Path) -> None:
    run(job_of(6), tmp_path / "whole", plant_file)
    grown = tmp_path / "grown"
    run(job_of(3), grown, plant_file)
    assert run(job_of(6), grown, plant_file)[0] == (2, 6)  # the group cut short is made again
    assert run(job_of(6), grown, plant_file) == [(6, 6)]
    whole = (tmp_path / "whole" / "replay.parquet").read_bytes()
    assert (grown / "replay.parquet").read_bytes() == whole
    assert json.loads((grown / "study.json").read_text())["seeds"] == list(range(6))
    facts = json.loads((grown / "provenance.json").read_text())
    assert (facts["source"], facts["engine"]) == ("replay", "model")
    assert (grown / "plant.json").read_bytes() == plant_file.read_bytes()


def test_another_replay_under_the_same_name_is_refused(tmp_path: Path, plant_file: Path) -> None:
    folder = tmp_path / "held"
    run(job_of(), folder, plant_file)
    before = (folder / "replay.parquet").read_bytes()
    slower = PLANT.model_copy(update={"slots": 3})
    others = {
        "plant": ReplayJob(study=STUDY, plant=slower, study_dir=Path(), arms=None),
        "arms": ReplayJob(study=STUDY, plant=PLANT, study_dir=Path(), arms=("wa_ewma",)),
        "seeds": job_of(5),
        "slo": job_of(slo=STUDY.slo.model_copy(update={"e2e_s": 0.2})),
    }
    for what, job in others.items():
        with pytest.raises(ValueError, match=f"holds a replay with another {what}"):
            run(job, folder, plant_file)
    assert (folder / "replay.parquet").read_bytes() == before


def test_a_batch_holds_about_as_many_rows_whatever_the_arms() -> None:
    assert cut_batches((4, 5, 6, 7, 8), arms=3) == ((4, 5), (6, 7), (8,))
    assert cut_batches((4, 5), arms=1000) == ((4,), (5,))


def test_row_groups_are_the_batches(tmp_path: Path, plant_file: Path) -> None:
    run(job_of(5), tmp_path / "five", plant_file)
    with pq.ParquetFile(tmp_path / "five" / "replay.parquet") as file:
        assert [file.metadata.row_group(i).num_rows for i in range(3)] == [6, 6, 3]


def test_a_replay_block_in_a_study_leaves_its_runs_their_hash(
    tmp_path: Path,
) -> None:
    from orchestrator.arms import expand_arms
    from orchestrator.rundir import run_hash

    raw = STUDY.model_dump(mode="json")
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(raw | {"replay": {"plant": "plant.json", "draws": 99}}))
    study = load_study(path)
    assert study.replay is not None
    assert (study.replay.plant, study.replay.draws) == ("plant.json", 99)
    for arm in expand_arms(study):
        assert run_hash(study, arm) == run_hash(STUDY, arm)
