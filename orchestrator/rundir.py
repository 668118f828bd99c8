"""The run on disk: names and hashes, the one writer, and the reader that trusts nothing.

A run is complete when its last event says so; that event is written after all else is safe.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa
from pydantic import ValidationError

from actors.config import DataConfig
from actors.events import ArmFinished, Event, from_record, to_record
from actors.load.request import Request, RequestRow
from orchestrator.config import StudyConfig
from orchestrator.later_fields import without_later_defaults
from orchestrator.record_files import (
    LineFile,
    RecordFailed,
    read_json,
    read_lines,
    strict_json,
    sync_folder,
    write_json,
)
from orchestrator.record_tables import (
    SCHEMAS,
    Window,
    check_keys,
    missing_row,
    plain_table,
    planned_windows,
    read_table,
    requests_table,
    row_record,
    write_table,
)
from orchestrator.records import ArmSpec, RunRecord

__all__ = [
    "RecordFailed",
    "RunWriter",
    "check_same_inputs",
    "check_unedited",
    "existing_run",
    "read_events",
    "read_run",
    "read_study",
    "read_study_config",
    "refuse_other_config",
    "run_folders",
    "run_hash",
    "run_name",
    "run_status",
    "write_study",
]

_NAME = re.compile(r"(?P<label>[A-Za-z0-9_.-]+)-s(?P<seed>\d+)-(?P<hash>[0-9a-f]{12})")
_LABELS = (
    *("study", "question", "regime", "seeds", "arms", "policies", "judge", "gate", "on_fault"),
    "tuned_on",
    "replay",  # with which plant and how many draws a study is also replayed
)
_UNMEASURED = {  # how long to wait and where to listen: they change no result
    "resources": ("ready_timeout_s", "memory_bytes"),
    "engine": ("start_timeout_s", "port"),
}
_IDENTITY = tuple(field.name for field in fields(Request))
Status = Literal["complete", "invalid", "partial"]


def run_hash(study: StudyConfig, arm: ArmSpec) -> str:
    """12 hex digits of the resolved config that can change this arm's result.

    Seed, labels, question, the other arms, the judge's thresholds and folders are left out. A
    matched_random or placebo schedule depends on the corridor and the draw, not on the policy;
    an oracle's on the corridor and the seed's requests.
    """
    what = study.model_dump(mode="json", exclude=set(_LABELS))
    for key in _UNMEASURED["resources"]:
        del what["resources"][key]
    without_later_defaults(what)
    # What there is none of, as if there were no such key: older studies keep their hash.
    if what["sidecars"]["refresh"]["kind"] == "none":
        del what["sidecars"]["refresh"]
    for key in ("guards", "history"):
        if what[key] is None:
            del what[key]
    engine = what["sidecars"]["engine"]
    for key in _UNMEASURED["engine"]:
        engine.pop(key, None)
    traces = (what["load"], *what["load"].get("superpose", ()))
    files = [(trace, key) for trace in traces for key in ("path", "dataset")]
    data, model = what["islands"]["data"], what["islands"]["model"]
    _as_before_sources(data, model, limit_bytes=study.islands.data.limit_bytes)
    trained = [(data, "folder"), (data, "path"), (data.get("tokenizer"), "path"), (model, "path")]
    for holder, key in (*files, *trained):
        if isinstance(holder, dict) and holder.get(key):
            holder[key] = Path(holder[key]).name
    if str(engine.get("model")).startswith(("/", ".", "~")):  # a folder; model ids stay whole
        engine["model"] = Path(engine["model"]).name
    policy = None
    if arm.policy is not None:
        policy = study.policies[arm.policy].model_dump(mode="json")
    of = arm.of if arm.policy is None else None
    what["arm"] = {"kind": arm.kind, "policy": policy, "of": of, "draw": arm.draw}
    text = json.dumps(what, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _as_before_sources(
    data: dict[str, Any], model: dict[str, Any], *, limit_bytes: int | None
) -> None:
    """A study of the first sources and model keeps the hash it had when there were no others."""
    del data["cache_dir"]
    data["max_bytes"] = limit_bytes
    for key, field in DataConfig.model_fields.items():
        if key not in ("source", "folder", "max_bytes") and data.get(key) == field.default:
            data.pop(key, None)
    if model.get("kind") == "llama":
        del model["kind"]


def run_name(arm: ArmSpec, seed: int, hash_: str) -> str:
    """Folder name; ValueError for a label that makes no safe one."""
    name = f"{arm.label}-s{seed}-{hash_}"
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise ValueError(
            f"arm label {arm.label!r} makes no safe folder name; "
            "use letters, digits, '_', '-' and '.' in policy names"
        )
    return name


def existing_run(
    study_dir: Path,
    arm: ArmSpec,
    seed: int,
    study: StudyConfig,
    *,
    request_hash: str,
    inputs: Mapping[str, str],
) -> RunRecord | None:
    """The complete identical run, to be reused. An unfinished one is moved aside; None then.

    ``request_hash``: of this study's file of the seed; ``inputs``: as input_fingerprints gives
    them. ValueError when the arm and seed were already measured with another config, on other
    requests or with other inputs.
    """
    want = run_hash(study, arm)
    refuse_other_config(study_dir, arm, seed, want=want)
    folder = study_dir / run_name(arm, seed, want)
    if not folder.exists():
        return None
    if (folder / "config.json").exists():
        record = read_run(folder)
        if record.status == "complete":
            check_same_inputs(
                folder,
                arm,
                seed,
                config=record.config,
                provenance=record.provenance,
                request_hash=request_hash,
                inputs=inputs,
            )
            return record
    _move_aside(folder)
    return None


def refuse_other_config(study_dir: Path, arm: ArmSpec, seed: int, *, want: str) -> None:
    """ValueError where the arm and seed lie there already, measured with another config."""
    for folder in run_folders(study_dir):
        found = _NAME.fullmatch(folder.name)
        assert found is not None
        if (found["label"], found["seed"]) != (arm.label, str(seed)) or found["hash"] == want:
            continue
        raise _refused(folder, arm, seed, f"with config {found['hash']}, this study has {want}")


def check_same_inputs(
    folder: Path,
    arm: ArmSpec,
    seed: int,
    *,
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    request_hash: str,
    inputs: Mapping[str, str],
) -> None:
    """The config names files and folders by their last part alone: so their content decides."""
    measured = str(config.get("request_hash"))
    if measured != request_hash:
        raise _refused(
            folder,
            arm,
            seed,
            f"on request file {measured[:12]}, this study's is {request_hash[:12]} "
            "(another trace under the same name?)",
        )
    known = provenance.get("inputs") or {}  # older records hold none
    for name, digest in inputs.items():
        if known.get(name, digest) != digest:
            raise _refused(
                folder,
                arm,
                seed,
                f"with {name} {known[name][:12]}, this study's is {digest[:12]} "
                "(another folder of the same name, or its files were changed)",
            )


def _refused(folder: Path, arm: ArmSpec, seed: int, what: str) -> ValueError:
    return ValueError(
        f"{folder}: refused: {arm.label} seed {seed} was measured {what}; "
        "give another --out, or move the old folder away"
    )


def _move_aside(folder: Path) -> None:
    n = 1
    while folder.with_name(f"{folder.name}.partial-{n}").exists():
        n += 1
    folder.rename(folder.with_name(f"{folder.name}.partial-{n}"))


def run_folders(study_dir: Path) -> list[Path]:
    """Those named like a run, by name; what was put aside is none."""
    if not study_dir.is_dir():
        return []
    return sorted(f for f in study_dir.iterdir() if f.is_dir() and _NAME.fullmatch(f.name))


class RunWriter:
    """The one writer of a run folder. Events and rows are on disk when a call returns."""

    def __init__(
        self, folder: Path, *, config: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        """``config``: study, arm, seed, request_hash, corridor, run_hash."""
        for where, mapping, keys in (
            ("config", config, ("study", "arm", "seed", "request_hash", "corridor", "run_hash")),
            ("provenance", provenance, ("source", "engine", "engine_version")),
        ):
            lacking = [k for k in keys if k not in mapping]
            if lacking:
                raise ValueError(f"{folder}: {where} lacks {', '.join(lacking)}")
        if (folder / "config.json").exists() or (folder / "events.jsonl").exists():
            raise ValueError(f"{folder}: holds a run already; move it away, nothing is overwritten")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._e2e_limit_s = float(config["study"]["slo"]["e2e_s"])
        self._windows: list[Window] = []
        self._last_id = 0
        self._events = LineFile(folder / "events.jsonl")
        self._spools = {name: LineFile(_spool(folder, name)) for name in SCHEMAS}
        write_json(folder / "provenance.json", dict(provenance))
        write_json(folder / "config.json", dict(config))

    def event(self, event: Event) -> None:
        where = f"{self._events.path}: event {event.event_id}"
        self._events.append(strict_json(to_record(event), where=where) + "\n")
        self._last_id = max(self._last_id, event.event_id)
        self._windows += planned_windows([event])

    def request_rows(self, rows: Iterable[RequestRow]) -> None:
        self._spool("requests", [row_record(row) for row in rows])

    def pressure_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._spool("pressure", rows)

    def train_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._spool("train", rows)

    def _spool(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        spool = self._spools[name]
        lines = []
        for row in rows:
            if name != "requests":
                check_keys(name, row)
            lines.append(strict_json(dict(row), where=str(spool.path)) + "\n")
        if lines:
            spool.append("".join(lines))

    def finish(
        self, status: str, why: str | None, at_s: float, all_requests: Sequence[Request]
    ) -> None:
        """Tables, then spools away, then the event that proves the run; the order is the point."""
        for spool in self._spools.values():
            spool.close()
        rows, problem = _settle(self._read_spool("requests"), all_requests, at_s=at_s, why=why)
        if problem is not None and status == "complete":
            status, why = "invalid", problem
        tables = {
            "requests": requests_table(rows, windows=self._windows, e2e_limit_s=self._e2e_limit_s),
            "train": plain_table("train", self._read_spool("train")),
            "pressure": plain_table("pressure", self._read_spool("pressure")),
        }
        for name, table in tables.items():
            write_table(self._folder / f"{name}.parquet", table)
        for name in SCHEMAS:
            _spool(self._folder, name).unlink(missing_ok=True)
        sync_folder(self._folder)
        self.event(ArmFinished(event_id=self._last_id + 1, at_s=at_s, status=status, why=why))
        self._events.close()

    def _read_spool(self, name: str) -> list[dict[str, Any]]:
        lines, _ = read_lines(_spool(self._folder, name))
        return [row for _, row in lines]


def _spool(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsonl.part"


def _settle(
    rows: Iterable[dict[str, Any]],
    all_requests: Sequence[Request],
    *,
    at_s: float,
    why: str | None,
) -> tuple[list[dict[str, Any]], str | None]:
    """Exactly one row for each scheduled request, and what was wrong with the rows, if anything."""
    wanted = {r.request_id: r for r in all_requests}
    kept: dict[int, dict[str, Any]] = {}
    problem = None
    for row in rows:
        request = wanted.get(row["request_id"])
        if request is None or any(row[name] != getattr(request, name) for name in _IDENTITY):
            problem = problem or f"request {row['request_id']} came back as none that was scheduled"
        elif kept.setdefault(row["request_id"], row) != row:
            problem = problem or f"request {row['request_id']} came back twice, differently"
    for request in all_requests:
        if request.request_id not in kept:
            kept[request.request_id] = missing_row(request, ended_at_s=at_s, why=why)
    return list(kept.values()), problem


def read_run(folder: Path) -> RunRecord:
    """A run as it lies there; killed ones read as partial, damaged ones raise ValueError."""
    config = read_json(folder / "config.json")
    provenance = read_json(folder / "provenance.json")
    for name, value in (("config.json", config), ("provenance.json", provenance)):
        if not isinstance(value, dict):
            raise ValueError(f"{folder / name}: holds {type(value).__name__}, not an object")
    events, torn = read_events(folder / "events.jsonl")
    try:
        arm, seed = ArmSpec(**config["arm"]), int(config["seed"])
        e2e_limit_s = float(config["study"]["slo"]["e2e_s"])
        for key in ("ttft_s", "tpot_s"):
            config["study"]["slo"][key]  # stated, if only as null
        for key in ("warmup_s", "horizon_s", "tick_s"):
            float(config["study"][key])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / 'config.json'}: arm, seed, SLO or times unreadable ({error!r}); restore "
            "it or remove the run folder"
        ) from error
    check_unedited(folder / "config.json", config)
    tables, lacking = _read_tables(folder, windows=planned_windows(events), e2e_limit_s=e2e_limit_s)
    if config["study"].get("clock") == "steps":  # nothing is served there
        lacking = [name for name in lacking if name == "train.parquet"]
    status, why = run_status(events, torn=torn, lacking=lacking)
    return RunRecord(
        path=folder,
        arm=arm,
        seed=seed,
        config=config,
        provenance=provenance,
        events=events,
        requests=tables["requests"],
        train=tables["train"],
        pressure=tables["pressure"],
        status=status,
        why=why,
    )


def check_unedited(path: Path, config: Mapping[str, Any]) -> None:
    """ValueError where the study in config.json is not the one that the run was named after."""
    study = _study_in(config["study"], where=f"{path}: study.")
    found, named = run_hash(study, ArmSpec(**config["arm"])), config.get("run_hash")
    if found != named:
        raise ValueError(
            f"{path}: its study has the hash {found}, the run was measured with {named}: it was "
            "edited since, or written by another version of lull; restore it, or use that version"
        )


def read_events(path: Path) -> tuple[tuple[Event, ...], bool]:
    """Events of a log, and whether its last line is torn; ValueError for a line that is none."""
    lines, torn = read_lines(path)
    events: list[Event] = []
    for number, raw in lines:
        try:
            events.append(from_record(raw))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{path}, line {number}: is no event of this version ({error}); "
                "restore it or remove the run folder"
            ) from error
    return tuple(events), torn


def _read_tables(
    folder: Path, *, windows: Sequence[Window], e2e_limit_s: float
) -> tuple[dict[str, pa.Table], list[str]]:
    """The three tables; those without a Parquet file come from their spool, and are named."""
    tables, lacking = {}, []
    for name in SCHEMAS:
        path = folder / f"{name}.parquet"
        if path.exists():
            tables[name] = read_table(path, name=name)
            continue
        lacking.append(path.name)
        rows = [row for _, row in read_lines(_spool(folder, name))[0]]
        if name == "requests":
            unique = {row["request_id"]: row for row in reversed(rows)}
            tables[name] = requests_table(unique.values(), windows=windows, e2e_limit_s=e2e_limit_s)
        else:
            tables[name] = plain_table(name, rows)
    return tables, lacking


def run_status(
    events: Sequence[Event], *, torn: bool, lacking: Sequence[str]
) -> tuple[Status, str | None]:
    """How a run ended by its last event; ``lacking``: files that it should have."""
    last = events[-1] if events else None
    if not isinstance(last, ArmFinished) or torn:
        tail = ", and its last line is cut" if torn else ""
        return "partial", f"ended from outside or not written to its end: no arm_finished{tail}"
    if lacking:
        return "partial", f"{', '.join(lacking)} missing"
    if last.status not in ("complete", "invalid", "partial"):
        return "invalid", f"unknown status {last.status!r}: {last.why}"
    return cast(Status, last.status), last.why


def write_study(study_dir: Path, study: StudyConfig) -> None:
    """study.json: the resolved study that the gate judges by."""
    study_dir.mkdir(parents=True, exist_ok=True)
    write_json(study_dir / "study.json", study.model_dump(mode="json"))


def read_study_config(study_dir: Path) -> StudyConfig:
    """study.json alone; ValueError names the key that is wrong."""
    path = study_dir / "study.json"
    return _study_in(read_json(path), where=f"{path}: ")


def _study_in(raw: Any, *, where: str) -> StudyConfig:
    try:
        return StudyConfig.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(p) for p in first["loc"])
        raise ValueError(f"{where}{place}: {first['msg']}; was it edited by hand?") from error


def read_study(study_dir: Path) -> tuple[StudyConfig, list[RunRecord]]:
    """The study and all its run folders, by name; folders put aside are not read."""
    study = read_study_config(study_dir)
    if study.clock == "steps":
        raise ValueError(
            f"{study_dir}: was trained on the step clock, nothing was served, so nothing can be "
            f"judged; `lull run --resume {study_dir}` prints its table of losses"
        )
    folders = [f for f in run_folders(study_dir) if (f / "config.json").exists()]
    records = [read_run(f) for f in folders]
    for record in records:
        expected = run_name(record.arm, record.seed, str(record.config.get("run_hash")))
        if record.path.name != expected:
            raise ValueError(
                f"{record.path}: its config.json is that of {expected}; give the folder "
                "its name back"
            )
    return study, records
