"""The advice: one small YAML for a team that trains and serves with its own code."""

from pydantic import Field, model_validator

from actors.config import TelemetryConfig
from orchestrator.config import Name
from policies.config import CorridorConfig, UniformRandomConfig
from policies.corridor import Corridor
from policies.plugins import AnyPolicyConfig
from policies.units import (
    FrozenModel,
    Members,
    PositiveSeconds,
    PositiveSteps,
    Steps,
)

MEASURED_STEPS = 20  # whose median is the pace, where the advice does not say it
FEWEST_MEASURED = 2
ENDLESS_TICKS = 10**12  # nothing is listed by tick here


class AdviceConfig(FrozenModel):
    """What decides the advice. Steps are inner steps, on one axis for all learners."""

    name: Name
    learners: Members = Field(description="expected; others may join, silent ones are dropped")
    vllm_metrics_url: str | None = Field(
        description="root or /metrics of the team's vLLM server; null: blind, so that a policy "
        "that looks at it merges only when the corridor forces it"
    )
    telemetry: TelemetryConfig | None = Field(
        default=None, description="full scales of the pressures; given exactly with a server"
    )
    corridor: CorridorConfig
    horizon_steps: PositiveSteps | None = Field(
        default=None, description="inner steps of the training; given exactly with a budget"
    )
    policy: AnyPolicyConfig
    tick_steps: PositiveSteps = Field(
        description="inner steps from one decision to the next: merges fall on multiples of it, "
        "counted from the last merge"
    )
    step_s: PositiveSeconds | None = Field(
        default=None,
        description="seconds of an inner step, for what the policies reckon in seconds; null: the "
        "median of the first steps. The corridor does not depend on it",
    )
    start_step: Steps | None = Field(
        default=None,
        description="step of the last merge before the advice; null: the one before the first "
        "report",
    )
    window_s: PositiveSeconds = Field(description="seconds that a merge is expected to take")
    notice_steps: Steps = Field(
        default=0, description="steps from a decision to its merge, for trainers that prepare it"
    )
    silence_s: PositiveSeconds = Field(
        default=60.0, description="a learner that says nothing for so long, and a tick, is dropped"
    )

    @property
    def measured_steps(self) -> int:
        """Steps that the pace may be measured over before a merge can be due."""
        return min(MEASURED_STEPS, self.corridor.floor_steps - self.notice_steps - 1)

    def corridor_ticks(self, *, width_ticks: int) -> Corridor:
        """The corridor in ticks of ``tick_steps``: floor up, ceiling down, each merge W ticks.

        The budget's merges take no steps, so the horizon is that of the steps and their windows.
        """
        ticks, budget = self.tick_steps, self.corridor.budget_merges
        horizon = ENDLESS_TICKS  # free cadence ends when the trainers do
        if self.horizon_steps is not None and budget is not None:
            horizon = self.horizon_steps // ticks + budget * width_ticks
        return Corridor(
            floor_ticks=-(-self.corridor.floor_steps // ticks),
            ceiling_ticks=self.corridor.ceiling_steps // ticks,
            width_ticks=width_ticks,
            horizon_ticks=horizon,
        )

    @model_validator(mode="after")
    def _server_and_its_scales(self) -> "AdviceConfig":
        url = self.vllm_metrics_url
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(
                f"vllm_metrics_url={url!r} is no http:// or https:// URL; give the server's root, "
                "e.g. http://127.0.0.1:8000, or null"
            )
        if (url is None) != (self.telemetry is None):
            raise ValueError(
                f"vllm_metrics_url={url!r} with telemetry "
                f"{'given' if self.telemetry is not None else 'left out'}; give the full scales "
                "exactly when there is a server to read"
            )
        return self

    @model_validator(mode="after")
    def _deployable(self) -> "AdviceConfig":
        if isinstance(self.policy, UniformRandomConfig):
            raise ValueError(
                "policy.kind='uniform_random' is a control and never deployable; give a policy, "
                "e.g. {kind: stopping}"
            )
        return self

    @model_validator(mode="after")
    def _corridor_in_ticks(self) -> "AdviceConfig":
        floor, ceiling = self.corridor.floor_steps, self.corridor.ceiling_steps
        if floor < 1:
            raise ValueError("corridor.floor_steps=0 would merge without a step; give at least 1")
        if -(-floor // self.tick_steps) > ceiling // self.tick_steps:
            raise ValueError(
                f"corridor: no multiple of tick_steps={self.tick_steps} lies in [floor_steps="
                f"{floor}, ceiling_steps={ceiling}]; lower tick_steps or widen the corridor"
            )
        if self.notice_steps >= floor:
            raise ValueError(
                f"notice_steps={self.notice_steps} is not below corridor.floor_steps={floor}: a "
                "merge would be decided before the last one; lower it or raise the floor"
            )
        if self.step_s is None and self.measured_steps < FEWEST_MEASURED:
            raise ValueError(
                f"step_s is left out, and {floor} steps (less the notice of {self.notice_steps}) "
                "before the first merge are too few to measure it; give step_s"
            )
        return self

    @model_validator(mode="after")
    def _budget_with_its_horizon(self) -> "AdviceConfig":
        budget = self.corridor.budget_merges
        if (budget is None) != (self.horizon_steps is None):
            raise ValueError(
                f"horizon_steps={self.horizon_steps} with corridor.budget_merges={budget}; give "
                "both, or neither (free cadence)"
            )
        return self

    @model_validator(mode="after")
    def _budget_fits(self) -> "AdviceConfig":
        budget = self.corridor.budget_merges
        if budget is None or self.horizon_steps is None:
            return self
        # Gaps in [floor, ceiling] that end by the horizon, and no further one that would be due:
        # the corridor's own condition for a window of one tick, which is the strictest.
        ticks = self.horizon_steps // self.tick_steps
        one = self.corridor_ticks(width_ticks=1)
        least, most = max(1, -(-ticks // one.ceiling_ticks) - 1), ticks // one.floor_ticks
        if not least <= budget <= most:
            fit = f"feasible budgets: {least} to {most}" if least <= most else "no budget fits"
            raise ValueError(
                f"corridor.budget_merges={budget} does not fit into horizon_steps="
                f"{self.horizon_steps} with a merge every {one.floor_ticks} to "
                f"{one.ceiling_ticks} ticks of {self.tick_steps} steps; {fit}"
            )
        return self

    @model_validator(mode="after")
    def _silence_outlasts_a_merge(self) -> "AdviceConfig":
        if self.silence_s <= self.window_s:
            raise ValueError(
                f"silence_s={self.silence_s:g} is not above window_s={self.window_s:g}: a learner "
                "that merges would be taken for a dead one; raise it"
            )
        return self


class AdviceFile(FrozenModel):
    """The file has one key, so that it may stand beside others of the team."""

    advice: AdviceConfig
