"""Rows of made-up replays: real schedules and traffic, chance decides which requests violate.

Only requests scheduled inside a window can violate, so that overlap is all that a policy has.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actors.load.request import Outcome
from orchestrator.arms import expand_arms, random_schedule, study_corridor
from orchestrator.calibration.recorded import arrivals_cost
from orchestrator.config import StudyConfig
from orchestrator.metrics import LEAST_FOR_PERCENTILE
from orchestrator.record_tables import planned_windows, requests_table
from orchestrator.records import ArmSpec, RunRecord
from orchestrator.replay.calibrated import (
    AIMS,
    LEAST_SEEDS,
    Calibration,
    FigureError,
    Fit,
    FittedOn,
    Group,
    RunKey,
    Transfer,
    judged,
)
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.likeness import server_settings
from orchestrator.replay.measured import measured_run, predicted
from orchestrator.workload.requests import make_requests, request_hash
from policies.streams import stream
from tests.synthetic import synthetic_study

ENGINE = {"kind": "vllm", "model": "tiny", "max_model_len_tokens": 1024, "max_num_seqs": 8}
Floats = npt.NDArray[np.float64]
PLANT = PlantConfig(
    slots=8,
    step_base_s=0.004,
    step_per_seq_s=0.001,
    prefill_per_token_s=1e-5,
    overhead_s=0.003,
    merge_factor=4.0,
)


@dataclass(frozen=True, kw_only=True)
class ReplayWorld:
    """How the judged policies place, the share of requests in windows that violate, the effect."""

    placement: Literal["random", "dodge"] = "dodge"
    share: float = 0.7
    effect: float = 3.0


def replay_study(*, draws: int = 99, **changes: Any) -> StudyConfig:
    """The synthetic study with A/A, as a replay has it, for the server of ``fitted_plant``."""
    sidecars = {"count": 1, "engine": ENGINE}
    return synthetic_study(**{"aa": True, "draws": draws, "sidecars": sidecars, **changes})


def replay_rows(study: StudyConfig, world: ReplayWorld | None = None) -> Iterator[ReplayFigures]:
    """Every run of the study, seed by seed."""
    rows = list(_single_rows(study, world))
    inside: dict[tuple[object, ...], int] = {}
    for row in rows:
        key = (row.replicate, row.kind, row.of)
        inside[key] = inside.get(key, 0) + row.requests_in_windows
    for row in rows:
        n = inside[row.replicate, row.kind, row.of]
        if row.kind not in ("matched_random", "placebo"):
            yield row
            continue
        effect = (world or ReplayWorld()).effect if row.kind == "matched_random" else 1.0
        yield replace(
            row,
            pooled_requests=n,
            pooled_p95_s=0.1 * effect if n >= LEAST_FOR_PERCENTILE else None,
            pooled_p95_no_sync_s=0.1 if n >= LEAST_FOR_PERCENTILE else None,
        )


def _single_rows(study: StudyConfig, world: ReplayWorld | None) -> Iterator[ReplayFigures]:
    world, corridor = world or ReplayWorld(), study_corridor(study)
    budget = study.corridor.budget_merges
    assert budget is not None
    for seed in study.seeds:
        requests = make_requests(
            study.load, seed=seed, horizon_s=study.horizon_s, sidecars=1, study_dir=Path()
        )
        at_s = np.array([r.scheduled_at_s for r in requests])
        cost = arrivals_cost(at_s[at_s >= study.warmup_s], corridor, tick_s=study.tick_s)
        block = _Seed(
            study=study,
            world=world,
            seed=seed,
            requests=int((at_s >= study.warmup_s).sum()),
            request_hash=request_hash(requests),
            cost=cost,
            moments=corridor.moments(cost, budget),
        )
        known: dict[str, ReplayFigures] = {}
        for arm in expand_arms(study):
            key = arm.policy or arm.label
            if key in known:  # an aa is its policy's run
                spec = {n: getattr(arm, n) for n in ("kind", "policy", "of", "draw", "position")}
                yield replace(known[key], arm=arm.label, **spec)
                continue
            known[key] = _row(block, arm)
            yield known[key]


@dataclass(frozen=True, kw_only=True)
class _Seed:
    study: StudyConfig
    world: ReplayWorld
    seed: int
    requests: int
    request_hash: str
    cost: Floats  # [tick] requests that arrive in [t, t + W)
    moments: tuple[float, float]


def _row(block: _Seed, arm: ArmSpec) -> ReplayFigures:
    study, world = block.study, block.world
    starts = _starts(block, arm)
    inside = int(block.cost[list(starts)].sum())
    merges = 0 if arm.kind in ("no_sync", "placebo") else len(starts)
    rng = stream(block.seed, f"replayed {arm.label}")
    late = int(rng.binomial(inside, world.share)) if merges else 0
    mean, variance = block.moments if starts else (None, None)
    overlap = float(inside) if starts else None
    p95 = 0.1 if inside >= 20 else None
    return ReplayFigures(
        replicate=block.seed,
        arm=arm.label,
        kind=arm.kind,
        policy=arm.policy,
        of=arm.of,
        draw=arm.draw,
        position=arm.position,
        request_hash=block.request_hash,
        status="complete",
        requests_scheduled=block.requests,
        violations=late,
        violation_rate=late / block.requests,
        violations_not_yet_arrived=late if starts else None,
        requests_in_windows=inside,
        violations_in_windows=late,
        e2e_p50_s=0.1,
        e2e_p95_s=0.12,
        e2e_p99_s=0.13,
        ttft_p50_s=0.02,
        ttft_p95_s=0.03,
        tpot_p50_s=0.005,
        tpot_p95_s=0.006,
        goodput_rps=(block.requests - late) / (study.horizon_s - study.warmup_s),
        merge_count=merges,
        marked_windows=len(starts),
        merge_planned_s=len(starts) * study.merge.window_s,
        starts=starts,
        forced_share=0.0 if starts else None,
        overlap=overlap,
        overlap_mean=mean,
        overlap_variance=variance,
        new_overlap=overlap,
        new_overlap_mean=mean,
        new_overlap_variance=variance,
        inside_p95_s=None if p95 is None else p95 * (world.effect if merges else 1.0),
        inside_p95_no_sync_s=p95,
        pooled_requests=None,
        pooled_p95_s=None,
        pooled_p95_no_sync_s=None,
        excess_s=0.1 * late,
    )


def _starts(block: _Seed, arm: ArmSpec) -> tuple[int, ...]:
    if arm.kind == "no_sync":
        return ()
    if arm.kind in ("matched_random", "placebo"):
        return random_schedule(block.study, arm, block.seed)
    size = 1 if block.world.placement == "random" else 50
    rng = stream(block.seed, f"replayed placement {arm.policy}")
    budget = block.study.corridor.budget_merges
    assert budget is not None
    drawn = study_corridor(block.study).sample(budget, size=size, rng=rng)
    best = drawn[int(block.cost[drawn].sum(axis=1).argmin())]
    return tuple(int(t) for t in best)


def fitted_plant(
    *,
    plant: PlantConfig = PLANT,
    engine: str = "vllm",
    version: str = "0.1",
    p95_error: float = 0.05,
    checked: bool = True,
    runs: tuple[RunKey, ...] = (),
    seeds: int = 5,
    **fitted_on: Any,
) -> Calibration:
    """A calibration with these errors on so many other seeds, as `lull calibrate` writes one.

    ``fitted_on``: fields of it that are not those of ``replay_study``.
    """
    errors: tuple[tuple[str, Group, float], ...] = (
        ("e2e_p95_s", "merging", p95_error),
        ("violation_rate", "merging", 0.01),
        ("effect_ratio", "windows", 0.1),
    )
    figures = tuple(_figure(*e, seeds=seeds) for e in errors)
    study = replay_study()
    facts: dict[str, Any] = {
        "study": "other",
        "regime": "bursts",
        "selection": "seeds 0-1",
        "runs": runs,
        "seeds": (0, 1),
        "source": "live",
        "engine": engine,
        "engine_version": version,
        "host": {},
        "window_s": study.merge.window_s,
        "fill": study.merge.fill.model_dump(mode="json"),
        "server": server_settings(study),
        "sidecars": 1,
        "islands": study.islands.count,
    }
    fitted = FittedOn(**{**facts, **fitted_on})
    fit = Fit(
        objective=0.01,
        evaluations=1,
        starts=1,
        seed=0,
        requests=100,
        figures=figures,
        by_seed=(),
    )
    transfer = Transfer(runs=(), seeds=tuple(range(2, 2 + seeds)), figures=figures, by_seed=())
    return Calibration(
        plant=plant, fitted_on=fitted, fit=fit, transfer=transfer if checked else None
    )


def _figure(name: str, group: Group, error: float, *, seeds: int) -> FigureError:
    aim = AIMS[name]
    return FigureError(
        figure=name,
        group=group,
        measured=1.0,
        predicted=1.0 + error,
        error=error,
        interval=(error - 0.02, error + 0.02) if seeds >= LEAST_SEEDS else None,
        seeds=seeds,
        aim=aim,
        within=judged(error, aim=aim),
    )


def answered(record: RunRecord, *, plant: PlantConfig) -> RunRecord:
    """A complete run with the plant's answers instead of the server's: all succeed, none late."""
    run = measured_run(record)
    said = predicted(run, plant=plant)
    times = {
        int(i): (float(at + ttft), float(at + e2e))
        for i, at, ttft, e2e in zip(run.request_id, run.at_s, said.ttft_s, said.e2e_s, strict=True)
    }
    rows = record.requests.to_pylist()
    for row in rows:
        first_s, done_s = times[row["request_id"]]
        assert np.isfinite(done_s)
        row.update(
            sent_at_s=row["scheduled_at_s"],
            first_token_at_s=first_s,
            done_at_s=done_s,
            completion_tokens=row["output_tokens"],
            outcome=str(Outcome.OK),
            error=None,
            itl_s=[],
        )
    table: pa.Table = requests_table(
        rows,
        windows=planned_windows(record.events),
        e2e_limit_s=float(record.config["study"]["slo"]["e2e_s"]),
    )
    return replace(record, requests=table)
