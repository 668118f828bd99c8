"""A row of replay.parquet is what metrics and gate compute from the folder of the same run."""

from dataclasses import fields
from pathlib import Path

import pytest

from orchestrator.arms import expand_arms, study_corridor
from orchestrator.calibration.effects import seed_effects
from orchestrator.calibration.evidence import Evidence, gather
from orchestrator.calibration.overlap import exact_moments
from orchestrator.calibration.rates import FREE_CADENCE, rate_effects
from orchestrator.calibration.recorded import overlap_blocks
from orchestrator.config import StudyConfig
from orchestrator.metrics import run_metrics
from orchestrator.records import RunMetrics
from orchestrator.replay.block import replay_seed
from orchestrator.replay.calibrated import Calibration
from orchestrator.replay.conditions import replay_effects
from orchestrator.replay.evidence import gather_rows
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.folders import write_folders
from orchestrator.replay.judge import judge_replay
from orchestrator.replay.scale import ReplayJob
from orchestrator.report.tables import verdict_sentence
from orchestrator.rundir import read_study, write_study
from orchestrator.workload.config import ClosedLoopConfig, TokenRange
from tests.replaying import ARMS, PLANT, replay_study

SHARED = {f.name for f in fields(ReplayFigures)} & {f.name for f in fields(RunMetrics)}
OPEN = replay_study(
    seeds=[3],
    horizon_s=40.0,
    corridor={"budget_merges": 3},
    slo={"e2e_s": 0.15, "ttft_s": 0.05, "tpot_s": 0.006},
    sidecars={"count": 2},
    arms=[ARMS[0], ARMS[1], {"kind": "matched_random", "of": "wa_ewma", "draws": 2}, *ARMS[4:6]],
    judge=["wa_ewma"],
)
TOKENS = TokenRange(low=1, high=30)
CLOSED = replay_study(
    arms=[{"kind": "no_sync"}, {"kind": "policy", "policy": "wa_ewma"}], judge=["wa_ewma"]
).model_copy(
    update={
        "seeds": (3,),
        "sidecars": OPEN.sidecars,
        "load": ClosedLoopConfig(
            kind="closed", users=3, mean_think_s=0.5, prompt_tokens=TOKENS, output_tokens=TOKENS
        ),
    }
)


def rows_of(study: StudyConfig) -> list[ReplayFigures]:
    return [
        row
        for seed in study.seeds
        for row in replay_seed(study, seed=seed, plant=PLANT, study_dir=Path())
    ]


def evidence_of(study: StudyConfig, folder: Path) -> Evidence:
    write_study(folder, study)
    write_folders(ReplayJob(study=study, plant=PLANT, study_dir=Path(), arms=None), folder)
    read, records = read_study(folder)
    return gather(read, records, [run_metrics(record) for record in records])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """OPEN as folders."""
    return evidence_of(OPEN, tmp_path_factory.mktemp("open"))


def test_rows_are_the_metrics_of_the_folders_bit_for_bit(recorded: Evidence) -> None:
    check_rows(OPEN, recorded)


def test_rows_of_a_closed_loop_are_those_of_its_folders(tmp_path: Path) -> None:
    check_rows(CLOSED, evidence_of(CLOSED, tmp_path))


def check_rows(study: StudyConfig, evidence: Evidence) -> None:
    rows = rows_of(study)
    assert len(rows) == len(evidence.runs) == len(study.seeds) * len(expand_arms(study))
    assert len(SHARED) > 20
    for row in rows:
        metrics = evidence.runs[row.arm, row.replicate].metrics
        assert metrics.faults == ()
        assert (metrics.source, metrics.engine) == ("replay", "model")
        mine = {name: getattr(row, name) for name in SHARED}
        assert mine == {name: getattr(metrics, name) for name in SHARED}
        assert row.violations > 0 or row.kind in ("no_sync", "placebo", "oracle")
        assert row.e2e_p99_s is not None


def test_overlap_is_what_the_gate_takes_from_the_records(recorded: Evidence) -> None:
    rows = rows_of(OPEN)
    corridor, budget = study_corridor(OPEN), OPEN.corridor.budget_merges
    assert budget is not None
    ((block,), gaps) = overlap_blocks(recorded, "wa_ewma")
    (row,) = [r for r in rows if r.arm == "wa_ewma"]
    assert (gaps, block.starts) == ((), row.starts)
    for cost, found in (
        (block.cost, (row.overlap, row.overlap_mean, row.overlap_variance)),
        (block.new_cost, (row.new_overlap, row.new_overlap_mean, row.new_overlap_variance)),
    ):
        mean, variance = exact_moments(corridor, cost, budget)
        assert found == (float(cost[list(block.starts)].sum()), mean, variance)


def test_effect_and_placebo_are_those_of_the_folders_to_the_bit(recorded: Evidence) -> None:
    """Two draws of unequal traffic: pooled, not averaged; no_sync counts twice on both sides."""
    rows = rows_of(OPEN)
    live = seed_effects(recorded, "wa_ewma")
    table = replay_effects(gather_rows(OPEN, rows), "wa_ewma")
    assert [(e.whole, e.placebo) for e in table] == [(e.whole, e.placebo) for e in live]
    assert all(e.whole.value is not None and e.placebo.value is not None for e in live)
    draws = [r for r in rows if r.kind == "matched_random"]
    assert {r.inside_p95_s for r in draws} != {live[0].whole.window_p95_s}
    assert sum(r.requests_in_windows for r in draws) == live[0].whole.requests
    (placebo,) = [r for r in rows if r.kind == "placebo"]
    assert placebo.inside_p95_s == placebo.inside_p95_no_sync_s == live[0].placebo.window_p95_s


def test_a_closed_loop_has_no_requests_in_common_to_be_pooled() -> None:
    arms = [ARMS[0], {"kind": "matched_random", "of": "wa_ewma", "draws": 2}]
    closed = CLOSED.model_copy(update={"arms": replay_study(arms=arms, judge=[]).arms, "judge": ()})
    found = [r for r in rows_of(closed) if r.kind == "matched_random"]
    assert [(r.pooled_requests, r.pooled_p95_s) for r in found] == [(None, None)] * 2


def test_excess_is_latency_above_no_sync_and_unknown_in_a_closed_loop() -> None:
    rows = {row.arm: row for row in rows_of(OPEN)}
    assert rows["no_sync-start"].excess_s == rows["placebo-of-wa_ewma"].excess_s == 0.0
    merged = rows["matched_random-of-wa_ewma-d0"]
    assert merged.excess_s is not None
    assert merged.excess_s > 0.0
    assert rows["no_sync-start"].overlap is None
    closed = {row.arm: row for row in rows_of(CLOSED)}
    assert closed["wa_ewma"].request_hash != closed["no_sync-start"].request_hash
    assert closed["wa_ewma"].excess_s is None
    assert closed["no_sync-start"].excess_s == 0.0


def test_free_cadence_has_rate_effects_and_no_law_of_placement(tmp_path: Path) -> None:
    free = replay_study(
        corridor={"budget_merges": None}, arms=[ARMS[0], ARMS[2]], judge=[], seeds=[3]
    )
    rows = rows_of(free)
    row = rows[-1]
    assert row.merge_count == len(row.starts) > 0
    assert row.overlap is not None
    assert (row.overlap_mean, row.overlap_variance) == (None, None)
    judged, live = judge_replay(free, rows, Calibration(plant=PLANT)), evidence_of(free, tmp_path)
    assert judged.rate_effects == rate_effects(live) != ()
    assert judged.caveats[0] == FREE_CADENCE
    assert "free cadence shows rate effects only" in verdict_sentence(judged)


def test_an_aa_is_its_policy_again_and_labels_choose_arms() -> None:
    study = replay_study()
    rows = replay_seed(
        study, seed=0, plant=PLANT, study_dir=Path(), arms=["aa-of-wa_ewma", "wa_ewma"]
    )
    assert [row.arm for row in rows] == ["wa_ewma", "aa-of-wa_ewma"]
    assert rows[0].starts == rows[1].starts
    assert rows[0].e2e_p95_s == rows[1].e2e_p95_s
    many = replay_seed(study, seed=0, plant=PLANT, study_dir=Path(), draws=5)
    assert sum(row.kind == "matched_random" for row in many) == 5
    assert len({row.starts for row in many if row.kind == "matched_random"}) > 1


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(ValueError, match="wa_emwa asked for; the study has no_sync-start"):
        replay_seed(replay_study(), seed=0, plant=PLANT, study_dir=Path(), arms=["wa_emwa"])
    oracle = CLOSED.model_copy(update={"arms": replay_study().arms})
    with pytest.raises(ValueError, match="an oracle needs all arrivals beforehand"):
        replay_seed(oracle, seed=0, plant=PLANT, study_dir=Path())
    engine = {"kind": "mock", "max_model_len_tokens": 31}
    short = replay_study(sidecars={"count": 1, "engine": engine})
    with pytest.raises(ValueError, match="16 prompt"):
        replay_seed(short, seed=0, plant=PLANT, study_dir=Path())
