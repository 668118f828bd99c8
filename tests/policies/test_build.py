"""Config to policy: the right class with the config's numbers, steps turned into ticks."""

from collections.abc import Callable

import pytest
from pydantic import TypeAdapter

from policies.analog import Analog
from policies.build import build_policy, needs_probes
from policies.config import PolicyConfig
from policies.corridor import Corridor
from policies.ensemble import Ensemble
from policies.ewma import WaEwma
from policies.fixed import FixedH
from policies.frame import Frame
from policies.gate import PressureGate
from policies.observation import Action, Sample, Seen
from policies.score import WaScore
from policies.season import Seasonal
from policies.stopping import Stopping
from policies.threshold import EwmaThreshold

FRAME = Frame(
    corridor=Corridor(floor_ticks=2, ceiling_ticks=10, width_ticks=3, horizon_ticks=60),
    target_gap_ticks=5,
    tick_s=1.0,
)

TEXTS = {
    '{"kind": "fixed_h", "h_steps": 10}': (FixedH, False),
    '{"kind": "pressure_gate", "pressure_threshold": 0.6}': (PressureGate, True),
    '{"kind": "wa_score"}': (WaScore, True),
    '{"kind": "wa_ewma", "half_life_s": 4, "mean_half_life_s": 60}': (WaEwma, False),
    '{"kind": "ewma_threshold"}': (EwmaThreshold, False),
    '{"kind": "stopping"}': (Stopping, False),
    '{"kind": "season"}': (Seasonal, False),
    '{"kind": "analog"}': (Analog, False),
    '{"kind": "ensemble"}': (Ensemble, False),
    '{"kind": "ensemble", "members": [{"kind": "analog", "w_cadence": 1}]}': (Ensemble, False),
}


def parse(text: str) -> PolicyConfig:
    config: PolicyConfig = TypeAdapter(PolicyConfig).validate_json(text)
    return config


@pytest.mark.parametrize("text", TEXTS)
def test_every_kind_builds_its_policy(text: str) -> None:
    cls, probes = TEXTS[text]
    config = parse(text)
    assert type(build_policy(config, step_interval_s=0.25, tick_s=1.0, frame=FRAME)) is cls
    assert needs_probes(config) is probes


@pytest.mark.parametrize("kind", ["ewma_threshold", "stopping", "season", "analog"])
def test_a_policy_that_looks_ahead_needs_the_corridor(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind} looks ahead in the corridor: give frame"):
        build_policy(parse(f'{{"kind": "{kind}"}}'), step_interval_s=0.25, tick_s=1.0)


def test_fixed_h_waits_until_all_its_steps_are_done(make_seen: Callable[..., Seen]) -> None:
    config = parse('{"kind": "fixed_h", "h_steps": 10}')
    policy = build_policy(config, step_interval_s=0.25, tick_s=1.0)  # 2.5 ticks
    assert policy.decide(make_seen(2)).action is Action.DEFER
    assert policy.decide(make_seen(3)).action is Action.MERGE
    with pytest.raises(ValueError, match="unpaced"):
        build_policy(config, step_interval_s=0.0, tick_s=1.0)


def test_the_threshold_arrives(
    make_sample: Callable[..., Sample], make_seen: Callable[..., Seen]
) -> None:
    config = parse('{"kind": "pressure_gate", "pressure_threshold": 0.6}')
    policy = build_policy(config, step_interval_s=0.25, tick_s=1.0)
    policy.observe(make_sample(serving=0.6))
    assert policy.decide(make_seen()).action is Action.MERGE
    policy.observe(make_sample(serving=0.61))
    assert policy.decide(make_seen()).action is Action.DEFER


def test_each_build_is_a_fresh_state(
    make_sample: Callable[..., Sample], make_seen: Callable[..., Seen]
) -> None:
    config = parse('{"kind": "pressure_gate", "pressure_threshold": 0.6}')
    first = build_policy(config, step_interval_s=0.25, tick_s=1.0)
    first.observe(make_sample(serving=0.1))
    assert first.decide(make_seen()).action is Action.MERGE
    second = build_policy(config, step_interval_s=0.25, tick_s=1.0)
    assert second.decide(make_seen()).action is Action.DEFER
