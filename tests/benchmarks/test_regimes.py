"""The page of the regimes: its ratios are plain arithmetic on the rows, and it hides no verdict."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.replay.calibrated import Calibration
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.standing import plant_words
from tests.benchmarks.regimes import REGIMES, Regime, expectations, study_path
from tests.benchmarks.regimes_page import BUT_REPLAY, as_expected, draw, page

PLANT = PlantConfig(
    slots=4,
    step_base_s=0.01,
    step_per_seq_s=0.001,
    prefill_per_token_s=0.0,
    overhead_s=0.0,
    merge_factor=3.0,
)
ROW = ReplayFigures(
    replicate=0,
    arm="no_sync-start",
    kind="no_sync",
    policy=None,
    of=None,
    draw=None,
    position="start",
    request_hash="",
    status="complete",
    requests_scheduled=1000,
    violations=0,
    violation_rate=0.0,
    violations_not_yet_arrived=None,
    requests_in_windows=0,
    violations_in_windows=0,
    e2e_p50_s=0.1,
    e2e_p95_s=0.2,
    e2e_p99_s=0.3,
    ttft_p50_s=0.1,
    ttft_p95_s=0.2,
    tpot_p50_s=0.1,
    tpot_p95_s=0.2,
    goodput_rps=1.0,
    merge_count=0,
    marked_windows=0,
    merge_planned_s=0.0,
    starts=(),
    forced_share=None,
    overlap=None,
    overlap_mean=None,
    overlap_variance=None,
    new_overlap=None,
    new_overlap_mean=None,
    new_overlap_variance=None,
    inside_p95_s=None,
    inside_p95_no_sync_s=None,
    pooled_requests=None,
    pooled_p95_s=None,
    pooled_p95_no_sync_s=None,
    excess_s=None,
)


def rows(arm: str, kind: str, violations: list[int], **more: object) -> tuple[ReplayFigures, ...]:
    changes = {"arm": arm, "kind": kind, "position": None, "pooled_p95_s": 1.0, **more}
    return tuple(
        replace(
            ROW,
            replicate=seed,
            violations=n,
            violation_rate=n / 1000,
            violations_not_yet_arrived=n // 2,
            pooled_p95_no_sync_s=0.2,
            **changes,  # type: ignore[arg-type]
        )
        for seed, n in enumerate(violations)
    )


@pytest.fixture
def regime() -> Regime:
    verdict: dict[str, Any] = {
        "verdict": "INCONCLUSIVE",
        "relative_gain": 0.4,
        "p_holm": 0.002,
        "reason": "all met",
    }
    verdict["conditions"] = [
        {"name": "exact_null", "status": "met"},
        {"name": "replay", "status": "not_met", "why": "windows of 4 s, not of 8 s"},
    ]
    return Regime(
        name="onoff",
        study={"question": "does it?", "corridor": {"budget_merges": 3}},
        plant={},
        seeds=(0, 1, 2),
        by_arm={
            "no_sync-start": tuple(replace(ROW, replicate=seed) for seed in range(3)),
            "stopping": rows("stopping", "policy", [50, 70, 60], policy="stopping"),
            "fixed_h": rows("fixed_h", "policy", [100, 110, 90], policy="fixed_h"),
            "r0": rows("r0", "matched_random", [90, 100, 110], of="stopping", draw=0),
            "r1": rows("r1", "matched_random", [110, 120, 130], of="stopping", draw=1),
            "oracle-of-stopping": rows("oracle-of-stopping", "oracle", [10, 10, 10]),
        },
        verdicts={"stopping": verdict},
        caveats=("windows of 8 s are replayed",),
        expected={"stopping": "PASS"},
    )


def test_gain_and_closed_are_ratios_of_means_over_seeds(regime: Regime) -> None:
    assert regime.gain("stopping").value == pytest.approx(1 - 60 / 110)
    assert regime.closed("stopping").value == pytest.approx((110 - 60) / (110 - 10))
    assert regime.gain("fixed_h").value == pytest.approx(1 - 100 / 110)  # the same control
    assert regime.effect().value == pytest.approx(5.0)
    found = regime.gain("stopping")
    assert found.low < found.value < found.high


def test_the_page_says_verdict_expectation_and_plant(regime: Regime, tmp_path: Path) -> None:
    text = page([regime], plant=Calibration(plant=PLANT), figure="regimes.png")
    assert f"| `stopping` | PASS | {BUT_REPLAY} | in the model | 40.0 | replay |" in text
    assert "> **`replay` is not met: windows of 4 s, not of 8 s** (onoff)" in text
    assert text.index("No claim, not even of tier 0") < text.index("gain = ")
    assert plant_words(Calibration(plant=PLANT))[0][1:] in text
    assert "tier 0 at most" in text
    assert text.endswith("## Caveats\n\n- windows of 8 s are replayed\n")
    assert draw([regime], tmp_path / "regimes.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("expected", "verdict", "word"),
    [
        ("PASS", "INCONCLUSIVE", "**no**"),
        ("no PASS", "FAIL", "yes"),
        ("no PASS", "INCONCLUSIVE", "yes"),
        ("no PASS", "PASS", "**no**"),
        ("INCONCLUSIVE", "FAIL", "**no**"),
        ("open", "PASS", "-"),
        ("PASS", BUT_REPLAY, "in the model"),
        ("no PASS", BUT_REPLAY, "**no**"),
        ("INCONCLUSIVE", BUT_REPLAY, "yes"),
    ],
)
def test_a_verdict_that_was_not_expected_is_said(expected: str, verdict: str, word: str) -> None:
    assert as_expected(expected, verdict) == word


def test_every_regime_has_an_expectation_that_is_no_pass_on_steady_traffic() -> None:
    found = {regime: expectations(study_path(regime)) for regime in REGIMES}
    for regime in ("ordinary", "steady"):
        assert set(found[regime].values()) == {"no PASS"}
    assert np.all([expected != "PASS" for expected in found["azure_code"].values()])
