"""The study: one YAML, composed of each room's own config; frozen, strict, typos refused."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from actors.config import (
    ISLANDS,
    ClientConfig,
    IslandsConfig,
    MergeConfig,
    SidecarsConfig,
    TelemetryConfig,
    VllmConfig,
    check_servable,
)
from orchestrator.calibration.config import GateConfig
from orchestrator.workload.config import ClosedLoopConfig, HistoryConfig, LoadConfig
from policies.config import CorridorConfig, GuardsConfig, UniformRandomConfig
from policies.plugins import AnyPolicyConfig
from policies.units import (
    MOST_TICKS,
    Count,
    Draws,
    FrozenModel,
    Positive,
    PositiveSeconds,
    Seconds,
    Seed,
)

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=80)]  # part of a path


class SloConfig(FrozenModel):
    """A request violates when it fails or is above a limit, from its scheduled time."""

    e2e_s: PositiveSeconds
    ttft_s: PositiveSeconds | None = None
    tpot_s: PositiveSeconds | None = None


class NoSyncArm(FrozenModel):
    """Training runs, nothing merges; at the start and at the end of each seed's block."""

    kind: Literal["no_sync"]


class PolicyArm(FrozenModel):
    kind: Literal["policy"]
    policy: str  # a key of ``policies``


class MatchedRandomArm(FrozenModel):
    """Control: schedules uniform over the feasible set of the budget."""

    kind: Literal["matched_random"]
    of: str
    draws: Draws = 1


class PlaceboArm(FrozenModel):
    """Control: a matched_random schedule with the merge suppressed, windows marked."""

    kind: Literal["placebo"]
    of: str


class OracleArm(FrozenModel):
    """Control, never deployable: fewest arrivals inside the windows, all known beforehand."""

    kind: Literal["oracle"]
    of: str


class AaArm(FrozenModel):
    """Control: a policy again under another label."""

    kind: Literal["aa"]
    of: str


class DataParallelArm(FrozenModel):
    """Yardstick on the step clock: gradients averaged over the islands' batches at every step."""

    kind: Literal["data_parallel"]


ArmConfig = Annotated[
    NoSyncArm | PolicyArm | MatchedRandomArm | PlaceboArm | OracleArm | AaArm | DataParallelArm,
    Field(discriminator="kind"),
]

FREE_KINDS = ("no_sync", "policy", "aa", "data_parallel")  # arms that need no budget


class TunedOn(FrozenModel):
    """What the study's policies were tuned on: a study on other seeds and traces is held out."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    traces: tuple[str, ...] = ()  # file names


class ResourcesConfig(FrozenModel):
    """Where a trial's islands and sidecars land, as Ray placement groups."""

    placement: Literal["same_node", "spread", "pack"] = "same_node"
    ready_timeout_s: PositiveSeconds = 60.0
    memory_bytes: Count = 0  # least free memory on the driver's node; 0 = not checked


class ReplayStudyConfig(FrozenModel):
    """What `lull replay` takes where its options say nothing; no part of a live run."""

    plant: str  # plant.json, relative to the study file
    draws: Draws | None = None  # of matched_random; None: those of the arms


class TrainingConfig(FrozenModel):
    """What a run on the step clock measures beside its own training loss."""

    validate_every_merges: Count = 0  # 0: at the end only


class StudyConfig(FrozenModel):
    """One question, everything that decides its answer."""

    study: Name
    question: str
    regime: str
    islands: IslandsConfig
    sidecars: SidecarsConfig
    slo: SloConfig
    load: LoadConfig
    history: HistoryConfig | None = None
    client: ClientConfig = ClientConfig()
    telemetry: TelemetryConfig
    horizon_s: PositiveSeconds
    warmup_s: Seconds  # requests scheduled before it are sent and never counted
    tick_s: Positive
    corridor: CorridorConfig
    guards: GuardsConfig | None = None
    merge: MergeConfig
    policies: dict[Name, AnyPolicyConfig]
    arms: tuple[ArmConfig, ...]
    judge: tuple[str, ...]  # the family of policies that a claim is asked for
    seeds: tuple[Seed, ...]
    tuned_on: TunedOn | None = None
    gate: GateConfig
    resources: ResourcesConfig = ResourcesConfig()
    on_fault: Literal["stop", "continue"] = "continue"
    replay: ReplayStudyConfig | None = None
    clock: Literal["wall", "steps"] = Field(
        default="wall",
        description="steps: nothing is served; islands train as fast as they can, the traffic that "
        "policies see comes by inner steps, and a run can go on to the bit",
    )
    training: TrainingConfig = TrainingConfig()

    @property
    def free_cadence(self) -> bool:
        """No budget: the policies decide how often to merge, so placement is not compared."""
        return self.corridor.budget_merges is None

    @model_validator(mode="after")
    def _steps_clock_can_run(self) -> "StudyConfig":
        yardsticks = [i for i, arm in enumerate(self.arms) if arm.kind == "data_parallel"]
        if self.clock == "wall":
            if yardsticks:
                raise ValueError(
                    f"arms[{yardsticks[0]}] is data_parallel, which has no windows to serve "
                    "beside; give clock: steps, or leave it out"
                )
            return self
        if self.islands.step_interval_s <= 0:
            raise ValueError(
                f"clock='steps' with islands.step_interval_s={self.islands.step_interval_s:g}: a "
                "tick would hold any number of inner steps; give the pace that the clock counts in"
            )
        from policies.build import needs_probes  # loads every policy

        blind = [name for name, policy in self.policies.items() if needs_probes(policy)]
        if blind:
            raise ValueError(
                f"clock='steps' with policy {blind[0]!r}, which looks at the serving machine's "
                "probes; nothing is served then: leave it out, or measure with clock: wall"
            )
        return self

    @model_validator(mode="after")
    def _served_islands_fit_a_server(self) -> "StudyConfig":
        engine = self.sidecars.engine
        served = isinstance(engine, VllmConfig) and engine.model == ISLANDS
        if served or self.sidecars.refresh.kind != "none":
            check_servable(self.islands.model)
        return self

    @model_validator(mode="after")
    def _free_cadence_compares_no_placement(self) -> "StudyConfig":
        if not self.free_cadence:
            return self
        why = "corridor.budget_merges is null (free cadence), which shows rate effects only"
        if self.judge:
            raise ValueError(
                f"judge={list(self.judge)} asks for a placement claim, but {why}; give a budget, "
                "or judge: []"
            )
        for i, arm in enumerate(self.arms):
            name = getattr(arm, "policy", None) or getattr(arm, "of", None)
            random = isinstance(self.policies.get(name or ""), UniformRandomConfig)
            if random or arm.kind not in FREE_KINDS:
                raise ValueError(
                    f"arms[{i}] is {'uniform_random' if random else arm.kind}, whose schedule is "
                    f"drawn for a budget, but {why}; give a budget, or leave the arm out"
                )
        return self

    @model_validator(mode="after")
    def _ticks_can_be_listed(self) -> "StudyConfig":
        longest = self.horizon_s if self.history is None else self.horizon_s + self.history.length_s
        if longest > MOST_TICKS * self.tick_s:
            raise ValueError(
                f"horizon_s={self.horizon_s:g} (with its history) is above {MOST_TICKS} ticks of "
                f"tick_s={self.tick_s:g}; shorten the run or lengthen the tick"
            )
        return self

    @model_validator(mode="after")
    def _history_in_ticks(self) -> "StudyConfig":
        if self.history is None:
            return self
        if isinstance(self.load, ClosedLoopConfig):
            raise ValueError(
                "history with load.kind='closed': what users asked before depends on answers that "
                "nobody gave; leave history out"
            )
        if self.history.length_s < self.tick_s:
            raise ValueError(
                f"history.length_s={self.history.length_s:g} is below tick_s={self.tick_s:g}; "
                "give at least one tick"
            )
        return self

    @model_validator(mode="after")
    def _names_resolve(self) -> "StudyConfig":
        known = ", ".join(self.policies) or "none"
        if not self.arms:
            raise ValueError("arms is empty; list at least one")
        if len(set(self.judge)) != len(self.judge):
            raise ValueError(f"judge={list(self.judge)}; name each policy once")
        for i, arm in enumerate(self.arms):
            name = getattr(arm, "policy", None) or getattr(arm, "of", None)
            if name is not None and name not in self.policies:
                raise ValueError(f"arms[{i}] names policy {name!r}; policies has {known}")
        for name in self.judge:
            if name not in self.policies:
                raise ValueError(f"judge names policy {name!r}; policies has {known}")
        share = None if self.guards is None else self.guards.max_overlap_share
        if share is not None and self.sidecars.count > 1 and share * self.sidecars.count <= 1:
            raise ValueError(
                f"guards.max_overlap_share={share:g} with {self.sidecars.count} sidecars: at least "
                f"one always carries 1/{self.sidecars.count}; give a larger share"
            )
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ValueError(f"seeds={list(self.seeds)}; give at least one, each once")
        return self
