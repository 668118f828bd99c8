"""The pressure gate: the largest known pressure decides, and serving must be known."""

from collections.abc import Callable

import pytest

from policies.gate import PressureGate
from policies.observation import Action, Reason, Sample, Seen

MakeSample = Callable[..., Sample]


@pytest.mark.parametrize(
    ("pressures", "reason"),
    [
        ({"serving": 0.5}, Reason.PRESSURE_LOW),  # at the threshold is low enough
        ({"serving": 0.501}, Reason.PRESSURE_HIGH),
        ({"serving": 0.1, "network": 0.2, "checkpoint": 0.3}, Reason.PRESSURE_LOW),
        ({"serving": 0.1, "network": 0.6, "checkpoint": 0.3}, Reason.PRESSURE_HIGH),
        ({"serving": 0.1, "network": 0.2, "checkpoint": 0.7}, Reason.PRESSURE_HIGH),
        ({"serving": 0.0}, Reason.PRESSURE_LOW),
    ],
)
def test_the_largest_known_pressure_decides(
    make_sample: MakeSample,
    make_seen: Callable[..., Seen],
    pressures: dict[str, float],
    reason: Reason,
) -> None:
    gate = PressureGate(pressure_threshold=0.5)
    gate.observe(make_sample(**pressures))
    decision = gate.decide(make_seen())
    assert decision.reason is reason
    assert (decision.action is Action.MERGE) == (reason is Reason.PRESSURE_LOW)
    assert decision.score == max(pressures.values())
    assert dict(decision.terms) == {
        "serving": pressures["serving"],
        "network": pressures.get("network"),
        "checkpoint": pressures.get("checkpoint"),
        "largest": max(pressures.values()),
    }


def test_without_serving_pressure_it_defers_and_still_logs_the_rest(
    make_sample: MakeSample, make_seen: Callable[..., Seen]
) -> None:
    gate = PressureGate(pressure_threshold=0.5)
    gate.observe(make_sample(0, serving=0.1))
    gate.observe(make_sample(1, network=0.1))  # serving was known a tick ago; now it is not
    decision = gate.decide(make_seen(1))
    assert (decision.action, decision.reason) == (Action.DEFER, Reason.UNKNOWN)
    assert decision.score is None
    assert dict(decision.terms) == {
        "serving": None,
        "network": 0.1,
        "checkpoint": None,
        "largest": None,
    }
