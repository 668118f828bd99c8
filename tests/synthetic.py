"""Whole synthetic studies on disk: real schedules, coordinator and writer, made-up latencies.

Requests scheduled inside a merge window take ``effect`` times as long; nothing else differs.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from actors.coordinator.coordinator import Coordinator
from actors.events import (
    ArmFinished,
    ArmStarted,
    Event,
    MergeFinished,
    MergePart,
    MergeStarted,
    StartMerge,
    Ticked,
)
from actors.load.request import Outcome, Request, RequestRow
from orchestrator.arm_policy import arm_wrapper
from orchestrator.arms import expand_arms, random_schedule, study_corridor
from orchestrator.config import StudyConfig
from orchestrator.record_tables import plain_table, planned_windows, requests_table, row_record
from orchestrator.records import ArmSpec, RunRecord
from orchestrator.rundir import RunWriter, run_hash, run_name
from orchestrator.workload.history import told_history
from orchestrator.workload.requests import make_requests, request_hash
from policies.controls import ScheduledPolicy
from policies.observation import Reading, Sample, SidecarLoad
from policies.streams import stream
from policies.wrapper import CorridorWrapper

_TOKENS = {"low": 16, "high": 16}
_STUDY: dict[str, Any] = {
    "study": "synthetic",
    "question": "Is the gate no constant?",
    "regime": "synthetic bursts",
    "islands": {
        "count": 2,
        "model": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 2, "ffn_size": 64},
        "data": {"source": "stdlib"},
        "inner": {"lr": 0.001},
        "batch_size": 2,
        "seq_len_tokens": 16,
        "step_interval_s": 0.1,
    },
    "sidecars": {"count": 1, "engine": {"kind": "mock"}},
    "slo": {"e2e_s": 0.15},
    "load": {
        "kind": "bursts",
        "quiet_rate_per_s": 2.0,
        "burst_rate_per_s": 20.0,
        "period_s": 12.0,
        "burst_s": 3.0,
        "random_phase": True,
        "prompt_tokens": _TOKENS,
        "output_tokens": _TOKENS,
    },
    "telemetry": {
        "serving_full_requests": 16,
        "network_full_bytes_per_s": 1e8,
        "checkpoint_full_bytes_per_s": 1e8,
    },
    "horizon_s": 60.0,
    "warmup_s": 5.0,
    "tick_s": 1.0,
    "corridor": {"floor_steps": 50, "ceiling_steps": 250, "target_steps": 120, "budget_merges": 4},
    "merge": {"window_s": 4.0, "fill": {"kind": "matmul"}},
    "policies": {"wa_ewma": {"kind": "wa_ewma", "half_life_s": 2.0, "mean_half_life_s": 20.0}},
    "arms": [
        {"kind": "no_sync"},
        {"kind": "policy", "policy": "wa_ewma"},
        {"kind": "matched_random", "of": "wa_ewma", "draws": 1},
        {"kind": "placebo", "of": "wa_ewma"},
    ],
    "judge": ["wa_ewma"],
    "seeds": [0, 1],
    "gate": {
        "alpha": 0.05,
        "relative_gain_floor": 0.05,
        "tie_half_width": 0.03,
        "drift_margin_fraction": 0.005,
        "min_seeds_for_drift": 7,
        "min_seeds_for_interval": 5,
        "effect_ratio_floor": 1.1,
        "placebo_ratio_low": 0.9,
        "placebo_ratio_high": 1.1,
        "max_lateness_fraction_of_slo": 0.2,
        "max_no_sync_violation_fraction": 0.05,
        "permutations": 10_000,
        "resamples": 1000,
        "seed": 0,
    },
}
INPUTS = {"training_text": "c" * 64}
PROVENANCE = {"source": "live", "engine": "mock", "engine_version": "mock-1", "inputs": INPUTS}
AA = {"kind": "aa", "of": "wa_ewma"}


def _merge_study(**changes: Any) -> StudyConfig:
    """The synthetic study with top-level keys replaced; dicts are merged into, one level deep."""
    raw = dict(_STUDY)
    for key, value in changes.items():
        raw[key] = {**raw[key], **value} if isinstance(value, dict) and key in raw else value
    return StudyConfig.model_validate_json(json.dumps(raw))


@dataclass(frozen=True, kw_only=True)
class World:
    """What the made-up system does: the merge effect, how policies place, real seconds a merge."""

    effect: float = 4.0
    # the feasible schedule with fewest requests inside, a "random" one, or the "policy" decides
    placement: str = "dodge"
    real_s: float = 0.5


def synthetic_study(*, aa: bool = False, draws: int | None = None, **changes: Any) -> StudyConfig:
    """synthetic_study(seeds=[0, 1], gate={"alpha": 0.1}, aa=True, draws=2, **study keys)"""
    arms = [dict(a) for a in changes.pop("arms", _STUDY["arms"])]
    for arm in arms:
        if draws is not None and arm["kind"] == "matched_random":
            arm["draws"] = draws
    return _merge_study(arms=[*arms, AA] if aa else arms, **changes)


def synthetic_records(world: World, study: StudyConfig) -> Iterator[RunRecord]:
    """Every run of the study, in memory."""
    for seed, arm, requests in study_runs(study):
        yield make_record(study, arm, seed, requests, world)


def split_world(changes: dict[str, Any]) -> World:
    return World(**{k: changes.pop(k) for k in World.__dataclass_fields__ if k in changes})


def study_runs(study: StudyConfig) -> Iterator[tuple[int, ArmSpec, tuple[Request, ...]]]:
    for seed in study.seeds:
        requests = make_requests(
            study.load,
            seed=seed,
            horizon_s=study.horizon_s,
            sidecars=study.sidecars.count,
            study_dir=Path(),
            history_s=0.0 if study.history is None else study.history.length_s,
        )
        yield from ((seed, arm, requests) for arm in expand_arms(study))


def _starts(
    study: StudyConfig, arm: ArmSpec, seed: int, requests: Sequence[Request], world: World
) -> tuple[int, ...]:
    if arm.kind == "no_sync":
        return ()
    if arm.kind in ("matched_random", "placebo"):
        return random_schedule(study, arm, seed)
    rng = stream(seed, "synthetic placement", len(arm.label))
    size = 1 if world.placement == "random" else 300
    budgets = study_corridor(study).budgets()
    budget = study.corridor.budget_merges or budgets[seed % len(budgets)]  # free: as it likes
    drawn = study_corridor(study).sample(budget, size=size, rng=rng)
    at_s = np.array([r.scheduled_at_s for r in requests])
    start_s = drawn[:, :, None] * study.tick_s  # [schedule, merge, 1]
    hit = (at_s >= start_s) & (at_s < start_s + study.merge.window_s)  # [schedule, merge, request]
    return tuple(int(t) for t in drawn[int(np.argmin(hit.sum(axis=(1, 2))))])


def _config(
    study: StudyConfig, arm: ArmSpec, seed: int, requests: Sequence[Request]
) -> dict[str, Any]:
    corridor = study_corridor(study)
    return {
        "study": study.model_dump(mode="json"),
        "arm": {name: getattr(arm, name) for name in ArmSpec.__slots__},
        "seed": seed,
        "request_hash": request_hash(requests),
        "run_hash": run_hash(study, arm),
        "corridor": {
            "floor_ticks": corridor.floor_ticks,
            "ceiling_ticks": corridor.ceiling_ticks,
            "width_ticks": corridor.width_ticks,
            "horizon_ticks": corridor.horizon_ticks,
            "budget": study.corridor.budget_merges,
        },
    }


def write_arm(
    study_dir: Path,
    study: StudyConfig,
    arm: ArmSpec,
    seed: int,
    requests: tuple[Request, ...],
    world: World,
) -> Path:
    folder = study_dir / run_name(arm, seed, run_hash(study, arm))
    config = _config(study, arm, seed, requests)
    writer = RunWriter(folder, config=config, provenance=PROVENANCE)
    events = _events(study, arm, seed, requests, world)
    for event in events:
        writer.event(event)
    starts = [e.tick for e in events if isinstance(e, MergeStarted)]
    writer.request_rows(_rows(study, arm, seed, requests, starts, world))
    writer.train_rows(_train_rows(study))
    writer.pressure_rows(_pressure_rows(study))
    writer.finish("complete", None, study.horizon_s, requests)
    return folder


def make_record(
    study: StudyConfig,
    arm: ArmSpec,
    seed: int,
    requests: tuple[Request, ...],
    world: World,
) -> RunRecord:
    """What read_run gives for the folder of write_arm."""
    events = _events(study, arm, seed, requests, world)
    starts = [e.tick for e in events if isinstance(e, MergeStarted)]
    finished = ArmFinished(
        event_id=events[-1].event_id + 1, at_s=study.horizon_s, status="complete", why=None
    )
    rows = [row_record(row) for row in _rows(study, arm, seed, requests, starts, world)]
    return RunRecord(
        path=Path(f"{arm.label}-s{seed}"),
        arm=arm,
        seed=seed,
        config=_config(study, arm, seed, requests),
        provenance=PROVENANCE,
        events=(*events, finished),
        requests=requests_table(rows, windows=planned_windows(events), e2e_limit_s=study.slo.e2e_s),
        train=plain_table("train", _train_rows(study)),
        pressure=plain_table("pressure", _pressure_rows(study)),
        status="complete",
        why=None,
    )


def _train_rows(study: StudyConfig) -> list[dict[str, Any]]:
    return [
        {
            "island": island,
            "round": 0,
            "step": s,
            "at_s": float(s),
            "loss": 5.0 - 0.01 * s - 0.1 * island,
            "tokens": 32,
            "step_s": 0.05,
            "lr": 0.001,
        }
        for island in range(study.islands.count)
        for s in range(int(study.horizon_s))
    ]


def _pressure_rows(study: StudyConfig) -> list[dict[str, Any]]:
    return [
        {
            "at_s": float(s),
            "running": 1,
            "waiting": 0,
            "kv_usage": 0.1,
            "serving": 0.25,
            "network": None,
            "checkpoint": 0.0,
            "network_bytes_per_s": None,
            "checkpoint_bytes_per_s": 0.0,
            "blind": False,
        }
        for s in range(int(study.horizon_s))
    ]


def _wrapper(
    study: StudyConfig, arm: ArmSpec, seed: int, requests: Sequence[Request], world: World
) -> CorridorWrapper | None:
    at_s = [r.scheduled_at_s for r in requests]
    if world.placement == "policy" or arm.kind == "oracle":
        return arm_wrapper(study, arm, seed=seed, scheduled_at_s=at_s)
    starts = _starts(study, arm, seed, requests, world)
    if not starts:
        return None
    corridor = study_corridor(study)
    return CorridorWrapper(
        corridor,
        budget=study.corridor.budget_merges,
        policy=ScheduledPolicy(starts),
        tick_s=study.tick_s,
        target_gap_ticks=corridor.floor_ticks,
        needs_probes=False,
    )


def _events(
    study: StudyConfig, arm: ArmSpec, seed: int, requests: Sequence[Request], world: World
) -> list[Event]:
    """What the real coordinator says when fed samples and one merge report a window."""
    corridor = study_corridor(study)
    at_s = np.array([r.scheduled_at_s for r in requests])
    sidecar = np.array([r.sidecar for r in requests])
    coordinator = Coordinator(
        _wrapper(study, arm, seed, requests, world),
        tick_s=study.tick_s,
        width_ticks=corridor.width_ticks,
        horizon_ticks=corridor.horizon_ticks,
        suppressed=arm.kind == "placebo",
    )
    coordinator.handle(
        ArmStarted(
            event_id=coordinator.next_id(), at_s=0.0, arm=arm.label, seed=seed, islands=(0, 1)
        )
    )
    history = told_history(study, seed=seed, study_dir=Path())
    if history is not None:
        coordinator.handle(replace(history, event_id=coordinator.next_id()))
    merging: StartMerge | None = None
    for tick in range(corridor.horizon_ticks + 1):
        now_s = tick * study.tick_s
        if merging is not None and now_s >= merging.end_s:
            coordinator.handle(_merged(coordinator.next_id(), merging, world.real_s))
            merging = None
        sample = _sample(tick, now_s)
        if world.placement == "policy":  # what it decides from differs from tick to tick
            lately = (at_s >= now_s - 1.0) & (at_s < now_s)
            parts = [int((lately & (sidecar == s)).sum()) for s in range(study.sidecars.count)]
            sample = replace(
                sample,
                arrivals=sum(parts),
                in_flight=sum(parts) // 3,
                by_sidecar=tuple(
                    SidecarLoad(sidecar=s, arrivals=n, in_flight=n // 3)
                    for s, n in enumerate(parts)
                ),
            )
        ticked = Ticked(event_id=coordinator.next_id(), sample=sample)
        for command in coordinator.handle(ticked):
            if isinstance(command, StartMerge) and not command.suppressed:
                merging = command
    return coordinator.drain_log()


def _sample(tick: int, now_s: float) -> Sample:
    return Sample(
        tick=tick,
        now_s=now_s,
        arrivals=3,
        in_flight=1,
        serving=Reading(value=0.25, age_s=0.1),
        network=None,
        checkpoint=None,
        islands=(),
        blind=False,
    )


def _merged(event_id: int, command: StartMerge, real_s: float) -> MergeFinished:
    parts = tuple(
        MergePart(
            island=island,
            round=command.round,
            wait_s=0.01,
            codec_s=0.02,
            all_reduce_s=real_s - 0.1 - 0.05 * island,
            outer_step_s=0.03,
            checkpoint_s=0.04,
            real_s=real_s - 0.05 * island,
            emulated_s=command.end_s - command.start_s - real_s + 0.05 * island,
            fill_cpu_s=3.0,
            ended_at_s=command.start_s + real_s - 0.05 * island,
            weight=0.5,
            tokens=1000,
            bytes_reduced=4096,
            pseudo_gradient_norm=0.1,
            parameter_hash=f"after-{command.round}",
            loss=4.0,
        )
        for island in (0, 1)
    )
    return MergeFinished(
        event_id=event_id,
        cause_id=command.cause_id,
        round=command.round,
        at_s=command.end_s,
        overran=False,
        parts=parts,
    )


def _rows(
    study: StudyConfig,
    arm: ArmSpec,
    seed: int,
    requests: Sequence[Request],
    starts: Sequence[int],
    world: World,
) -> list[RequestRow]:
    """Latencies: one number a request of the seed, a few per cent of noise an arm, the effect."""
    own = stream(seed, "synthetic latency").lognormal(np.log(0.05), 0.2, size=len(requests))
    noise = stream(seed, "synthetic noise", *arm.label.encode()).normal(1, 0.03, len(requests))
    slow = () if arm.kind == "placebo" else starts
    rows = []
    for request, base_s, factor in zip(requests, own, noise, strict=True):
        at_s = request.scheduled_at_s
        e2e_s = float(base_s * factor)
        if any(t * study.tick_s <= at_s < t * study.tick_s + study.merge.window_s for t in slow):
            e2e_s *= world.effect
        rows.append(
            RequestRow(
                request_id=request.request_id,
                sidecar=request.sidecar,
                scheduled_at_s=at_s,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
                prompt_seed=request.prompt_seed,
                sent_at_s=at_s + 0.001,
                first_token_at_s=at_s + 0.3 * e2e_s,
                done_at_s=at_s + e2e_s,
                completion_tokens=request.output_tokens,
                outcome=Outcome.OK,
                error=None,
                itl_s=(0.7 * e2e_s / 15,) * 3,
            )
        )
    return rows
