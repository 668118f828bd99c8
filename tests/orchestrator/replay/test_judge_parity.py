"""The same replay as a table and as run folders: both gates read the same numbers of it."""

import pytest

from orchestrator.calibration.verdict import Judgement, VerdictKind
from orchestrator.judge import judge_study
from orchestrator.replay.calibrated import write_plant
from orchestrator.replay.folders import write_folders
from orchestrator.replay.judge import judge_replay_folder
from orchestrator.replay.scale import ReplayJob, in_this_process, run_replay
from tests.replayed import PLANT, fitted_plant, replay_study

pytestmark = pytest.mark.slow  # every arm of seven seeds, tick by tick, twice
SLO = {"e2e_s": 0.2}  # that the plant keeps without merges
SAME = (
    "effect_transfer",
    "exposure_match",
    "matched_random",
    "not_yet_arrived",
    "exact_null",
    "negative_controls",
)


def _quiet(done: int, total: int) -> None: ...


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Judgement, Judgement]:
    """Seven seeds of a workload-aware policy and one of chance, judged by table and by folders."""
    folder = tmp_path_factory.mktemp("replay")
    write_plant(folder / "mine.json", fitted_plant())
    study = replay_study(seeds=list(range(7)), draws=2, slo=SLO)
    job = ReplayJob(study=study, plant=PLANT, study_dir=folder, arms=None)
    run_replay(
        job,
        folder,
        spread=in_this_process,
        plant_file=folder / "mine.json",
        progress=_quiet,
    )
    write_folders(job, folder)
    return judge_replay_folder(folder), judge_study(folder)


def test_the_table_and_the_folders_of_a_replay_are_judged_alike(
    both: tuple[Judgement, Judgement],
) -> None:
    by_table, by_folders = both
    (mine,), (theirs,) = by_table.verdicts, by_folders.verdicts
    known = {c.name: c for c in theirs.conditions}
    assert [c.name for c in mine.conditions] == list(known)
    assert {c.name: c.status for c in mine.conditions} == {n: c.status for n, c in known.items()}
    for c in mine.conditions:
        if c.name in SAME:
            assert (c.value, c.interval, c.threshold, c.n) == (
                known[c.name].value,
                known[c.name].interval,
                known[c.name].threshold,
                known[c.name].n,
            )
    for name in ("p_value", "p_holm", "permutation_p", "relative_gain", "per_seed", "tier"):
        assert getattr(mine, name) == getattr(theirs, name)
    assert (by_table.engine, by_table.engine_version) == (
        by_folders.engine,
        by_folders.engine_version,
    )


def test_the_effect_ratio_is_the_live_gates(both: tuple[Judgement, Judgement]) -> None:
    by_table, by_folders = both
    for mine, theirs in zip(by_table.effects, by_folders.effects, strict=True):
        for name in mine:
            if not name.startswith("real_part"):
                assert mine[name] == theirs[name], name


def test_a_replay_passes_at_tier_0_and_never_above(both: tuple[Judgement, Judgement]) -> None:
    for judgement in both:
        verdict = judgement.verdicts[0]
        assert (verdict.verdict, verdict.tier) == (VerdictKind.PASS, 0)
        assert verdict.sentence is not None
        assert verdict.sentence.startswith("In replay, wa_ewma")
