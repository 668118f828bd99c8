"""Decisions again, from a run's logged measurements alone: the same ones, or another policy's.

The log's own decisions are put aside; what was measured goes through a fresh coordinator.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from actors.coordinator.coordinator import Coordinator
from actors.events import (
    Decided,
    Event,
    MergeFailed,
    MergeFinished,
    MergeStarted,
    StartMerge,
    Ticked,
    to_record,
)
from orchestrator.advisor.record import is_advice, read_advice
from orchestrator.advisor.setting import advice_wrapper, recorded
from orchestrator.arm_policy import arm_wrapper, policy_wrapper
from orchestrator.arms import study_corridor
from orchestrator.config import StudyConfig
from orchestrator.metrics import recorded_request_hash
from orchestrator.provenance import commit
from orchestrator.record_files import strict_json
from orchestrator.records import ArmSpec, RunRecord
from orchestrator.rundir import read_run, read_study, read_study_config, run_folders
from orchestrator.study import explain, read_mapping
from policies.corridor import Corridor
from policies.plugins import AnyPolicyConfig
from policies.wrapper import CorridorWrapper

HYPOTHETICAL = (
    "hypothetical after its first different merge, for its merges would have changed what was "
    "measured; an own merge is taken to last exactly its planned window"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One tick whose logged answer (decision, and merge if any) is not what is decided again."""

    tick: int | None  # None where the answer in the log belongs to no logged tick
    logged: tuple[dict[str, Any], ...]
    decided: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Redecision:
    """A run decided again by its own policy; equal when no answer differs by a bit."""

    run: str
    arm: str
    seed: int
    ticks: int
    decisions: int  # compared
    mismatches: int
    first: Difference | None
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A merge and why it was started."""

    tick: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """What another policy would have decided on the same measurements."""

    run: str
    arm: str
    seed: int
    label: str = field(default="counterfactual", init=False)
    policy: str
    ticks: int
    logged_merges: tuple[Merge, ...]
    merges: tuple[Merge, ...]
    logged_reasons: dict[str, int]  # of all decisions
    reasons: dict[str, int]
    first_different_tick: int | None  # of a merge that only one of the two has
    warning: str = field(default=HYPOTHETICAL, init=False)
    note: str | None


def read_records(folder: Path) -> list[RunRecord]:
    """The run or advice in this folder, or all runs of this study; ValueError for any other."""
    if (folder / "study.json").is_file():
        if read_study_config(folder).clock == "steps":
            return [read_run(f) for f in run_folders(folder) if (f / "config.json").is_file()]
        return read_study(folder)[1]
    if (folder / "config.json").is_file():
        return [read_advice(folder) if is_advice(folder) else read_run(folder)]
    raise ValueError(
        f"{folder}: is neither a run folder (config.json) nor a study run (study.json); give one "
        "that `lull run` made, e.g. runs/quickstart"
    )


def all_equal(runs: Sequence[Redecision]) -> bool:
    """Something was decided, and nothing otherwise than logged."""
    return any(r.decisions for r in runs) and not any(r.mismatches for r in runs)


def redecide(record: RunRecord) -> Redecision:
    """The run's own decisions again; ValueError where its policy cannot be built from it."""
    again = _decide_again(record, _ruled(record))
    logged, decided = _answers(record.events), _answers(again)
    ticks = {e.event_id: e.sample.tick for e in record.events if isinstance(e, Ticked)}
    cut = _cut_off(record)
    differing = [
        key
        for key in sorted({*logged, *decided})
        if not _same(logged.get(key, ()), decided.get(key, ()), cut=key == cut)
    ]
    first = None
    if differing:
        key = differing[0]
        first = Difference(
            tick=ticks.get(key),
            logged=tuple(_plain(logged.get(key, ()))),
            decided=tuple(_plain(decided.get(key, ()))),
        )
    return Redecision(
        run=record.path.name,
        arm=record.arm.label,
        seed=record.seed,
        ticks=len(ticks),
        decisions=sum(isinstance(e, Decided) for e in record.events),
        mismatches=len(differing),
        first=first,
        note=_note(record) or (_other_version(record) if differing else None),
    )


def counterfactual(record: RunRecord, name: str) -> Counterfactual:
    """The policy ``name`` on the run's measurements, its own up to the first different merge.

    A key of the study's policies, or a YAML or JSON file that holds one policy's config.
    """
    again = _decide_again(record, _ruled(record, policy=name))
    logged_merges, merges = _merges(record.events), _merges(again)
    return Counterfactual(
        run=record.path.name,
        arm=record.arm.label,
        seed=record.seed,
        policy=name,
        ticks=sum(isinstance(e, Ticked) for e in record.events),
        logged_merges=logged_merges,
        merges=merges,
        logged_reasons=_reasons(record.events),
        reasons=_reasons(again),
        first_different_tick=min(
            {m.tick for m in logged_merges} ^ {m.tick for m in merges}, default=None
        ),
        note=_note(record),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ruled:
    """What a record is decided again by."""

    wrapper: CorridorWrapper | None
    corridor: Corridor
    tick_s: float


def _ruled(record: RunRecord, *, policy: str | None = None) -> _Ruled:
    """By the record's own policy, or by the one that is named."""
    if "advice" in record.config:
        return _ruled_advice(record, policy)
    study = _study(record)
    if policy is None:
        wrapper = _own_wrapper(record, study)
    else:
        named = _named_policy(policy, study.policies, of="study")
        arm = ArmSpec(kind="policy", label=policy, policy=policy, of=None, draw=None, position=None)
        wrapper = policy_wrapper(study, named, arm=arm, seed=record.seed)
    return _Ruled(wrapper=wrapper, corridor=study_corridor(study), tick_s=study.tick_s)


def _ruled_advice(record: RunRecord, policy: str | None) -> _Ruled:
    advice, setting = recorded(record.config, where=record.path / "config.json")
    own = {str(record.arm.policy): advice.policy}
    named = None if policy is None else _named_policy(policy, own, of="advice")
    wrapper = advice_wrapper(advice, setting, policy=named)
    return _Ruled(wrapper=wrapper, corridor=setting.corridor, tick_s=setting.tick_s)


def _named_policy(
    name: str, policies: Mapping[str, AnyPolicyConfig], *, of: str
) -> AnyPolicyConfig:
    if name in policies:
        return policies[name]
    path = Path(name)
    if not path.is_file():
        raise ValueError(
            f"--policy {name}: is neither a policy of the {of} ({', '.join(policies)}) "
            "nor a file with one policy's config"
        )
    raw = read_mapping(path, what="a policy")
    adapter: TypeAdapter[AnyPolicyConfig] = TypeAdapter(AnyPolicyConfig)
    try:
        return adapter.validate_json(json.dumps(raw, default=str))
    except ValidationError as error:
        raise ValueError(explain(error, where=str(path), root=AnyPolicyConfig)) from error


def _study(record: RunRecord) -> StudyConfig:
    where = record.path / "config.json"
    try:
        return StudyConfig.model_validate_json(json.dumps(record.config["study"]))
    except ValidationError as error:
        raise ValueError(explain(error, where=f"{where}: study")) from error


def _own_wrapper(record: RunRecord, study: StudyConfig) -> CorridorWrapper | None:
    if record.arm.kind == "oracle":
        stated = record.config.get("request_hash")
        if recorded_request_hash(record) != stated:
            raise ValueError(
                f"{record.path}: the oracle's schedule follows from the request file, and "
                f"requests.parquet is not the one of request_hash={stated}; restore it"
            )
    at_s = record.requests.column("scheduled_at_s").to_pylist()
    return arm_wrapper(study, record.arm, seed=record.seed, scheduled_at_s=at_s)


def _decide_again(record: RunRecord, ruled: _Ruled) -> list[Event]:
    """All events of a fresh coordinator that is fed what was measured, and nothing else.

    While its merges are the logged ones they end when the log says. From the first different one
    on there is no measured end: then each lasts its planned window.
    """
    corridor = ruled.corridor
    coordinator = Coordinator(
        ruled.wrapper,
        tick_s=ruled.tick_s,
        width_ticks=corridor.width_ticks,
        horizon_ticks=corridor.horizon_ticks,
        suppressed=record.arm.kind == "placebo",
    )
    logged = {e.tick for e in record.events if isinstance(e, MergeStarted)}
    running: StartMerge | None = None
    same = True
    for event in record.events:
        if isinstance(event, Decided | MergeStarted):
            continue
        if isinstance(event, MergeFinished | MergeFailed):
            if same and running is not None and event.round == running.round:
                coordinator.handle(event)
                running = None
            continue
        if not isinstance(event, Ticked):
            coordinator.handle(event)
            continue
        tick = event.sample.tick
        if not same and running is not None and tick >= running.tick + corridor.width_ticks:
            coordinator.handle(_planned_end(running))
            running = None
        started = [c for c in coordinator.handle(event) if isinstance(c, StartMerge)]
        same = same and bool(started) == (tick in logged)
        running = next((c for c in started if not c.suppressed), running)
    return coordinator.drain_log()


def _planned_end(command: StartMerge) -> MergeFinished:
    return MergeFinished(
        event_id=0,  # in no log
        cause_id=command.cause_id,
        round=command.round,
        at_s=command.end_s,
        overran=False,
        parts=(),
    )


Answer = Decided | MergeStarted


def _answers(events: Sequence[Event]) -> dict[int, tuple[Answer, ...]]:
    """What was said at each tick, by the id of its Ticked: the decision, then the merge."""
    tick_of: dict[int, int] = {}  # Decided -> its Ticked
    found: dict[int, tuple[Answer, ...]] = {}
    for event in events:
        if not isinstance(event, Decided | MergeStarted):
            continue
        key = event.cause_id
        if isinstance(event, Decided):
            tick_of[event.event_id] = key
        else:
            key = tick_of.get(key, key)
        found[key] = (*found.get(key, ()), event)
    return found


def _plain(answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
    """Answers without ids, which number the log and decide nothing."""
    for answer in answers:
        yield {k: v for k, v in to_record(answer).items() if k not in ("event_id", "cause_id")}


def _cut_off(record: RunRecord) -> int | None:
    """The tick, by the id of its Ticked, whose answers a killed writer did not end."""
    last = record.events[-1] if record.events else None
    if record.status != "partial":
        return None
    if isinstance(last, Ticked):
        return last.event_id
    return last.cause_id if isinstance(last, Decided) else None


def _same(logged: Sequence[Answer], decided: Sequence[Answer], *, cut: bool) -> bool:
    """By their bits; where the log is cut off, as far as it goes."""
    return _bits(logged) == _bits(decided[: len(logged)] if cut else decided)


def _bits(answers: Sequence[Answer]) -> str:
    """Equal texts, equal bits: JSON writes a float so that it reads back as the same one."""
    return strict_json(list(_plain(answers)), where="a decision")


def _merges(events: Sequence[Event]) -> tuple[Merge, ...]:
    reasons = {e.event_id: str(e.decision.reason) for e in events if isinstance(e, Decided)}
    return tuple(
        Merge(tick=e.tick, reason=reasons.get(e.cause_id, "unknown"))
        for e in events
        if isinstance(e, MergeStarted)
    )


def _reasons(events: Sequence[Event]) -> dict[str, int]:
    counts = Counter(str(e.decision.reason) for e in events if isinstance(e, Decided))
    return dict(sorted(counts.items()))


def _note(record: RunRecord) -> str | None:
    """What of the run is not there to be decided again."""
    if not any(isinstance(e, Ticked) for e in record.events):
        return f"{record.status}: no tick was recorded, nothing to decide"
    if record.arm.kind == "no_sync":
        return "no policy in this arm: every decision is no_sync"
    return None if record.status == "complete" else f"{record.status}: {record.why}"


def _other_version(record: RunRecord) -> str | None:
    """Why the answers may differ although nobody touched the record."""
    then, now = record.provenance.get("commit"), commit()["commit"]
    if then is None or now is None or then == now:
        return None
    return f"decided by commit {str(then)[:12]}, this is {now[:12]}: decide it again with that one"
