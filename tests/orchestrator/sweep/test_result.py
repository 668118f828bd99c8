"""What is said of a sweep: the best, both corrections, held-out studies, tables and plots."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from orchestrator.calibration.statistics import sign_flip
from orchestrator.calibration.verdict import Judgement, Verdict, VerdictKind
from orchestrator.config import MatchedRandomArm, StudyConfig
from orchestrator.sweep.blocks import Block
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.folder import write_tables
from orchestrator.sweep.importance import importances
from orchestrator.sweep.judging import check_unspent, judge_held_out, judged_studies
from orchestrator.sweep.ledger import Ledger
from orchestrator.sweep.page import summary_lines, write_markdown, write_page
from orchestrator.sweep.plots import plot_importance, plot_response, second_scale
from orchestrator.sweep.result import sweep_result, tuned_of, why_nothing
from orchestrator.sweep.settings import make_setting
from tests.fake_sweep import HALF_LIFE, PlaySweep

MakeStudy = Callable[..., StudyConfig]
MakeSpace = Callable[..., SpaceConfig]


def verdict(**changes: Any) -> Verdict:
    made = Verdict(
        policy="wa_ewma",
        regime="bursts",
        verdict=VerdictKind.PASS,
        tier=0,
        reason="all met",
        needed="",
        sentence=None,
        n_seeds=5,
        violation_rate_policy=0.08,
        violation_rate_control=0.1,
        difference=-0.02,
        difference_interval=None,
        relative_gain=0.2,
        relative_gain_interval=(0.1, 0.3),
        p_value=0.01,
        p_holm=0.02,
        least_attainable_p=0.03,
        permutation_p=None,
        conditions=(),
        per_seed=(),
    )
    return replace(made, **changes)


def judgement(*verdicts: Verdict) -> Judgement:
    return Judgement(
        study="synthetic",
        regime="bursts",
        source="replay",
        engine="model",
        engine_version="plant",
        gate_hash="0",
        seeds=(100, 101, 102, 103, 104),
        verdicts=verdicts,
        effects=(),
        arms=(),
        caveats=(),
    )


def test_the_best_is_told_with_its_own_p_and_with_that_of_the_best_of_all(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep
) -> None:
    study, space = make_study(), make_space(settings=7, stopping={"after_seeds": 2})
    progress, ledger = play_sweep(study, space)
    tuned = tuned_of(study, progress.tried, ledger=ledger)
    assert tuned is not None
    rows = [r for r in ledger.rows if r.setting == tuned.setting]
    policy = np.array([float(r.violation_rate or 0) for r in rows])
    control = np.array([np.mean([c or 0 for c in r.control_rates]) for r in rows])
    assert tuned.gain == pytest.approx(1 - policy.sum() / control.sum())
    flips = sign_flip(policy - control, draws=10, rng=np.random.default_rng(0))
    assert tuned.p_value == flips.p_value == 2.0**-6
    assert tuned.settings_tried == 7
    assert tuned.p_of_the_best == pytest.approx(7 / 64)
    result = sweep_result(study, space, progress.tried, ledger=ledger)
    assert "counts 7 times (Bonferroni); this p carries no claim" in result.corrections[0]
    assert result.verdict == "not judged"
    assert result.winners_curse is None


def test_the_verdict_is_that_of_the_held_out_blocks_and_all_loads_have_to_pass(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep
) -> None:
    study, space = make_study(), make_space(settings=3)
    progress, ledger = play_sweep(study, space)
    passed, failed = verdict(), verdict(verdict=VerdictKind.FAIL, relative_gain=0.1)
    unclear = verdict(verdict=VerdictKind.INCONCLUSIVE)
    cases = {
        (passed,): "PASS",
        (passed, passed): "PASS",
        (passed, unclear): "INCONCLUSIVE",
        (unclear, failed): "FAIL",
    }
    for verdicts, expected in cases.items():
        judged = [judgement(verdict(policy="other"), v) for v in verdicts]
        assert sweep_result(study, space, progress.tried, judged, ledger=ledger).verdict == expected
    both = [judgement(verdict(policy="other"), v) for v in (passed, failed)]
    result = sweep_result(study, space, progress.tried, both, ledger=ledger)
    assert result.tuned is not None
    assert result.winners_curse == pytest.approx(result.tuned.gain - 0.15)
    assert result.held_out[0].family == 2
    assert "Holm over 2 judged policies; all of 2 loads have to pass" in result.corrections[1]
    unknown = [judgement(passed), judgement(verdict(relative_gain=None))]
    assert sweep_result(study, space, progress.tried, unknown, ledger=ledger).winners_curse is None


def test_the_held_out_study_has_other_seeds_more_draws_and_says_what_it_was_tuned_on(
    make_study: MakeStudy, make_space: MakeSpace
) -> None:
    study, space = make_study(aa=True), make_space(judging={"draws": 150})
    chosen = make_setting(study, space, {HALF_LIFE: 3.5}).study
    assert chosen is not None
    (judged,) = judged_studies(study, space, chosen=chosen)
    assert judged.seeds == (100, 101, 102, 103, 104)
    assert judged.tuned_on is not None
    assert judged.tuned_on.seeds == (0, 1, 2, 3, 4, 5)
    assert judged.policies == chosen.policies
    draws = {a.of: a.draws for a in judged.arms if isinstance(a, MatchedRandomArm)}
    assert draws == {"wa_ewma": 150}
    assert {a.kind for a in judged.arms} == {a.kind for a in study.arms}
    assert StudyConfig.model_validate_json(judged.model_dump_json()) == judged
    other = study.load.model_dump(mode="json") | {"quiet_rate_per_s": 1.0}
    two = make_space(judging={"loads": [study.load.model_dump(mode="json"), other]})
    assert len({s.load for s in judged_studies(study, two, chosen=chosen)}) == 2


def test_held_out_blocks_are_used_for_one_setting_only(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep, tmp_path: Path
) -> None:
    study, space = make_study(), make_space(settings=3)
    progress, ledger = play_sweep(study, space)
    tuned = tuned_of(study, progress.tried, ledger=ledger)
    chosen = progress.tried[0].setting.study
    assert tuned is not None
    assert chosen is not None
    asked: list[Path] = []

    def judge(_study: StudyConfig, folder: Path) -> Judgement:
        assert (tmp_path / "judging.json").exists()  # marked before the first look
        asked.append(folder)
        return judgement(verdict())

    for _ in range(2):  # a resumed sweep judges the same setting again
        judge_held_out(
            tmp_path,
            study,
            space,
            ledger=ledger,
            chosen=chosen,
            tuned=tuned,
            judge_folder=judge,
        )
    assert asked == [tmp_path / "judging" / "load-0"] * 2
    ledger.close()
    again = Ledger(ledger.path, identity="test")
    mark = (tmp_path / "judging.json").read_text()
    for known in (ledger, again, Ledger(tmp_path / "cut.jsonl", identity="test")):
        for text in (mark, None):
            (tmp_path / "judging.json").unlink(missing_ok=True)
            if text is not None:
                (tmp_path / "judging.json").write_text(text)
            if known.judging is None and text is None:
                continue  # told by judging/ alone: below
            check_unspent(tmp_path, known, setting=tuned.setting)
            with pytest.raises(ValueError, match="blocks can be held out once"):
                check_unspent(tmp_path, known, setting="another")
    (tmp_path / "judging").mkdir()
    with pytest.raises(ValueError, match="says which setting was judged"):
        check_unspent(
            tmp_path, Ledger(tmp_path / "cut.jsonl", identity="test"), setting=tuned.setting
        )


@pytest.mark.slow
def test_tables_page_and_plots_show_every_setting(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep, tmp_path: Path
) -> None:
    study, space = make_study(), make_space(stopping={"after_seeds": 2})
    progress, ledger = play_sweep(study, space)
    result = sweep_result(study, space, progress.tried, [judgement(verdict())], ledger=ledger)
    settings, blocks, told = write_tables(tmp_path, result, ledger.rows)
    table = pl.read_parquet(settings)
    assert table["setting"].to_list() == [t.setting.setting for t in progress.tried]
    assert table[HALF_LIFE].to_list() == [t.setting.values[HALF_LIFE] for t in progress.tried]
    assert table["gain"].to_list() == [t.gain for t in progress.tried]
    assert pl.read_parquet(blocks).height == len(ledger.rows)
    plain = json.loads(told.read_text())
    assert plain["engine"] == "model"
    assert plain["source"] == "replay"
    assert plain["counts"]["complete"] + plain["counts"]["stopped"] == 10
    plot_importance(result, {HALF_LIFE: 1.0}, tmp_path / "importance.png")
    plot_response(study, space, result, tmp_path / "response.png")
    page = write_page(tmp_path, result).read_text()
    text = write_markdown(tmp_path, result).read_text()
    for row in result.settings:
        assert row.setting in page
        assert row.setting in text
    for shown in (page, text, "\n".join(summary_lines(result))):
        assert "Held out, load 0, 5 seeds: PASS" in shown
        assert "PASS (SIMULATED, tier 0)" in shown
        assert f", times {len(progress.tried)} settings " in shown.split("Held out")[1]
        assert "SIMULATED: replay, engine=model; tier 0 at most" in shown
        assert "4 draws of matched random a seed, fewer than the 99 wanted" in shown
        assert shown.count("fewer than the 99 wanted") == 1  # the judging has 99
        assert "Winner's curse: " in shown or "Winner&#x27;s curse: " in shown
    assert "SIMULATED: replay, engine=model" in page


def test_a_sweep_without_a_known_gain_is_told_all_the_same(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep, tmp_path: Path
) -> None:
    study = make_study()
    space = make_space(parameters={HALF_LIFE: {"values": [-1.0, -2.0]}}, search="grid")
    progress, ledger = play_sweep(study, space)
    result = sweep_result(study, space, progress.tried, ledger=ledger)
    assert result.tuned is None
    assert result.counts["refused"] == 2
    said = "Nothing was judged: all 2 settings asked for were refused; the first: setting:"
    assert summary_lines(result)[2].startswith(said)
    assert "half_life_s" in str(why_nothing(result))
    write_tables(tmp_path, result, ledger.rows)
    plot_importance(result, None, tmp_path / "importance.png")
    plot_response(study, space, result, tmp_path / "response.png")
    assert "refused" in write_page(tmp_path, result).read_text()


def test_controls_that_never_violate_leave_the_gain_unknown(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep
) -> None:
    progress, ledger = play_sweep(make_study(), make_space(settings=1))
    tried = progress.tried[0]
    tried.rows = {
        block: replace(row, control_rates=(0.0,) * 4) for block, row in tried.rows.items()
    }
    assert tried.gain is None
    tried.rows[Block(0, 0)] = replace(tried.rows[Block(0, 0)], control_rates=(0.1, None))
    assert tried.gain is None
    assert tuned_of(make_study(), progress.tried, ledger=ledger) is None
    unknown = sweep_result(make_study(), make_space(), progress.tried, ledger=ledger)
    assert "a violation rate is unknown" in str(why_nothing(unknown))
    tried.rows = {
        block: replace(row, control_rates=(0.0,) * 4) for block, row in tried.rows.items()
    }
    nothing = sweep_result(make_study(), make_space(), progress.tried, ledger=ledger)
    assert "matched random never violates there" in str(why_nothing(nothing))


@pytest.mark.slow
def test_importance_finds_the_parameter_that_decides(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep
) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("sklearn")
    space = make_space(
        settings=24,
        parameters={
            "policies.wa_ewma.w_stale": {"low": 0.0, "high": 1.0},
            HALF_LIFE: {"low": 0.5, "high": 32.0, "scale": "log"},
        },
    )
    progress, ledger = play_sweep(make_study(), space)
    whole = sweep_result(make_study(), space, progress.tried, ledger=ledger)
    shares = importances(space, whole.settings)
    assert shares is not None
    assert sum(shares.values()) == pytest.approx(1.0)
    assert next(iter(shares)) == HALF_LIFE
    assert shares[HALF_LIFE] > 0.6
    few = sweep_result(make_study(), space, progress.tried[:5], ledger=ledger).settings
    assert importances(space, few) is None


def test_second_scales_say_alpha_and_gap(make_study: MakeStudy) -> None:
    study = make_study()  # ticks of 1 s, steps of 0.1 s
    alpha = second_scale(study, HALF_LIFE)
    assert alpha is not None
    assert alpha[1](np.array([1.0, 2.0])) == pytest.approx([0.5, 1 - 0.5**0.5])
    assert alpha[2](alpha[1](np.array([0.3, 7.0]))) == pytest.approx([0.3, 7.0])
    gap = second_scale(study, "corridor.target_steps")
    assert gap is not None
    assert gap[1](120.0) == pytest.approx(12.0)
    assert second_scale(study, "policies.wa_ewma.w_stale") is None


@pytest.mark.slow
def test_the_best_of_many_useless_settings_is_significant_only_before_its_correction(
    make_study: MakeStudy, make_space: MakeSpace, play_sweep: PlaySweep
) -> None:
    """150 sweeps of 12 settings, none of which is better than random."""
    study, found, curses = make_study(), [], []
    for i in range(150):
        space = make_space(
            settings=12,
            ask_at_once=12,
            seed=i,
            tuning={"seeds": {"first": 1000 * i, "count": 8}},
            judging={"seeds": {"first": 1000 * i + 500, "count": 8}},
        )
        progress, ledger = play_sweep(study, space, name=f"null-{i}", flat=True)
        tuned = tuned_of(study, progress.tried, ledger=ledger)
        assert tuned is not None
        found.append((tuned.p_value or 0.0, tuned.p_of_the_best or 0.0))
        curses.append(tuned.gain)
    raw, corrected = (np.mean([p[i] <= 0.05 for p in found]) for i in (0, 1))
    assert raw > 0.25
    assert corrected <= 0.05 + 2 * (0.05 * 0.95 / 150) ** 0.5
    assert np.mean(curses) > 0.02  # though every true gain is 0
