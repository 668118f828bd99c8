"""Free cadence: what merging costs, beside no_sync, and never a placement claim."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from rich.console import Console

from orchestrator.arms import expand_arms, random_schedule, study_corridor
from orchestrator.calibration.gate import judge
from orchestrator.calibration.rates import FREE_CADENCE
from orchestrator.calibration.statistics import sign_flip
from orchestrator.calibration.verdict import Judgement
from orchestrator.config import StudyConfig
from orchestrator.metrics import run_metrics
from orchestrator.plan import make_plan
from orchestrator.records import ArmSpec, RunRecord
from orchestrator.report.tables import rates_table, verdict_sentence

Study = Callable[..., StudyConfig]
Made = tuple[StudyConfig, list[RunRecord]]
FREE: dict[str, Any] = {
    "corridor": {"budget_merges": None},
    "judge": [],
    "arms": [{"kind": "no_sync"}, {"kind": "policy", "policy": "wa_ewma"}],
}


@pytest.fixture(scope="module")
def free(make_records: Callable[..., Made]) -> Made:
    return make_records(seeds=list(range(6)), **FREE)


def _judge(study: StudyConfig, records: list[RunRecord]) -> Judgement:
    return judge(study, records, [run_metrics(r) for r in records])


def test_a_row_holds_the_plain_figures_of_its_runs(free: Made) -> None:
    study, records = free
    judgement = _judge(study, records)
    (row,) = judgement.rate_effects
    metrics = {(r.arm.label, r.seed): run_metrics(r) for r in records}
    mine = [metrics["wa_ewma", s] for s in study.seeds]
    merges, violations = sum(m.merge_count for m in mine), sum(m.violations for m in mine)
    assert len({m.merge_count for m in mine}) > 1  # as often as it liked
    assert (row["runs"], row["merges"], row["merges_per_run"]) == (6, merges, merges / 6)
    assert row["violation_rate"] == violations / sum(m.requests_scheduled for m in mine)
    assert row["violations_per_merge"] == violations / merges
    differences = []
    for seed, m in zip(study.seeds, mine, strict=True):
        rates = [metrics[f"no_sync-{p}", seed].violation_rate for p in ("start", "end")]
        assert None not in (m.violation_rate, *rates)
        differences.append(float(m.violation_rate or 0) - float(np.mean([r or 0 for r in rates])))
    assert row["difference"] == pytest.approx(np.mean(differences))
    above = sum(d * m.requests_scheduled for d, m in zip(differences, mine, strict=True))
    assert row["excess_per_merge"] == pytest.approx(above / merges)
    low, high = row["difference_low"], row["difference_high"]
    assert isinstance(low, float)
    assert isinstance(high, float)
    # The interval is the inverted test: just outside its ends the sign flip rejects at 5 %.
    for shifted in (np.array(differences) - high - 1e-9, low - 1e-9 - np.array(differences)):
        assert sign_flip(shifted, draws=1, rng=np.random.default_rng(0)).p_value <= 0.05


def test_nothing_is_judged_and_the_caveat_comes_first(free: Made) -> None:
    judgement = _judge(*free)
    assert judgement.verdicts == ()
    assert judgement.caveats[0] == FREE_CADENCE
    assert "no placement claim" in FREE_CADENCE
    assert "free cadence shows rate effects only" in verdict_sentence(judgement)


def test_a_fixed_budget_has_no_rate_effects(make_records: Callable[..., Made]) -> None:
    judgement = _judge(*make_records(seeds=[0, 1], aa=True))
    assert judgement.rate_effects == ()
    assert FREE_CADENCE not in judgement.caveats


def test_few_seeds_have_no_interval_and_a_missing_no_sync_leaves_its_seed_out(free: Made) -> None:
    study, records = free
    kept = [r for r in records if (r.arm.label, r.seed) not in {("no_sync-end", s) for s in (0, 1)}]
    judgement = _judge(study, kept)
    (row,) = judgement.rate_effects
    assert (row["runs"], row["seeds_with_both"]) == (6, 4)
    assert row["difference"] is not None
    assert (row["difference_low"], row["difference_high"]) == (None, None)
    assert any("no_sync-end seed 0 is missing" in c for c in judgement.caveats)


def test_without_no_sync_the_difference_is_unknown(free: Made) -> None:
    study, records = free
    alone = [r for r in records if r.arm.kind == "policy"]
    (row,) = _judge(study, alone).rate_effects
    assert row["violations_per_merge"] is not None
    assert [row[k] for k in ("no_sync_rate", "difference", "excess_per_merge")] == [None] * 3


def test_an_incomplete_run_counts_for_nothing(free: Made) -> None:
    study, records = free
    torn = [
        replace(r, status="invalid", why="island lost") if r.arm.kind == "policy" else r
        for r in records
    ]
    (row,) = _judge(study, torn).rate_effects
    assert (row["runs"], row["merges"], row["violation_rate"]) == (0, None, None)


def test_the_terminal_shows_the_rates(free: Made) -> None:
    judgement = _judge(*free)
    console = Console(width=80)
    with console.capture() as capture:
        console.print(rates_table(judgement))
    text = capture.get()
    assert "rate effects (no placement claim)" in text
    (row,) = judgement.rate_effects
    assert f"{100 * float(row['difference'] or 0):+.1f} [" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"judge": ["wa_ewma"]}, "judge=.'wa_ewma'. asks for a placement claim"),
        ({"arms": [{"kind": "matched_random", "of": "wa_ewma"}]}, r"arms\[0\] is matched_random"),
        ({"arms": [*FREE["arms"], {"kind": "placebo", "of": "wa_ewma"}]}, r"arms\[2\] is placebo"),
        (
            {
                "policies": {"chance": {"kind": "uniform_random"}},
                "arms": [{"kind": "policy", "policy": "chance"}],
            },
            r"arms\[0\] is uniform_random",
        ),
    ],
)
def test_arms_and_claims_that_need_a_budget_are_refused(
    make_study: Study, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValidationError, match=f"{says}.*free cadence.*give a budget"):
        make_study(**{**FREE, **change})


def test_a_policy_against_itself_needs_no_budget(make_study: Study) -> None:
    study = make_study(**FREE, aa=True)
    assert [a.label for a in expand_arms(study)][-1] == "aa-of-wa_ewma"


def test_no_schedule_is_drawn_without_a_budget(make_study: Study) -> None:
    arm = ArmSpec(
        kind="matched_random", label="d0", policy=None, of="wa_ewma", draw=0, position=None
    )
    with pytest.raises(ValueError, match="d0: free cadence has no feasible set"):
        random_schedule(make_study(**FREE), arm, 0)


def test_a_corridor_has_to_hold_one_merge(make_study: Study) -> None:
    study = make_study(**FREE, horizon_s=8.0)
    with pytest.raises(ValueError, match="a merge of 4 ticks after floor_steps=50"):
        study_corridor(study)


def test_the_plan_says_what_it_can_show(
    make_study: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plan, _ = make_plan(make_study(**FREE), tmp_path)
    assert (plan.budget_merges, plan.feasible_schedules) == (None, None)
    assert plan.to_json()["feasible_schedules"] is None
    assert plan.notes[0] == FREE_CADENCE
    assert not [n for n in plan.notes if "PASS" in n or "placebo" in n]
