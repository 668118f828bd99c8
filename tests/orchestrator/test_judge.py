"""Judging a study folder: from its runs alone, the same each time, and written whole."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.calibration.verdict import Judgement, Status, VerdictKind
from orchestrator.judge import judge_study, least_attainable_p
from orchestrator.rundir import read_run, read_study

MakeDir = Callable[..., Path]


def _run(study_dir: Path, label: str, seed: int = 0) -> Path:
    return next(study_dir.glob(f"{label}-s{seed}-*"))


def _status(judgement: Judgement, name: str) -> Status:
    return next(c.status for c in judgement.verdicts[0].conditions if c.name == name)


def _outputs(study_dir: Path) -> dict[str, bytes]:
    paths = [study_dir / "verdicts.json", *study_dir.glob("*/metrics.json")]
    return {str(p.relative_to(study_dir)): p.read_bytes() for p in paths}


@pytest.fixture
def study_dir(make_study_dir: MakeDir) -> Path:
    return make_study_dir(seeds=[0, 1])


def test_metrics_and_verdicts_are_recomputed_to_the_byte_and_never_read(study_dir: Path) -> None:
    first = judge_study(study_dir)
    written = _outputs(study_dir)
    assert len(written) == 1 + 2 * 5
    for name in written:
        (study_dir / name).unlink()
    assert judge_study(study_dir) == first
    assert _outputs(study_dir) == written
    for name in written:
        (study_dir / name).write_text("nonsense {")
    assert judge_study(study_dir) == first
    assert _outputs(study_dir) == written


def test_the_written_files_are_strict_json_of_the_results(study_dir: Path) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(name)

    judgement = judge_study(study_dir)
    for data in _outputs(study_dir).values():
        json.loads(data, parse_constant=refuse)
    written = json.loads((study_dir / "verdicts.json").read_text())
    assert written == json.loads(json.dumps(asdict(judgement)))
    assert written["verdicts"][0]["verdict"] == "INCONCLUSIVE"
    metrics = json.loads((_run(study_dir, "wa_ewma") / "metrics.json").read_text())
    assert metrics["violations"] > 0


def test_editing_one_latency_changes_the_figure(study_dir: Path) -> None:
    before = judge_study(study_dir)
    path = _run(study_dir, "wa_ewma") / "requests.parquet"
    table = pq.read_table(path)
    values = table.column("e2e_s").to_pylist()
    scheduled = table.column("scheduled_at_s").to_pylist()
    victim = next(
        i for i, (e, t) in enumerate(zip(values, scheduled, strict=True)) if t > 5 > e * 50
    )
    values[victim] = 3.0
    index = table.column_names.index("e2e_s")
    field = table.schema.field("e2e_s")
    pq.write_table(table.set_column(index, field, pa.array(values, type=field.type)), path)
    after = judge_study(study_dir)
    old, new = before.verdicts[0], after.verdicts[0]
    assert old.violation_rate_policy is not None
    assert new.violation_rate_policy is not None
    assert new.violation_rate_policy > old.violation_rate_policy
    assert _status(before, "run_validity") is Status.MET
    assert _status(after, "run_validity") is Status.NOT_MET  # the row contradicts its own times


@pytest.mark.parametrize("flaw", ["torn", "gone", "killed", "overwritten"])
def test_a_flawed_run_is_judged_without_a_traceback_and_without_a_claim(
    study_dir: Path, flaw: str
) -> None:
    folder = _run(study_dir, "wa_ewma")
    log = folder / "events.jsonl"
    if flaw == "torn":
        log.write_bytes(log.read_bytes()[:-30])
        assert read_run(folder).status == "partial"
    elif flaw == "gone":
        folder.rename(study_dir / f"{folder.name}.partial-1")
    elif flaw == "killed":
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:40]))
    else:
        other = _run(study_dir, "wa_ewma", 1) / "requests.parquet"
        (folder / "requests.parquet").write_bytes(other.read_bytes())
    judgement = judge_study(study_dir)
    condition = "load_match" if flaw == "overwritten" else "run_validity"
    assert _status(judgement, condition) is Status.NOT_MET
    assert judgement.verdicts[0].verdict is VerdictKind.INCONCLUSIVE
    # Another seed's rows are a copy of a run as well, which is seen first.
    assert judgement.verdicts[0].reason.startswith("run_validity is not met")


def test_a_run_folder_copied_under_another_seed_is_seen(study_dir: Path) -> None:
    """Name and config.json say seed 1; what was measured is seed 0 once more."""
    old, new = _run(study_dir, "wa_ewma", 0), _run(study_dir, "wa_ewma", 1)
    shutil.rmtree(new)
    shutil.copytree(old, new)
    config = json.loads((new / "config.json").read_text())
    (new / "config.json").write_text(json.dumps({**config, "seed": 1}))
    judgement = judge_study(study_dir)
    conditions = {c.name: c.why for c in judgement.verdicts[0].conditions}
    assert _status(judgement, "run_validity") is Status.NOT_MET
    assert "wa_ewma seed 1 is a copy of wa_ewma seed 0" in conditions["run_validity"]
    assert "seed 1: request files differ" in conditions["load_match"]
    assert judgement.verdicts[0].verdict is VerdictKind.INCONCLUSIVE


def test_a_line_broken_in_the_middle_of_a_log_stops_the_judging(study_dir: Path) -> None:
    log = _run(study_dir, "wa_ewma") / "events.jsonl"
    lines = log.read_text().splitlines()
    lines[3] = lines[3][:-5]
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"events\.jsonl, line 4"):
        judge_study(study_dir)


def test_n_of_two_is_inconclusive_with_the_least_attainable_p(study_dir: Path) -> None:
    verdict = judge_study(study_dir).verdicts[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.least_attainable_p == 0.25 == least_attainable_p(read_study(study_dir)[0])
    assert "0.25" in verdict.needed
