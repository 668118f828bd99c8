"""What differs between two configs is said with both values."""

from typing import Any

import pytest

from orchestrator.differences import difference_words


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"slo": {"e2e_s": 0.5}}, {"slo": {"e2e_s": 0.2}}, ["slo.e2e_s: 0.5 there, 0.2 asked"]),
        (
            {"arms": [{"draws": 3}, {"draws": 3}]},
            {"arms": [{"draws": 4}, {"draws": 4}]},
            ["draws: 3 there, 4 asked"],
        ),
        ({"arms": [{}]}, {"arms": [{}, {}]}, ["arms: 1 entries there, 2 entries asked"]),
        ({"seeds": [0, 1, 2]}, {"seeds": [5]}, ["seeds: 3 (0 to 2) there, 1 (5) asked"]),
        ({}, {"guards": {"max_gap_s": 4.0}}, ["guards: none there, {'max_gap_s': 4.0} asked"]),
        ({"judge": ["a"]}, {"judge": ["a", "b"]}, ["judge: a there, a, b asked"]),
        (
            dict.fromkeys("abcdef", 1),
            dict.fromkeys("abcdef", 2),
            [*(f"{k}: 1 there, 2 asked" for k in "abcd"), "and 2 more"],
        ),
    ],
)
def test_each_difference_has_both_values(
    then: dict[str, Any], now: dict[str, Any], words: list[str]
) -> None:
    assert difference_words(then, now) == words
