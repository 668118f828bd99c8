"""From a policy's config to the policy: one match, no registry but the plugins' entry points.

Steps become ticks here, once; a policy itself knows ticks only.
"""

from typing import assert_never

from policies.analog import Analog
from policies.config import (
    AnalogConfig,
    EnsembleConfig,
    EwmaThresholdConfig,
    FixedHConfig,
    PressureGateConfig,
    SeasonConfig,
    StoppingConfig,
    UniformRandomConfig,
    WaEwmaConfig,
    WaScoreConfig,
)
from policies.controls import ScheduledPolicy
from policies.ensemble import Ensemble
from policies.ewma import WaEwma
from policies.fixed import FixedH
from policies.foresight import Foresight
from policies.frame import Frame
from policies.gate import PressureGate
from policies.observation import Policy
from policies.plugins import AnyPolicyConfig, build_plugin, plugin_needs_probes
from policies.score import WaScore
from policies.season import Seasonal
from policies.stopping import Stopping
from policies.threshold import EwmaThreshold
from policies.ticks import ticks_up
from policies.units import FrozenModel


def build_policy(
    config: AnyPolicyConfig,
    *,
    step_interval_s: float,
    tick_s: float,
    frame: Frame | None = None,
    random_starts: tuple[int, ...] = (),
) -> Policy:
    """A fresh policy, in the state before its first sample.

    ``frame`` is the run's corridor and cadence; the policies that learn need it.
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
        case EwmaThresholdConfig():
            return EwmaThreshold(config, _required(frame, config.kind))
        case StoppingConfig(levels_of="forecast"):
            return Foresight(config, _required(frame, config.kind))
        case StoppingConfig():
            return Stopping(config, _required(frame, config.kind))
        case SeasonConfig():
            return Seasonal(config, _required(frame, config.kind))
        case AnalogConfig():
            return Analog(config, _required(frame, config.kind))
        case EnsembleConfig(members=members):
            built = tuple(
                build_policy(m, step_interval_s=step_interval_s, tick_s=tick_s, frame=frame)
                for m in members
            )
            return Ensemble(config, _required(frame, config.kind), built)
        case UniformRandomConfig():
            if not random_starts:
                raise ValueError("uniform_random needs a schedule: give random_starts")
            return ScheduledPolicy(random_starts)
        case FrozenModel():
            return build_plugin(
                config,
                frame=_required(frame, type(config).__name__),
                step_interval_s=step_interval_s,
            )
        case _:
            assert_never(config)


def _required(frame: Frame | None, kind: str) -> Frame:
    if frame is None:
        raise ValueError(f"{kind} looks ahead in the corridor: give frame")
    return frame


def needs_probes(config: AnyPolicyConfig) -> bool:
    """Whether a blind sample leaves the policy without its input.

    fixed_h looks at nothing. The forecasting policies live on the client's own counts, which no
    probe takes part in; where those are missing they say UNKNOWN by themselves.
    """
    match config:
        case PressureGateConfig() | WaScoreConfig():
            return True
        case (
            FixedHConfig()
            | WaEwmaConfig()
            | EwmaThresholdConfig()
            | StoppingConfig()
            | SeasonConfig()
            | AnalogConfig()
            | EnsembleConfig()
            | UniformRandomConfig()
        ):
            return False
        case FrozenModel():
            return plugin_needs_probes(config)
        case _:
            assert_never(config)
