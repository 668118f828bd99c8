"""Mirror a sweep in MLflow: parent = sweep, child = setting, grandchild = seed. Never the source.

Read from the sweep's folder alone and found again by keys of content, so a sweep that was killed
and resumed, or is tracked twice, leaves no run twice.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config import StudyConfig
from orchestrator.record_files import read_json
from orchestrator.report.mirror import finite, flat_params
from orchestrator.sweep.figures import BlockFigures
from orchestrator.sweep.folder import IDENTITY, read_ledger
from orchestrator.tracking_runs import MlflowRuns, TrackingResult, writing
from orchestrator.tracking_store import default_uri, hold

_FILES = (
    "sweep.html",
    "sweep.md",
    "importance.png",
    "response.png",
    "result.json",
    "settings.parquet",
    "blocks.parquet",
    "sweep.json",
    "plant.json",
    "provenance.json",
)
_STATUS = {"complete": "FINISHED", "stopped": "KILLED", "refused": "FAILED", "failed": "FAILED"}


def track_sweep(folder: Path, *, uri: str | None = None) -> TrackingResult:
    """Upload a sweep. ``uri``: default MLFLOW_TRACKING_URI, else SQLite beside the sweep.

    ValueError when the sweep has not ended; TrackingFailed when MLflow cannot be written.
    """
    folder = folder.resolve()
    where = uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(folder)
    with hold(folder / ".track.lock"):
        if not (folder / "result.json").is_file():
            raise ValueError(f"{folder}: the sweep has not ended; --resume it first")
        identity, result = read_json(folder / IDENTITY), read_json(folder / "result.json")
        study = StudyConfig.model_validate_json(json.dumps(identity["study"]))
        rows = read_ledger(folder).rows
        with writing(where, folder):
            runs = MlflowRuns(folder, uri=where, experiment=study.study)
            return _Sweep(folder, study, runs).upload(identity, result, rows)


class _Sweep:
    def __init__(self, folder: Path, study: StudyConfig, runs: MlflowRuns) -> None:
        self._folder, self._study, self._runs = folder, study, runs

    def upload(
        self, identity: Mapping[str, Any], result: Mapping[str, Any], rows: Sequence[BlockFigures]
    ) -> TrackingResult:
        parent_id = self._parent(identity, result)
        by_setting: dict[str, list[BlockFigures]] = {}
        for row in rows:
            by_setting.setdefault(row.setting, []).append(row)
        count = 1
        for setting in result["settings"]:
            setting_id = self._setting(setting, result, parent_id=parent_id)
            played = by_setting.get(setting["setting"], [])[: setting["blocks"]]
            for row in played:
                self._seed(row, setting_id=setting_id)
            count += 1 + len(played)
        return self._runs.result(parent_id, runs=count)

    def _tags(self, level: str) -> dict[str, str]:
        return {
            "lull.level": level,
            "regime": self._study.regime,
            "source": "replay",
            "engine": "model",
        }

    def _parent(self, identity: Mapping[str, Any], result: Mapping[str, Any]) -> str:
        tuned, held = result["tuned"] or {}, result["held_out"]
        plain = {k: v for k, v in identity.items() if k not in ("study", "request_hashes")}
        run = self._runs.run(
            "sweep",
            name=f"sweep of {result['policy']}",
            tags={
                **self._tags("sweep"),
                "policy": result["policy"],
                "gate.verdict": result["verdict"],
                "claim.tier": ", ".join(str(h["tier"]) for h in held) or "none",
                "setting": str(tuned.get("setting")),
                "mlflow.note.content": "\n".join(f"- {line}" for line in result["corrections"]),
            },
            metrics=finite(
                {
                    "gain/tuning": tuned.get("gain"),
                    "gain/held_out": _mean([h["gain"] for h in held]),
                    "gain/winners_curse": result["winners_curse"],
                    "p/tuning": tuned.get("p_value"),
                    "p/tuning_times_settings": tuned.get("p_of_the_best"),
                    "p/held_out_holm": max(
                        (h["p_holm"] for h in held if h["p_holm"]), default=None
                    ),
                    "settings/tried": len(result["settings"]),
                    **{f"settings/{state}": n for state, n in result["counts"].items()},
                }
            ),
            params=flat_params(plain),
            start_ms=None,
        )
        self._runs.files(run, [self._folder / name for name in _FILES])
        failed = result["counts"]["failed"] or result["tuned"] is None
        self._runs.end(run, "FAILED" if failed else "FINISHED", end_ms=None)
        return str(run.info.run_id)

    def _setting(
        self, setting: Mapping[str, Any], result: Mapping[str, Any], *, parent_id: str
    ) -> str:
        low, high = setting["gain_interval"] or (None, None)
        chosen = result["tuned"] is not None and setting["setting"] == result["tuned"]["setting"]
        run = self._runs.run(
            f"setting:{setting['setting']}",
            name=f"setting {setting['number']}",
            tags={
                **self._tags("setting"),
                "mlflow.parentRunId": parent_id,
                "policy": result["policy"],
                "setting": setting["setting"],
                "state": setting["state"],
                "chosen": str(chosen).lower(),
                **({"mlflow.note.content": setting["why"]} if setting["why"] else {}),
            },
            metrics=finite(
                {
                    "gain/tuning": setting["gain"],
                    "gain/tuning_low": low,
                    "gain/tuning_high": high,
                    "slo/violation_rate": setting["violation_rate_policy"],
                    "slo/violation_rate_matched_random": setting["violation_rate_control"],
                    "merge/count": setting["merges"],
                    "runs/seeds": setting["seeds"],
                }
            ),
            params=flat_params(setting["values"]),
            start_ms=None,
        )
        self._runs.end(run, _STATUS[setting["state"]], end_ms=None)
        return str(run.info.run_id)

    def _seed(self, row: BlockFigures, *, setting_id: str) -> None:
        run = self._runs.run(
            f"seed:{row.setting}:{row.load}:{row.seed}",
            name=f"{row.block.name}",
            tags={
                **self._tags("seed"),
                "mlflow.parentRunId": setting_id,
                "setting": row.setting,
                "seed": str(row.seed),
                "load": str(row.load),
            },
            metrics=finite(
                {
                    "slo/violation_rate": row.violation_rate,
                    "slo/violation_rate_matched_random": row.control_rate,
                    "latency/e2e_p95_s": row.e2e_p95_s,
                    "merge/count": row.merge_count,
                    "load/requests": row.requests_scheduled,
                }
            ),
            params={"seed": str(row.seed), "request_hash": row.request_hash},
            start_ms=None,
        )
        self._runs.end(run, "FINISHED", end_ms=None)


def _largest(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
