"""What went wrong in a run that is complete all the same. Pure."""

from collections.abc import Sequence

from actors.events import (
    CheckpointFailed,
    Event,
    IslandDropped,
    IslandJoined,
    MergeFailed,
)


def run_marks(events: Sequence[Event]) -> list[str]:
    """Lines for people: each says how often, and the first reason."""
    found = []
    merges = [e for e in events if isinstance(e, MergeFailed)]
    if merges:
        found.append(f"{_times(merges, 'merge')} did not take place ({merges[0].why})")
    writes = [e for e in events if isinstance(e, CheckpointFailed)]
    if writes:
        found.append(f"{_times(writes, 'checkpoint')} could not be written ({writes[0].why})")
    drops = [e for e in events if isinstance(e, IslandDropped)]
    if drops:
        out = sorted(still_out(events))
        end = f"out at the end: {', '.join(map(str, out))}" if out else "all were back at the end"
        found.append(f"islands were left out {len(drops)} x ({drops[0].why}); {end}")
    return found


def _times(events: Sequence[Event], what: str) -> str:
    return f"{len(events)} {what}{'' if len(events) == 1 else 's'}"


def still_out(events: Sequence[Event]) -> set[int]:
    """Islands that were dropped and had not joined again when the run ended."""
    out: set[int] = set()
    for event in events:
        if isinstance(event, IslandDropped):
            out.add(event.island)
        elif isinstance(event, IslandJoined):
            out.discard(event.island)
    return out
