"""Traffic before the run: one draw with the run's own, told to the policies and never sent."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.coordinator.told import told_samples
from actors.events import HistoryTold, from_record, to_record
from orchestrator.config import StudyConfig
from orchestrator.record_files import parse_json, strict_json
from orchestrator.workload.history import told_history
from orchestrator.workload.requests import earlier_arrivals, make_requests
from tests.synthetic import synthetic_study

HERE = Path(__file__).parent
TOKENS = {"low": 8, "high": 8}
HISTORY = {"length_s": 120.0, "service_s": 1.5}


def asked(**changes: object) -> StudyConfig:
    """The synthetic study with a history; top-level keys are replaced whole."""
    raw = synthetic_study().model_dump(mode="json") | {"history": HISTORY} | changes
    return StudyConfig.model_validate_json(json.dumps(raw))


def told(study: StudyConfig, *, seed: int = 0) -> HistoryTold:
    found = told_history(study, seed=seed, study_dir=HERE)
    assert found is not None
    return found


def test_history_and_run_are_one_draw_of_the_law() -> None:
    poisson = {"kind": "poisson", "rate_per_s": 5.0, "prompt_tokens": TOKENS}
    load = asked(load={**poisson, "output_tokens": TOKENS}).load
    place: dict[str, Any] = {"seed": 3, "sidecars": 2, "study_dir": HERE}
    earlier = earlier_arrivals(load, horizon_s=60.0, history_s=120.0, **place) / 1e6
    now = [r.scheduled_at_s for r in make_requests(load, horizon_s=60.0, history_s=120.0, **place)]
    whole = [r.scheduled_at_s for r in make_requests(load, horizon_s=180.0, **place)]
    np.testing.assert_allclose([*(earlier + 120.0), *(np.array(now) + 120.0)], whole, atol=2e-6)
    assert earlier.max() < 0 <= min(now)


def test_a_fixed_phase_counts_from_the_start_of_the_run() -> None:
    bursts = {
        "kind": "bursts",
        "quiet_rate_per_s": 0,
        "burst_rate_per_s": 50,
        "period_s": 20,
        "burst_s": 2,
        "phase_s": 5,
        "prompt_tokens": TOKENS,
        "output_tokens": TOKENS,
    }
    study = asked(load=bursts, history={"length_s": 33.0, "service_s": 1.0})
    history = told(study)
    busy = [history.first_tick + i for i, n in enumerate(history.arrivals) if n]
    assert busy == [-14, -13]  # the burst before the one at 5 s is [-15, -13)
    run = make_requests(
        study.load, seed=0, horizon_s=20.0, sidecars=1, study_dir=HERE, history_s=33.0
    )
    assert all(5.0 <= r.scheduled_at_s < 7.0 for r in run)


def test_each_request_is_told_once_and_is_in_flight_for_its_service_time() -> None:
    study = asked()
    history = told(study)
    at_s = (
        earlier_arrivals(
            study.load, seed=0, horizon_s=60.0, history_s=120.0, sidecars=1, study_dir=HERE
        )
        / 1e6
    )
    assert history.first_tick == -120
    assert len(history.arrivals) == 120
    assert sum(history.arrivals) == (at_s <= -1.0).sum()  # the last second is not over at tick -1
    for tick in (-100, -37, -1):
        want = ((at_s > tick - 1.5) & (at_s <= tick)).sum()
        assert history.in_flight[tick] == want


def test_a_study_without_history_is_told_nothing_and_keeps_its_requests() -> None:
    study = synthetic_study()
    assert told_history(study, seed=0, study_dir=HERE) is None
    make: dict[str, Any] = {"seed": 0, "horizon_s": 60.0, "sidecars": 1, "study_dir": HERE}
    assert make_requests(study.load, **make) == make_requests(study.load, **make, history_s=0.0)


def test_a_slice_is_told_the_rows_before_it() -> None:
    """Slices start at 10, 15, 20 s; rows stand at whole seconds from 0 to 29."""
    path = HERE / "traces"
    load = {
        "kind": "trace",
        "path": "every_second.csv",
        "time_scale": 1.0,
        "columns": {"time": "t", "time_unit": "s", "prompt_tokens": "p", "output_tokens": "o"},
        "slice": {
            "offset_s": 10.0,
            "min_requests": 1,
            "max_requests": 100,
            "max_burst_requests": 100,
        },
        "token_scale": 1.0,
        "prompt_tokens_clip": TOKENS,
        "output_tokens_clip": TOKENS,
    }
    study = asked(load=load, history={"length_s": 8.0, "service_s": 1.0})
    at_us = earlier_arrivals(
        study.load, seed=1, horizon_s=5.0, history_s=8.0, sidecars=1, study_dir=path
    )
    np.testing.assert_array_equal(at_us, np.arange(-8, 0) * 1_000_000)
    with pytest.raises(ValueError, match=r"history.length_s=12 needs 12 s .* starts at 10 s"):
        earlier_arrivals(
            study.load, seed=0, horizon_s=5.0, history_s=12.0, sidecars=1, study_dir=path
        )


def test_told_traffic_survives_strict_json_and_becomes_samples() -> None:
    history = told(asked())
    assert from_record(parse_json(strict_json(to_record(history), where="event"))) == history
    samples = list(told_samples(history, tick_s=0.5))
    assert [s.tick for s in samples] == list(range(-120, 0))
    assert samples[-1].now_s == -0.5
    assert samples[-1].serving is None
    assert not samples[-1].islands
    torn = HistoryTold(event_id=0, first_tick=-3, arrivals=(1, 2), in_flight=(0, 0), service_s=1.0)
    with pytest.raises(ValueError, match="must reach from there to tick -1"):
        list(told_samples(torn, tick_s=1.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"history": {"length_s": 0.5, "service_s": 1.0}}, "below tick_s=1"),
        (
            {
                "load": {
                    "kind": "closed",
                    "users": 2,
                    "prompt_tokens": TOKENS,
                    "output_tokens": TOKENS,
                }
            },
            "depends on answers that nobody gave",
        ),
    ],
)
def test_a_history_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asked(**changes)
