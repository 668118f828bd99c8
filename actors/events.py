"""All that is said inside a run: events in past tense, commands in the imperative.

``to_record`` / ``from_record`` turn them into strict JSON objects and back without loss, so that
the log alone gives the decisions again.
"""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from actors.merge_messages import CheckpointFile
from policies.observation import Action, Decision, Reason, Sample, sample_from_record


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmStarted:
    event_id: int
    at_s: float
    arm: str
    seed: int
    islands: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTold:
    """Traffic before the run, one entry a tick from ``first_tick`` to -1; nothing was served."""

    event_id: int
    first_tick: int  # negative
    arrivals: tuple[int, ...]  # requests that arrived in the tick that ends there
    in_flight: tuple[int, ...]  # those of the last ``service_s``, which is an assumption
    service_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    event_id: int
    sample: Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    event_id: int
    cause_id: int
    tick: int
    earliest_tick: int | None
    latest_tick: int | None
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStarted:
    event_id: int
    cause_id: int
    round: int
    tick: int
    at_s: float  # when the command went out
    planned_start_s: float  # tick * tick_s
    planned_end_s: float
    suppressed: bool  # placebo: the window is marked, nothing merges
    islands: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePart:
    """What one island did in a merge window. Durations in seconds."""

    island: int
    round: int
    wait_s: float  # from the command to the step boundary and the peers' arrival
    codec_s: float
    all_reduce_s: float
    outer_step_s: float
    checkpoint_s: float
    real_s: float  # from the command to the end of the real work
    emulated_s: float  # fill, up to the end of the window
    fill_cpu_s: float  # CPU seconds that the fill really got
    ended_at_s: float  # run clock, end of the real work
    weight: float  # share in the weighted mean
    tokens: int
    bytes_reduced: int
    pseudo_gradient_norm: float
    parameter_hash: str
    loss: float | None
    codec_error: float | None = None  # relative L2 error of what was sent; None: sent as it is
    missed_rounds: int = 0  # merges since the last one that it took part in
    transport: str | None = None  # alone, shared_memory, network; None in older records
    export_s: float = 0.0  # the merged model left for the server


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFinished:
    event_id: int
    cause_id: int
    round: int
    at_s: float  # when the islands went on
    overran: bool  # real work longer than the window
    parts: tuple[MergePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarRefreshed:
    """A server serves the weights of a merge, as its answers prove. Times on the run clock.

    One that does not is a fault: nothing of this is written for it.
    """

    event_id: int
    cause_id: int  # the merge's MergeStarted
    round: int
    at_s: float  # when the proof was there
    sidecar: int
    kind: str  # in_place | restart
    started_at_s: float
    outage_s: float  # in which no token was made
    weights_bytes: int
    error_nats: float  # of the server's answer to the probe, against the weights' own
    change_nats: float | None  # against what the weights before would have answered
    tolerance_nats: float  # a change below it proves nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted:
    event_id: int
    at_s: float
    kind: str  # island_lost, server_lost, client_lost, disk_full, interrupted, ...
    what: str  # one clear line


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFailed:
    """A round that did not take place: no island's parameters have changed."""

    event_id: int
    cause_id: int
    round: int
    at_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandDropped:
    """The run goes on without an island that died or was too late."""

    event_id: int
    at_s: float
    island: int
    round: int  # the next merge, which it is missing from
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandJoined:
    """An island stands on the last merge and takes part again, or for the first time."""

    event_id: int
    at_s: float
    island: int
    rounds_applied: int
    kept_steps: bool  # the steps that it made meanwhile were carried over
    optimizer: str = "kept"  # its AdamW state: kept, of the last checkpoint, or fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    """A run can go on from here to the bit: every event up to this one, and these files."""

    event_id: int
    at_s: float
    tick: int  # the last one that is done
    round: int
    folder: str
    islands: tuple[int, ...]
    files: tuple[CheckpointFile, ...]
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """No checkpoint this time; the one before is untouched."""

    event_id: int
    at_s: float
    round: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """Loss of the global parameters on the held-out text, nats a token."""

    event_id: int
    at_s: float
    round: int  # merges that the parameters hold
    loss: float
    tokens: int  # trained by all islands so far
    closing: bool  # after the merge that ends a run, so that no step is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandFinished:
    """What an island leaves at the end of an arm, beside its training rows."""

    event_id: int
    at_s: float
    island: int
    steps: int
    tokens: int
    late_steps: int  # inner steps that began later than paced
    cpu_s: float
    parameter_hash: str
    warnings: tuple[str, ...]  # e.g. a priority that the kernel did not grant


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFinished:
    event_id: int
    at_s: float
    status: str  # complete | invalid | partial
    why: str | None


Event = (
    ArmStarted
    | HistoryTold
    | Ticked
    | Decided
    | MergeStarted
    | MergeFinished
    | SidecarRefreshed
    | Faulted
    | MergeFailed
    | IslandDropped
    | IslandJoined
    | Checkpointed
    | CheckpointFailed
    | Validated
    | IslandFinished
    | ArmFinished
)
_EVENTS: dict[str, type] = {
    "arm_started": ArmStarted,
    "history_told": HistoryTold,
    "ticked": Ticked,
    "decided": Decided,
    "merge_started": MergeStarted,
    "merge_finished": MergeFinished,
    "sidecar_refreshed": SidecarRefreshed,
    "faulted": Faulted,
    "merge_failed": MergeFailed,
    "island_dropped": IslandDropped,
    "island_joined": IslandJoined,
    "checkpointed": Checkpointed,
    "checkpoint_failed": CheckpointFailed,
    "validated": Validated,
    "island_finished": IslandFinished,
    "arm_finished": ArmFinished,
}
_NAMES = {cls: name for name, cls in _EVENTS.items()}


def to_record(event: Event) -> dict[str, Any]:
    """Event as a JSON-ready object with its ``type``."""
    return {"type": _NAMES[type(event)], **_plain(event)}


_FIELD_NAMES: dict[type, tuple[str, ...]] = {}


def _field_names(cls: type) -> tuple[str, ...]:
    """Empty for what is no dataclass."""
    names = _FIELD_NAMES.get(cls)
    if names is None:
        names = tuple(f.name for f in fields(cls)) if is_dataclass(cls) else ()
        _FIELD_NAMES[cls] = names
    return names


def _plain(record: Any) -> dict[str, Any]:
    """What dataclasses.asdict gives, several times faster: it copies every leaf of every term.

    Thousands of islands make tens of thousands of leaves a tick. All is immutable here.
    """
    plain = {}
    for name in _field_names(type(record)):
        value = getattr(record, name)
        if _field_names(type(value)):
            value = _plain(value)
        elif isinstance(value, tuple) and value and _field_names(type(value[0])):
            value = tuple(map(_plain, value))
        plain[name] = value
    return plain


def from_record(record: dict[str, Any]) -> Event:
    """The event that ``to_record`` wrote (after a trip through JSON)."""
    fields = dict(record)
    name = fields.pop("type", None)
    cls = _EVENTS.get(str(name))
    if cls is None:
        raise ValueError(f"event type {name!r} is none of {', '.join(_EVENTS)}")
    if cls is Ticked:
        fields["sample"] = sample_from_record(fields["sample"])
    elif cls is Decided:
        raw = fields["decision"]
        fields["decision"] = Decision(
            action=Action(raw["action"]),
            reason=Reason(raw["reason"]),
            score=raw["score"],
            terms=tuple((str(k), v) for k, v in raw["terms"]),
        )
    elif cls is Checkpointed:
        fields["files"] = tuple(CheckpointFile(**file) for file in fields["files"])
    elif cls is MergeFinished:
        fields["parts"] = tuple(MergePart(**part) for part in fields["parts"])
    for name in ("islands", "warnings", "arrivals", "in_flight"):
        if name in fields:
            fields[name] = tuple(fields[name])
    event: Event = cls(**fields)
    return event


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMerge:
    """Command: these islands merge now (or mark the window only, for a placebo)."""

    cause_id: int
    round: int
    tick: int
    start_s: float
    end_s: float
    islands: tuple[int, ...]
    suppressed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndArm:
    """Command: the horizon is reached or the arm cannot go on."""

    cause_id: int
    status: str
    why: str | None


Command = StartMerge | EndArm
