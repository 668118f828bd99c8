"""The terminal's tables: 80 columns, nothing said by colour alone, no claim above its tier."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console

from orchestrator.calibration.verdict import Status, VerdictKind
from orchestrator.report.tables import (
    arms_table,
    conditions_table,
    shared_conditions,
    verdict_sentence,
)


def printed(table: Any) -> str:
    out = io.StringIO()
    Console(width=80, color_system=None, file=out).print(table)
    return out.getvalue()


def test_tables_fit_80_columns_and_keep_whole_arm_names(make_made: Callable[..., Any]) -> None:
    made = make_made()
    for table in (arms_table(made.metrics), conditions_table(made.judgement)):
        assert max(len(line) for line in printed(table).splitlines()) <= 80
    for label in {m.arm for m in made.metrics}:
        assert f" {label} " in printed(arms_table(made.metrics))


def test_an_arm_is_pooled_over_complete_runs_and_the_others_are_counted(
    make_made: Callable[..., Any],
) -> None:
    made = make_made(broken={("wa_ewma", 2): "partial"})
    line = next(li for li in printed(arms_table(made.metrics)).splitlines() if " wa_ewma " in li)
    whole = next(m for m in made.metrics if m.arm == "wa_ewma" and m.seed == 1)
    assert "1/2" in line
    assert f" {whole.requests_scheduled} " in line
    assert f"{100 * whole.violations / whole.requests_scheduled:.1f} %" in line


def test_a_mock_engine_is_called_simulated_and_a_real_one_is_not(
    make_made: Callable[..., Any],
) -> None:
    mock, real = make_made(), make_made().on_vllm()
    for made, told in ((mock, True), (real, False)):
        assert ("SIMULATED" in printed(arms_table(made.metrics))) is told
        assert ("SIMULATED" in printed(conditions_table(made.judgement))) is told
        assert ("SIMULATED" in verdict_sentence(made.judgement)) is told


def test_every_condition_is_printed_with_its_status_in_words(
    make_made: Callable[..., Any],
) -> None:
    made = make_made()
    text = printed(conditions_table(made.judgement))
    for condition in made.judgement.verdicts[0].conditions:
        assert condition.name in text
    for status in Status:
        assert status.value.replace("_", " ") in text


def test_a_condition_that_differs_names_its_policy_and_a_common_one_stands_once(
    make_made: Callable[..., Any],
) -> None:
    judgement = make_made(judge=["wa_ewma", "fixed_h"]).judgement
    first, second = judgement.verdicts
    other = replace(second.conditions[3], value=0.01, status=Status.MET)
    changed = replace(second, conditions=(*second.conditions[:3], other, second.conditions[4]))
    found = shared_conditions(replace(judgement, verdicts=(first, changed)))
    assert [(p, c.name) for p, c in found if c.name != "matched_random"] == [
        (None, c.name) for c in first.conditions if c.name != "matched_random"
    ]
    assert [p for p, c in found if c.name == "matched_random"] == ["wa_ewma", "fixed_h"]


def test_the_sentence_says_no_claim_and_what_is_needed_unless_it_is_a_pass(
    make_made: Callable[..., Any],
) -> None:
    judgement = make_made().on_vllm().judgement
    text = verdict_sentence(judgement)
    assert "INCONCLUSIVE, no claim" in text
    assert "least attainable p is 0.250" in text
    assert "Needed: 5 seeds" in text
    passed = replace(
        judgement.verdicts[0], verdict=VerdictKind.PASS, tier=2, sentence="It helps.", needed=""
    )
    text = verdict_sentence(replace(judgement, verdicts=(passed,)))
    assert "no claim" not in text
    assert "Needed" not in text
    assert "It helps." in text


def test_a_study_without_a_judged_policy_says_so(make_made: Callable[..., Any]) -> None:
    judgement = make_made(judge=[]).judgement
    assert "judges no policy" in verdict_sentence(judgement)
    assert "condition" in printed(conditions_table(judgement))
    assert "no runs" in printed(arms_table([]))
