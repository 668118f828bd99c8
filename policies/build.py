"""From a policy's config to the policy: one match, no registry.

Steps become ticks here, once; a policy itself knows ticks only.
"""

from typing import assert_never

from policies.config import (
    FixedHConfig,
    PolicyConfig,
    PressureGateConfig,
    UniformRandomConfig,
    WaEwmaConfig,
    WaScoreConfig,
)
from policies.controls import ScheduledPolicy
from policies.ewma import WaEwma
from policies.fixed import FixedH
from policies.gate import PressureGate
from policies.observation import Policy
from policies.score import WaScore
from policies.ticks import ticks_up


def build_policy(
    config: PolicyConfig,
    *,
    step_interval_s: float,
    tick_s: float,
    random_starts: tuple[int, ...] = (),
) -> Policy:
    """A fresh policy, in the state before its first sample.

    ``random_starts`` is the run's uniform schedule; only the control uniform_random follows it.
    """
    match config:
        case FixedHConfig(h_steps=steps):
            return FixedH(ticks_up(steps, step_interval_s=step_interval_s, tick_s=tick_s))
        case PressureGateConfig(pressure_threshold=threshold):
            return PressureGate(pressure_threshold=threshold)
        case WaScoreConfig():
            return WaScore(config)
        case WaEwmaConfig():
            return WaEwma(config)
        case UniformRandomConfig():
            if not random_starts:
                raise ValueError("uniform_random needs a schedule: give random_starts")
            return ScheduledPolicy(random_starts)
        case _:
            assert_never(config)


def needs_probes(config: PolicyConfig) -> bool:
    """Whether a blind sample leaves the policy without its input.

    fixed_h looks at nothing. wa_ewma lives on the client's own counts, which no probe takes
    part in; where those are missing it says UNKNOWN by itself.
    """
    match config:
        case PressureGateConfig() | WaScoreConfig():
            return True
        case FixedHConfig() | WaEwmaConfig() | UniformRandomConfig():
            return False
        case _:
            assert_never(config)
