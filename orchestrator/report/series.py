"""What the plots draw, from a run's record: rates, windows, violations. No matplotlib here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actors.events import MergeFinished, MergeStarted
from orchestrator.arms import expand_arms
from orchestrator.config import StudyConfig
from orchestrator.metrics import Floats, floats, read_requests
from orchestrator.records import RunRecord
from orchestrator.report.words import arm_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One merge window on the run clock; real_end_s is None where no merge finished in it."""

    start_s: float
    end_s: float
    real_end_s: float | None
    emulated: bool  # the rest, up to the end, was filled by a synthetic load
    suppressed: bool


def windows(record: RunRecord) -> tuple[Window, ...]:
    """Planned windows, each with the end of the slowest island's real work."""
    finished = {e.round: e for e in record.events if isinstance(e, MergeFinished)}
    found = []
    for event in record.events:
        if not isinstance(event, MergeStarted):
            continue
        done = finished.get(event.round)
        parts = done.parts if done is not None else ()
        found.append(
            Window(
                start_s=event.planned_start_s,
                end_s=event.planned_end_s,
                real_end_s=max((p.ended_at_s for p in parts), default=None),
                emulated=any(p.emulated_s > 0 for p in parts),
                suppressed=event.suppressed,
            )
        )
    return tuple(found)


def request_rate(record: RunRecord, *, horizon_s: float, bin_s: float = 1.0) -> Floats:
    """Requests scheduled per second in bins of ``bin_s``.  # [bin]"""
    edges = np.arange(0.0, horizon_s + bin_s, bin_s)
    counts, _ = np.histogram(floats(record.requests, "scheduled_at_s"), bins=edges)
    return counts / bin_s


def order_of_arms(study: StudyConfig, records: Sequence[RunRecord]) -> list[str]:
    """The study's order of arms, then any label it does not name."""
    present = {r.arm.label for r in records}
    known = [arm.label for arm in expand_arms(study)]
    return [a for a in known if a in present] + sorted(present - set(known), key=arm_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Violations among counted requests, at their scheduled times."""

    slow_at_s: Floats
    failed_at_s: Floats
    counted: int


def violation_marks(record: RunRecord) -> Marks:
    """Failed: outcome not ok; slow: ok, but above a limit of the SLO."""
    r = read_requests(record)
    return Marks(
        slow_at_s=r.scheduled_at_s[r.counted & r.violates & r.ok],
        failed_at_s=r.scheduled_at_s[r.counted & ~r.ok],
        counted=int(r.counted.sum()),
    )


def made_by(records: Sequence[RunRecord]) -> str:
    """Source and engine of the runs; anything but a real server says SIMULATED first."""
    made = {(_fact(r, "source"), _fact(r, "engine"), _fact(r, "engine_version")) for r in records}
    words = "; ".join(f"{source}, engine={engine} {v}" for source, engine, v in sorted(made))
    real = all(source == "live" and engine == "vllm" for source, engine, _ in made)
    return words if real else f"SIMULATED: {words}"


def _fact(record: RunRecord, key: str) -> str:
    return str(record.provenance.get(key, "unknown"))
