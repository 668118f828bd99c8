"""What MLflow is shown of a replay, without mlflow: parent replay, child arm, grandchild seed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orchestrator.calibration.verdict import Judgement
from orchestrator.config import StudyConfig
from orchestrator.record_files import read_json
from orchestrator.replay.figures import ReplayFigures
from orchestrator.replay.judge import ENGINE, SOURCE, judged_replay
from orchestrator.report import mirror
from orchestrator.report.replay_page import figures_digest, write_replay_report

MOST_SEEDS = 100  # above it they stand in the table alone
MOST_TABLE_BYTES = 50_000_000  # of replay.parquet as an artifact
_FILES = ("gains.png", "report.html", "verdicts.json", "study.json", "plant.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One MLflow run."""

    key: str
    parent: str | None  # its key
    name: str
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTree:
    """All of them, parents before children."""

    study: StudyConfig
    nodes: tuple[Node, ...]
    started_ms: int | None


def replay_tree(folder: Path) -> ReplayTree:
    """Of the judged replay; report and plot are drawn again where they show other figures."""
    study, rows, judgement = judged_replay(folder)
    page = folder / "report.html"
    if not page.exists() or figures_digest(judgement) not in page.read_text(encoding="utf-8"):
        write_replay_report(folder)
    parent = _study_node(folder, study, judgement)
    nodes = [parent]
    for row in judgement.arms:
        nodes.append(_arm_node(study, judgement, row, parent=parent.key))
    if len(study.seeds) <= MOST_SEEDS:
        nodes += _seed_nodes(judgement, rows, parent=parent.key)
    return ReplayTree(study=study, nodes=tuple(nodes), started_ms=_started_ms(folder))


def _common(judgement: Judgement, level: str) -> dict[str, str]:
    return {
        "lull.level": level,
        "regime": judgement.regime,
        "source": SOURCE,
        "engine": ENGINE,
        "engine_version": judgement.engine_version,
    }


def _study_node(folder: Path, study: StudyConfig, judgement: Judgement) -> Node:
    config = study.model_dump(mode="json")
    table = folder / "replay.parquet"
    small = table.stat().st_size <= MOST_TABLE_BYTES
    return Node(
        key=f"replay:{mirror.short_hash([config, judgement.engine_version])}",
        parent=None,
        name=f"{study.study} (replay)",
        tags={**mirror.study_tags(study, judgement), **_common(judgement, "study")},
        metrics=mirror.study_metrics(judgement),
        params=mirror.flat_params(config),
        files=(*_FILES, table.name) if small else _FILES,
    )


def _arm_node(
    study: StudyConfig,
    judgement: Judgement,
    row: Mapping[str, float | int | str | None],
    *,
    parent: str,
) -> Node:
    label = str(row["arm"])
    verdicts = [v for v in judgement.verdicts if v.policy == label]
    policy = study.policies.get(label)
    params = {"arm": label, "kind": str(row["kind"])}
    if policy is not None:
        params |= mirror.flat_params({"policy": policy.model_dump(mode="json")})
    middle = {k.replace("_middle", ""): v for k, v in row.items()}
    return Node(
        key=f"arm:{label}:{parent}",
        parent=parent,
        name=label,
        tags={
            **_common(judgement, "arm"),
            "arm": label,
            **(mirror.verdict_tags(verdicts) if verdicts else {}),
        },
        metrics=mirror.arm_metrics(middle),
        params=params,
    )


def _seed_nodes(judgement: Judgement, rows: Iterable[ReplayFigures], *, parent: str) -> list[Node]:
    """Each run but the many draws of matched random, which the table holds."""
    return [
        Node(
            key=f"seed:{row.arm}:{row.replicate}:{parent}",
            parent=f"arm:{row.arm}:{parent}",
            name=f"{row.arm} s{row.replicate}",
            tags={
                **_common(judgement, "seed"),
                "arm": row.arm,
                "seed": str(row.replicate),
                "status": row.status,
            },
            metrics=_seed_metrics(row),
            params={
                "arm": row.arm,
                "seed": str(row.replicate),
                "request_hash": row.request_hash,
            },
        )
        for row in rows
        if row.kind != "matched_random"
    ]


def _seed_metrics(row: ReplayFigures) -> dict[str, float]:
    merges = row.merge_count
    return mirror.finite(
        {
            "slo/violation_rate": row.violation_rate,
            "slo/violations": row.violations,
            "slo/violations_per_merge": row.violations / merges if merges else None,
            "latency/e2e_p50_s": row.e2e_p50_s,
            "latency/e2e_p95_s": row.e2e_p95_s,
            "latency/ttft_p95_s": row.ttft_p95_s,
            "latency/tpot_p95_s": row.tpot_p95_s,
            "goodput/rps": row.goodput_rps,
            "load/requests": row.requests_scheduled,
            "merge/count": merges,
            "merge/seconds": row.merge_planned_s if merges else 0.0,
        }
    )


def _started_ms(folder: Path) -> int | None:
    """Wall time of the replay, where its provenance tells it."""
    text = read_json(folder / "provenance.json").get("started_at_utc")
    return int(datetime.fromisoformat(text).timestamp() * 1000) if isinstance(text, str) else None
