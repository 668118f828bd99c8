"""An arm is given as long to end as the waits of its study can take together."""

import pytest

from actors.deadlines import START, TOKENIZE
from orchestrator.cluster.limits import end_limit_s, islands_limit_s, refresh_limit_s
from orchestrator.config import StudyConfig
from tests.synthetic import synthetic_study


def refreshed(kind: str) -> StudyConfig:
    engine = {"kind": "mock", "start_timeout_s": 100.0}
    refresh = {"kind": kind, "timeout_s": 7.0, "keep_rounds": 3}
    return synthetic_study(sidecars={"engine": engine, "refresh": refresh})


@pytest.mark.parametrize(
    ("kind", "limit_s"), [("none", 0.0), ("in_place", 7.0), ("restart", 107.0)]
)
def test_servers_get_as_long_as_they_may_take(kind: str, limit_s: float) -> None:
    study = refreshed(kind)
    assert refresh_limit_s(study) == limit_s
    plain_s = end_limit_s(refreshed("none"))
    assert end_limit_s(study) == plain_s + 3 * limit_s  # so many at most stand behind each other


def test_a_merge_at_the_horizon_may_reach_each_limit_of_its_calls() -> None:
    study = synthetic_study(merge={"window_s": 4.0, "timeout_s": 50.0})
    assert end_limit_s(study) > 4.0 + 3 * 50.0
    assert end_limit_s(study) - end_limit_s(synthetic_study()) == pytest.approx(3 * 20.0)


def test_islands_of_a_cluster_may_tokenize_before_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = synthetic_study()
    rows = synthetic_study(islands={"data": {"source": "jsonl", "path": "rows.jsonl"}})
    for here in ("", "local"):
        monkeypatch.setenv("RAY_ADDRESS", here)
        assert islands_limit_s(plain) == islands_limit_s(rows) == START.limit_s
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert islands_limit_s(plain) == START.limit_s
    assert islands_limit_s(rows) == START.limit_s + TOKENIZE.limit_s
