"""Numbers as written: unknown is never 0, a small one never reads as 0."""

from typing import get_args

import pytest

from orchestrator.records import ArmKind
from orchestrator.report import envelope, words
from orchestrator.report.envelope_rows import policy_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.00"),
        (1.234, "1.23"),
        (0.0004, "0.0004"),
        (12, "12"),
        (-0.004, "-0.004"),
    ],
)
def test_a_number_keeps_its_meaning(value: float | None, text: str) -> None:
    assert words.number(value) == text


def test_unknown_is_told_apart_from_nothing() -> None:
    assert words.percent(None) == "-"
    assert words.percent(0.0) == "0.0 %"
    assert words.interval(None) == "-"
    assert words.spread([None, None]) == "-"
    assert words.pooled_rate([]) is None


def test_percentiles_are_shown_as_a_range_over_seeds_not_averaged() -> None:
    assert words.spread([0.9, None, 0.5, 0.7]) == "0.50-0.90"
    assert words.spread([0.5, 0.5]) == "0.50"


def test_a_row_is_written_by_what_its_key_says() -> None:
    assert words.cell("violation_rate", 0.061) == "6.1 %"
    assert words.cell("relative_gain", None) == "-"
    assert words.cell("seed", 3) == "3"
    assert words.cell("e2e_p95_s", 0.8) == "0.800"
    assert words.cell("whole", True) == "yes"
    assert words.heading("e2e_p95_s") == "e2e p95 [s]"
    assert words.heading("train_tokens_per_s") == "train tokens per s"


def test_draws_sort_by_number_and_no_sync_start_before_its_end() -> None:
    labels = ["matched_random-of-x-d10", "matched_random-of-x-d2", "no_sync-end", "no_sync-start"]
    assert sorted(labels, key=words.arm_key) == [
        "matched_random-of-x-d2",
        "matched_random-of-x-d10",
        "no_sync-start",
        "no_sync-end",
    ]


def test_every_kind_of_arm_has_its_place_and_its_mark() -> None:
    kinds = set(get_args(ArmKind))
    assert set(words.ARM_ORDER) == kinds
    assert set(envelope.STYLES) == kinds - {"no_sync", "data_parallel"}  # no window to draw
    assert policy_of("oracle-of-x", kind="oracle") == "x"
    assert envelope.STYLES["oracle"][2] == "oracle (control)"
