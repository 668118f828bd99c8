"""Replayed rows are judged as live runs are: skill is seen, chance is not, flaws are named."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.calibration.ruling import met_but_replay
from orchestrator.calibration.verdict import Condition, Judgement, Status, VerdictKind
from orchestrator.config import StudyConfig
from orchestrator.replay.block import replay_seed
from orchestrator.replay.calibrated import Calibration
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.judge import judge_replay
from orchestrator.workload.config import SliceRule, TokenRange, TraceConfig
from tests.replayed import PLANT, ReplayWorld, fitted_plant, replay_rows, replay_study

Rows = list[ReplayFigures]
Change = Callable[[ReplayFigures], ReplayFigures | None]
NAMES = (
    *("run_validity", "load_match", "effect_transfer", "exposure_match", "matched_random"),
    *("not_yet_arrived", "exact_null", "negative_controls", "replay"),
)
DRAW = "matched_random-of-wa_ewma-d0"


@pytest.fixture(scope="module")
def dodger() -> tuple[StudyConfig, Rows]:
    """Twelve seeds, four draws, a policy that places merges between bursts."""
    study = replay_study(seeds=list(range(12)), draws=4)
    return study, list(replay_rows(study))


def _conditions(judgement: Judgement) -> dict[str, Condition]:
    return {c.name: c for c in judgement.verdicts[0].conditions}


def _changed(rows: Iterable[ReplayFigures], arm: str, change: Change, *, seed: int = 0) -> Rows:
    found = (change(r) if (r.arm, r.replicate) == (arm, seed) else r for r in rows)
    return [r for r in found if r is not None]


def test_skill_passes_in_replay_with_a_plant_that_holds_and_reaches_tier_0(
    dodger: tuple[StudyConfig, Rows],
) -> None:
    judgement = judge_replay(*dodger, fitted_plant())
    verdict = judgement.verdicts[0]
    conditions = _conditions(judgement)
    assert tuple(conditions) == NAMES
    assert {c.status for c in conditions.values()} == {Status.MET}
    assert (verdict.verdict, verdict.tier) == (VerdictKind.PASS, 0)
    assert verdict.sentence is not None
    assert verdict.sentence.startswith("In replay, wa_ewma places merges better")
    assert "with emulated merge load, matmul where the plant was fitted" in verdict.sentence
    assert "engine=model, no real server" in verdict.reason
    assert (judgement.source, judgement.engine) == ("replay", "model")
    assert verdict.p_value == 2.0**-12
    assert conditions["effect_transfer"].value == pytest.approx(3.0)
    assert "fewer than the 99 wanted" in conditions["matched_random"].why
    assert "drift is 0 by construction" in conditions["load_match"].why
    assert any("e2e_p95_s merging +5.0 %" in c for c in judgement.caveats)
    assert json.dumps(asdict(judgement), allow_nan=False)


@pytest.mark.parametrize(
    ("calibration", "status", "why"),
    [
        (Calibration(plant=PLANT), Status.ABSENT, "is not fitted to any run"),
        (fitted_plant(engine="mock"), Status.NOT_MET, "engine=mock, no real server"),
        (fitted_plant(p95_error=0.2), Status.NOT_MET, "misses its aim: e2e_p95_s of merging"),
        (fitted_plant(checked=False), Status.NOT_ASSESSABLE, "not checked on runs that took no"),
        (fitted_plant(seeds=1), Status.NOT_ASSESSABLE, "in 1 seed outside the fit: too few"),
        (fitted_plant(seeds=4), Status.NOT_ASSESSABLE, "4 seeds outside the fit: too few to carry"),
        (
            fitted_plant(window_s=8.0),
            Status.NOT_MET,
            "not of this study: fitted on windows of 8 s, this study's are 4 s",
        ),
    ],
)
def test_without_a_plant_that_holds_nothing_is_claimed(
    dodger: tuple[StudyConfig, Rows], calibration: Calibration, status: Status, why: str
) -> None:
    judgement = judge_replay(*dodger, calibration)
    verdict = judgement.verdicts[0]
    assert _conditions(judgement)["replay"].status is status
    assert (verdict.verdict, verdict.tier, verdict.sentence) == (
        VerdictKind.INCONCLUSIVE,
        None,
        None,
    )
    assert verdict.reason.startswith("every condition of the replay is met, but replay:")
    assert why in verdict.reason
    assert met_but_replay(verdict)


def test_chance_is_not_taken_for_skill() -> None:
    study = replay_study(seeds=list(range(12)), draws=4)
    verdict = judge_replay(
        study, replay_rows(study, ReplayWorld(placement="random")), fitted_plant()
    ).verdicts[0]
    assert verdict.verdict is not VerdictKind.PASS
    assert verdict.tier is None
    assert not met_but_replay(verdict)


@pytest.mark.parametrize("policy", ["chance", "wa_ewma"])
def test_the_player_s_own_rows_are_judged(policy: str, tmp_path: Path) -> None:
    """Through coordinator and plant: the workload-aware policy passes, a random one does not."""
    skilled = policy == "wa_ewma"
    policies = {} if skilled else {"policies": {"wa_ewma": {"kind": "uniform_random"}}}
    study = replay_study(seeds=list(range(7)), draws=5, slo={"e2e_s": 0.2}, **policies)
    rows = [
        r for s in study.seeds for r in replay_seed(study, seed=s, plant=PLANT, study_dir=tmp_path)
    ]
    verdict = judge_replay(study, rows, fitted_plant()).verdicts[0]
    assert (verdict.verdict is VerdictKind.PASS, met_but_replay(verdict)) == (skilled, skilled)
    assert {c.name: c.status for c in verdict.conditions}["effect_transfer"] is Status.MET


def test_the_order_of_the_rows_does_not_matter(dodger: tuple[StudyConfig, Rows]) -> None:
    study, rows = dodger
    assert judge_replay(study, rows[::-1], fitted_plant()) == judge_replay(
        study, rows, fitted_plant()
    )


def test_few_windows_of_one_trace_speak_of_the_trace_alone(
    dodger: tuple[StudyConfig, Rows],
) -> None:
    study, rows = dodger
    tokens = TokenRange(low=16, high=16)
    load = TraceConfig(
        kind="trace",
        path="../hour.csv",
        time_scale=1.0,
        slice=SliceRule(min_requests=1, max_requests=1000, max_burst_requests=100),
        token_scale=1.0,
        prompt_tokens_clip=tokens,
        output_tokens_clip=tokens,
    )
    judgement = judge_replay(study.model_copy(update={"load": load}), rows, fitted_plant())
    verdict = judgement.verdicts[0]
    assert {c.status for c in verdict.conditions} == {Status.MET}
    assert (verdict.verdict, verdict.tier) == (VerdictKind.INCONCLUSIVE, None)
    assert "12 disjoint windows of one trace (hour.csv) speak of this trace" in verdict.reason


def _other_start(row: ReplayFigures) -> ReplayFigures:
    return replace(row, starts=(row.starts[0] + 1, *row.starts[1:]))


@pytest.mark.parametrize(
    ("arm", "change", "condition", "why"),
    [
        (DRAW, lambda r: None, "run_validity", f"{DRAW} seed 0 is missing"),
        ("wa_ewma", lambda r: replace(r, status="partial"), "run_validity", "seed 0 is partial"),
        ("wa_ewma", lambda r: replace(r, request_hash="x"), "load_match", "request files differ"),
        (
            "wa_ewma",
            lambda r: replace(
                r, starts=r.starts[:3], marked_windows=3, merge_count=3, merge_planned_s=12.0
            ),
            "exposure_match",
            "wa_ewma seed 0: 3 merges, budget 4",
        ),
        (
            "wa_ewma",
            lambda r: replace(r, starts=(0, *r.starts[1:])),
            "exposure_match",
            "is outside the corridor",
        ),
    ],
)
def test_what_a_replay_lacks_is_named(
    dodger: tuple[StudyConfig, Rows], arm: str, change: Change, condition: str, why: str
) -> None:
    study, rows = dodger
    judgement = judge_replay(study, _changed(rows, arm, change), fitted_plant())
    found = _conditions(judgement)[condition]
    assert found.status is Status.NOT_MET
    assert why in found.why
    assert judgement.verdicts[0].verdict is VerdictKind.INCONCLUSIVE


def test_seeds_with_the_same_requests_are_no_replicates(dodger: tuple[StudyConfig, Rows]) -> None:
    study, rows = dodger
    first = {r.arm: r for r in rows if r.replicate == 0}
    copied = [replace(first[r.arm], replicate=1) if r.replicate == 1 else r for r in rows]
    kept = [
        r if r.kind not in ("matched_random", "placebo") else old
        for r, old in zip(copied, rows, strict=True)
    ]
    found = _conditions(judge_replay(study, kept, fitted_plant()))["load_match"]
    assert found.status is Status.NOT_MET
    assert "seeds 0, 1 have the same requests" in found.why


@pytest.mark.parametrize(("kind", "name"), [("placebo", "placebo"), ("matched_random", "effect")])
def test_windows_of_few_requests_leave_a_ratio_unknown_as_in_a_live_study(
    dodger: tuple[StudyConfig, Rows], kind: str, name: str
) -> None:
    study, rows = dodger

    def few(r: ReplayFigures) -> ReplayFigures:
        unknown = replace(r, pooled_p95_s=None, pooled_p95_no_sync_s=None)
        return replace(unknown, pooled_requests=4, requests_in_windows=1, violations_in_windows=0)

    first = [r.arm for r in rows if r.kind == kind and r.replicate == 0]
    changed = list(rows)
    for arm in first:
        changed = _changed(changed, arm, lambda r: replace(few(r), pooled_requests=len(first)))
    found = _conditions(judge_replay(study, changed, fitted_plant()))["effect_transfer"]
    assert found.status is Status.NOT_ASSESSABLE
    assert f"seed 0: {name} unknown: {len(first)} requests scheduled there, fewer than" in found.why


def test_a_load_that_breaks_the_slo_by_itself_is_no_evidence(
    dodger: tuple[StudyConfig, Rows],
) -> None:
    study, rows = dodger

    def heavy(r: ReplayFigures) -> ReplayFigures:
        late, n = r.requests_scheduled // 2, r.requests_scheduled
        rps = (n - late) / (study.horizon_s - study.warmup_s)
        return replace(r, violations=late, violation_rate=late / n, goodput_rps=rps)

    changed = [heavy(r) if r.kind == "no_sync" else r for r in rows]
    found = _conditions(judge_replay(study, changed, fitted_plant()))["run_validity"]
    assert found.status is Status.NOT_MET
    assert "no_sync violates in" in found.why


@pytest.mark.parametrize(
    ("arm", "change", "why"),
    [
        ("wa_ewma", lambda r: replace(r, violation_rate=0.0), "violation_rate=0.0 is not"),
        ("wa_ewma", lambda r: replace(r, violations=-1), "do not add up"),
        ("wa_ewma", lambda r: replace(r, goodput_rps=1.0), "goodput_rps=1.0 is not"),
        ("wa_ewma", lambda r: replace(r, merge_count=0), "merge_count=0 with 4 starts"),
        ("wa_ewma", lambda r: replace(r, overlap=float("nan")), "overlap=nan is no finite number"),
        ("wa_ewma", lambda r: replace(r, kind="oracle"), "not those of the arm"),
        ("wa_ewma", lambda r: replace(r, arm="stopping"), "is none of the study's runs"),
        ("aa-of-wa_ewma", lambda r: replace(r, arm="wa_ewma", kind="policy", of=None), "twice"),
        (DRAW, lambda r: replace(r, pooled_p95_s=0.9), "pooled_requests="),
        (
            "placebo-of-wa_ewma",
            lambda r: replace(r, pooled_requests=3),
            "pooled_requests=3 with .* requests in the windows of its draws",
        ),
        ("wa_ewma", lambda r: replace(r, pooled_p95_s=0.9), "of no control"),
        (DRAW, _other_start, "are not the schedule that its seed draws"),
    ],
)
def test_rows_that_no_replay_writes_are_refused(
    dodger: tuple[StudyConfig, Rows], arm: str, change: Change, why: str
) -> None:
    study, rows = dodger
    with pytest.raises(ValueError, match=why):
        judge_replay(study, _changed(rows, arm, change), fitted_plant())
