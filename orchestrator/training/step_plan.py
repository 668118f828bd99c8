"""A study's arms on the step clock: the traffic by ticks, and how long each arm trains. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actors.coordinator.step_clock import StepPlan
from actors.events import HistoryTold
from actors.load.request import Request
from orchestrator.arms import block_order, study_corridor
from orchestrator.config import StudyConfig
from orchestrator.records import ArmSpec
from orchestrator.workload.slices import US_PER_S

ASSUMED_SERVICE_S = 0.2  # of a request, where the study's history says nothing else


def step_arms(study: StudyConfig, seed: int) -> tuple[ArmSpec, ...]:
    """A seed's block; no_sync once, because no server can drift between its start and end."""
    return tuple(arm for arm in block_order(study, seed) if arm.position != "end")


def step_plan(
    study: StudyConfig,
    arm: ArmSpec,
    *,
    seed: int,
    requests: Sequence[Request],
    history: HistoryTold | None,
    folder: str,
) -> StepPlan:
    """What the arm's run is made of.

    Every arm trains on the same number of tokens: an arm without windows stops for as long as the
    windows of the others last.
    """
    corridor = study_corridor(study)
    service_s = ASSUMED_SERVICE_S if study.history is None else study.history.service_s
    arrivals, in_flight = traffic_by_tick(
        [r.scheduled_at_s for r in requests],
        ticks=corridor.horizon_ticks + 1,
        tick_s=study.tick_s,
        service_s=service_s,
    )
    return StepPlan(
        arm=arm.label,
        seed=seed,
        tick_s=study.tick_s,
        width_ticks=corridor.width_ticks,
        horizon_ticks=corridor.horizon_ticks,
        arrivals=arrivals,
        in_flight=in_flight,
        suppressed=arm.kind == "placebo",
        folder=folder,
        validate_every_merges=study.training.validate_every_merges,
        history=history,
        data_parallel=arm.kind == "data_parallel",
        train_ticks=train_ticks(study),
    )


def train_ticks(study: StudyConfig) -> int | None:
    """Ticks with inner steps in every arm; None where the number of merges is not fixed."""
    budget = study.corridor.budget_merges
    if budget is None or study.merge.overlap_steps:
        return None
    corridor = study_corridor(study)
    return corridor.horizon_ticks - budget * corridor.width_ticks


def inner_steps(study: StudyConfig) -> int | None:
    """Of an island in every arm; None where the number of merges is not fixed, or they overlap."""
    ticks = train_ticks(study)
    return (
        None if ticks is None else int(ticks * study.tick_s / study.islands.step_interval_s + 1e-9)
    )


def check_faults_happen(study: StudyConfig) -> None:
    """ValueError for a planned fault after the last merge or the last inner step."""
    steps, merges = inner_steps(study), study.corridor.budget_merges
    for i, fault in enumerate(study.islands.faults):
        where = f"islands.faults[{i}]"
        if steps is not None and fault.step is not None and fault.step > steps:
            raise ValueError(f"{where}.step={fault.step}: an island makes {steps} inner steps")
        if merges is not None and fault.round is not None and fault.round > merges:
            raise ValueError(
                f"{where}.round={fault.round}: the last merge, which closes the run, is {merges}"
            )


def traffic_by_tick(
    at_s: Sequence[float], *, ticks: int, tick_s: float, service_s: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Requests that arrived in (previous tick, tick], and those of the last ``service_s``.

    Nothing is served on the step clock, so how long a request is in flight is an assumption.
    """
    at_us = np.sort(np.round(np.asarray(at_s, dtype=np.float64) * US_PER_S))
    ends_us = np.round(np.arange(ticks) * tick_s * US_PER_S)
    before = np.searchsorted(at_us, ends_us, side="right")
    done = np.searchsorted(at_us, ends_us - service_s * US_PER_S, side="right")
    arrivals = np.diff(before, prepend=0)
    return tuple(int(n) for n in arrivals), tuple(int(n) for n in before - done)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """What a study on the step clock will do, before it does."""

    study: str
    question: str
    clock: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: int
    merges: int | None  # in every arm; None: free cadence
    inner_steps: int | None  # of an island in every arm; None: free cadence or overlap
    tokens: int | None  # of all islands together
    notes: tuple[str, ...] = ()  # what is odd about its input

    def lines(self) -> list[str]:
        each = self.inner_steps
        steps = "as the merges come" if each is None else f"{each} an island"
        tokens = "" if self.tokens is None else f", {self.tokens} tokens in all"
        return [
            f"study {self.study}: {self.question}",
            "  clock      steps: nothing is served, islands train as fast as they can",
            f"  runs       {len(self.arms)} arms x {len(self.seeds)} seeds = {self.runs}",
            f"  merges     {'free cadence' if self.merges is None else self.merges} in every arm "
            "that merges, and one that closes a run",
            f"  steps      {steps}{tokens}",
            *(f"  note       {note}" for note in self.notes),
        ]


def step_summary(study: StudyConfig, *, notes: Sequence[str] = ()) -> StepSummary:
    """ValueError for a corridor that cannot be kept."""
    arms = step_arms(study, study.seeds[0])
    steps, islands = inner_steps(study), study.islands
    per_step = islands.count * islands.replicas * islands.batch_size * islands.seq_len_tokens
    return StepSummary(
        study=study.study,
        question=study.question,
        clock=study.clock,
        arms=tuple(arm.label for arm in arms),
        seeds=study.seeds,
        runs=len(arms) * len(study.seeds),
        merges=study.corridor.budget_merges,
        inner_steps=steps,
        tokens=None if steps is None else steps * per_step,
        notes=tuple(notes),
    )
