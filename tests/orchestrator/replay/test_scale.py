"""Many seeds: the same bytes however they are spread and wherever they were stopped."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.replay import scale
from orchestrator.replay.block import replay_seed, with_draws
from orchestrator.replay.judge import judge_replay_folder
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


def test_a_finished_replay_stays_whole_until_the_longer_one_is(
    tmp_path: Path, plant_file: Path
) -> None:
    run(job_of(6), tmp_path / "whole", plant_file)
    grown = tmp_path / "grown"
    run(job_of(3), grown, plant_file)
    files = ("study.json", "plant.json", "provenance.json", "replay.parquet")
    before = [(grown / name).read_bytes() for name in files]
    with pytest.raises(Killed):
        run(job_of(6), grown, plant_file, spread=killed_after(1))
    assert [(grown / name).read_bytes() for name in files] == before
    judge_replay_folder(grown)
    assert run(job_of(3), grown, plant_file) == [(3, 3)]  # the first command has nothing to do
    assert [(grown / name).read_bytes() for name in files] == before
    assert run(job_of(6), grown, plant_file)[0] == (4, 6)  # and the longer one lost nothing
    whole = (tmp_path / "whole" / "replay.parquet").read_bytes()
    assert (grown / "replay.parquet").read_bytes() == whole
    judge_replay_folder(grown)


@pytest.mark.parametrize("moved", [0, 1, 2, 3])
def test_a_swap_that_was_cut_is_ended_by_the_next_replay(
    tmp_path: Path, plant_file: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    grown, left, real = tmp_path / "grown", [moved], Path.replace
    run(job_of(3), grown, plant_file)

    def replace(source: Path, target: Path) -> Path:
        if target.parent == grown:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
        return real(source, target)

    with monkeypatch.context() as cut:
        cut.setattr(Path, "replace", replace)
        with pytest.raises(Killed):
            run(job_of(6), grown, plant_file)
    with pytest.raises(ValueError, match="a longer replay was stopped while its files"):
        judge_replay_folder(grown)
    assert run(job_of(6), grown, plant_file) == [(6, 6)]
    judge_replay_folder(grown)
    assert not (grown / "replay.parts").exists()


def test_a_table_that_was_edited_is_made_again(tmp_path: Path, plant_file: Path) -> None:
    folder = tmp_path / "edited"
    run(job_of(3), folder, plant_file)
    before = (folder / "replay.parquet").read_bytes()
    table = pq.read_table(folder / "replay.parquet")
    at = table.schema.get_field_index("violations")
    none = pa.array([0] * table.num_rows, pa.int64())
    edited = table.set_column(at, SCHEMA.field("violations"), none)
    with pq.ParquetWriter(folder / "replay.parquet", SCHEMA) as writer:
        for first in (0, 6):
            writer.write_table(edited.slice(first, 6))
    assert run(job_of(3), folder, plant_file)[0] == (0, 3)
    assert (folder / "replay.parquet").read_bytes() == before


def test_another_replay_under_the_same_name_is_refused(tmp_path: Path, plant_file: Path) -> None:
    folder = tmp_path / "held"
    run(job_of(), folder, plant_file)
    before = (folder / "replay.parquet").read_bytes()
    slower = PLANT.model_copy(update={"slots": 3})
    others = {
        "plant.slots: 4 there, 3 asked": ReplayJob(
            study=STUDY, plant=slower, study_dir=Path(), arms=None
        ),
        "--arms: all there, wa_ewma asked": ReplayJob(
            study=STUDY, plant=PLANT, study_dir=Path(), arms=("wa_ewma",)
        ),
        "seeds: 6 (0 to 5) there, 5 (0 to 4) asked": job_of(5),
        f"slo.e2e_s: {STUDY.slo.e2e_s} there, 0.2 asked": job_of(
            slo=STUDY.slo.model_copy(update={"e2e_s": 0.2})
        ),
    }
    for what, job in others.items():
        with pytest.raises(ValueError, match=re.escape(f"holds another replay ({what})")):
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
