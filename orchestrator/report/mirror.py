"""What MLflow is shown of a study, without mlflow: names, values, tags and series, all plain.

Step axis of every series: the control tick. Unknown values are left out, never logged as 0.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from actors.events import Ticked
from orchestrator.calibration.verdict import Condition, Judgement, Verdict
from orchestrator.config import StudyConfig
from orchestrator.metrics import floats
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.report.tables import verdict_sentence

_GATE_TAGS = (
    *("effect_transfer", "load_match", "exposure_match", "matched_random", "exact_null"),
    "replay",
)
_MAX_PARAM_LETTERS = 6000
_STATUS = {"complete": "FINISHED", "invalid": "FAILED", "partial": "KILLED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a series at a control tick."""

    name: str
    tick: int
    at_s: float  # run clock
    value: float


def finite(values: Mapping[str, float | int | None]) -> dict[str, float]:
    """Known, finite values only: a store may turn infinity into a large number."""
    return {k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)}


def seed_metrics(m: RunMetrics) -> dict[str, float]:
    """The figures of one run; train/loss is a series, its ends stand beside it."""
    merge_s = m.merge_planned_s if m.merge_count else 0.0
    return finite(
        {
            "slo/violation_rate": m.violation_rate,
            "slo/violations": m.violations,
            "slo/violations_per_merge": m.violations_per_merge,
            "latency/e2e_p50_s": m.e2e_p50_s,
            "latency/e2e_p95_s": m.e2e_p95_s,
            "latency/ttft_p95_s": m.ttft_p95_s,
            "latency/tpot_p95_s": m.tpot_p95_s,
            "latency/lateness_p99_s": m.lateness_p99_outside_s,
            "goodput/rps": m.goodput_rps,
            "load/requests": m.requests_scheduled,
            "load/requests_failed": m.requests_failed,
            "merge/count": m.merge_count,
            "merge/seconds": merge_s,
            "merge/real_s": m.merge_real_s,
            "merge/emulated_s": m.merge_emulated_s,
            "train/loss_start": m.train_loss_start,
            "train/loss_end": m.train_loss_end,
            "train/tokens_per_s": m.train_tokens_per_s,
        }
    )


def arm_metrics(row: Mapping[str, float | int | str | None]) -> dict[str, float]:
    """One arm over its complete runs, from the judgement's row: requests pooled, else means."""
    numbers = {k: v for k, v in row.items() if not isinstance(v, str)}
    runs, merges, planned_s = (numbers.get(k) for k in ("runs", "merges", "merge_planned_s"))
    return finite(
        {
            "slo/violation_rate": numbers.get("violation_rate"),
            "slo/violations_per_merge": _ratio(numbers.get("violations"), merges),
            "latency/e2e_p95_s": numbers.get("e2e_p95_s"),
            "latency/ttft_p95_s": numbers.get("ttft_p95_s"),
            "latency/tpot_p95_s": numbers.get("tpot_p95_s"),
            "goodput/rps": numbers.get("goodput_rps"),
            "merge/count": _ratio(merges, runs),
            "merge/seconds": _ratio(planned_s if merges else merges, runs),
            "train/loss": numbers.get("train_loss_end"),
            "train/tokens_per_s": numbers.get("train_tokens_per_s"),
            "runs/complete": runs,
        }
    )


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def study_metrics(judgement: Judgement) -> dict[str, float]:
    """Each judged policy against its control."""
    values: dict[str, float | int | None] = {}
    for v in judgement.verdicts:
        values[f"gate/{v.policy}/difference"] = v.difference
        values[f"gate/{v.policy}/relative_gain"] = v.relative_gain
        values[f"gate/{v.policy}/p_holm"] = v.p_holm
        values[f"gate/{v.policy}/n_seeds"] = v.n_seeds
    return {key_name(k): v for k, v in finite(values).items()}


def series(record: RunRecord, *, tick_s: float) -> list[Point]:
    """Serving pressure, requests in flight and training loss, one point a control tick."""
    points: list[Point] = []
    for event in record.events:
        if not isinstance(event, Ticked):
            continue
        sample = event.sample
        pressure = None if sample.serving is None else sample.serving.value
        for name, value in (("pressure/serving", pressure), ("load/in_flight", sample.in_flight)):
            for known in finite({name: value}).values():
                points.append(Point(name=name, tick=sample.tick, at_s=sample.now_s, value=known))
    return points + _loss_series(record, tick_s=tick_s)


def _loss_series(record: RunRecord, *, tick_s: float) -> list[Point]:
    """Mean over the islands' inner steps that ended in the tick."""
    at_s, loss = floats(record.train, "at_s"), floats(record.train, "loss")
    known = np.isfinite(loss) & (at_s >= 0)
    ticks = np.floor(at_s[known] / tick_s).astype(np.int64)
    sums, counts = np.bincount(ticks, weights=loss[known]), np.bincount(ticks)
    return [
        Point(
            name="train/loss",
            tick=int(tick),
            at_s=float(tick) * tick_s,
            value=float(sums[tick] / counts[tick]),
        )
        for tick in np.flatnonzero(counts)
    ]


def flat_params(config: Mapping[str, Any], *, prefix: str = "") -> dict[str, str]:
    """Nested config as dotted names; lists as JSON, cut where a store would refuse the length."""
    params: dict[str, str] = {}
    for key, value in config.items():
        name = key_name(f"{prefix}{key}")
        if isinstance(value, Mapping):
            params.update(flat_params(value, prefix=f"{name}."))
        else:
            words = value if isinstance(value, str) else json.dumps(value)
            params[name] = words[:_MAX_PARAM_LETTERS]
    return params


def key_name(text: str) -> str:
    """Only what MLflow takes in a name."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", "_", text)[:250]


def arm_params(study: StudyConfig, record: RunRecord) -> dict[str, str]:
    """What makes this arm: its kind, its policy's numbers, its control's parent."""
    arm = record.arm
    params: dict[str, Any] = {
        "arm": arm.label,
        "kind": arm.kind,
        "of": arm.of,
        "draw": arm.draw,
    }
    config = study.policies.get(arm.policy) if arm.policy is not None else None
    if config is not None:
        params["policy"] = config.model_dump(mode="json")
    return flat_params({k: v for k, v in params.items() if v is not None})


def run_tags(study: StudyConfig, record: RunRecord) -> dict[str, str]:
    """What a run of an arm is found by."""
    facts = record.provenance
    tags = {
        "arm": record.arm.label,
        "policy": record.arm.policy or record.arm.of or "none",
        "kind": record.arm.kind,
        "regime": study.regime,
        "engine": str(facts.get("engine", "unknown")),
        "engine_version": str(facts.get("engine_version", "unknown")),
        "source": str(facts.get("source", "unknown")),
        "lull.run_hash": str(record.config["run_hash"]),
    }
    if facts.get("commit"):
        tags["mlflow.source.git.commit"] = str(facts["commit"])
    return tags


def seed_tags(study: StudyConfig, record: RunRecord) -> dict[str, str]:
    tags = {**run_tags(study, record), "seed": str(record.seed), "status": record.status}
    if record.why:
        tags["mlflow.note.content"] = f"{record.status}: {record.why}"
    return tags


def verdict_tags(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """Gate outcomes of one verdict, or of several with their policies named where they differ."""
    tags = {"gate.verdict": _told(verdicts, [v.verdict.value for v in verdicts])}
    tiers = ["none" if v.tier is None else str(v.tier) for v in verdicts]
    tags["claim.tier"] = _told(verdicts, tiers)
    for name in _GATE_TAGS:
        found = [_status(v.conditions, name) for v in verdicts]
        tags[f"gate.{name}"] = _told(verdicts, found)
    return tags


def _status(conditions: Sequence[Condition], name: str) -> str:
    """Outcome of the condition called ``name``."""
    return next((c.status.value for c in conditions if c.name == name), "absent")


def _told(verdicts: Sequence[Verdict], words: Sequence[str]) -> str:
    if not words:
        return "nothing judged"
    if len(set(words)) == 1:
        return words[0]
    return "; ".join(f"{v.policy}: {w}" for v, w in zip(verdicts, words, strict=True))


def study_tags(study: StudyConfig, judgement: Judgement) -> dict[str, str]:
    """Tags of the parent run, and the note that its page opens with."""
    note = [f"**{study.question}**", "", *verdict_sentence(judgement).splitlines(), ""]
    note += [f"- {caveat}" for caveat in judgement.caveats]
    note += ["", "Step axis of all series: control tick. The record on disk is the source."]
    return {
        "regime": study.regime,
        "engine": judgement.engine,
        "engine_version": judgement.engine_version,
        "source": judgement.source,
        "gate.hash": judgement.gate_hash,
        "mlflow.note.content": "\n".join(note)[:8000],
        **verdict_tags(judgement.verdicts),
    }


def mlflow_status(statuses: Iterable[str]) -> str:
    """FINISHED only when every run below is complete."""
    found = {_STATUS[s] for s in statuses}
    return found.pop() if len(found) == 1 else "FAILED"


def started_ms(record: RunRecord) -> int | None:
    """Wall time of the run's start, where its provenance tells it."""
    text = record.provenance.get("started_at_utc")
    if not isinstance(text, str):
        return None
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def length_s(record: RunRecord) -> float:
    """Run time of the last event that has one."""
    moments = [getattr(e, "at_s", None) for e in reversed(record.events)]
    return next((m for m in moments if m is not None), 0.0)


def short_hash(value: Any) -> str:
    """12 hex digits of a JSON value or bytes."""
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:12]
