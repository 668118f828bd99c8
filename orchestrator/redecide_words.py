"""What `lull redecide` prints: one line a run, the first mismatch in full, what is hypothetical."""

import json
from collections.abc import Iterator, Sequence

from orchestrator.redecide import Counterfactual, Difference, Merge, Redecision


def redecision_lines(runs: Sequence[Redecision]) -> Iterator[str]:
    """A line a run, each with its first mismatch below it; then whether all is equal."""
    for run in runs:
        note = f"  ({run.note})" if run.note else ""
        yield (
            f"{run.run}: {run.ticks} ticks, {run.decisions} decisions, "
            f"{run.mismatches} mismatches{note}"
        )
        if run.first is not None:
            yield from _difference_lines(run.first)
    decisions = sum(run.decisions for run in runs)
    wrong = sum(run.mismatches > 0 for run in runs)
    if wrong:
        yield f"NOT equal: {wrong} of {len(runs)} runs hold what their policy did not decide"
    elif not decisions:
        yield "no decision was recorded: nothing is shown"
    else:
        yield f"equal, bit for bit: {decisions} decisions of {len(runs)} runs"


def _difference_lines(difference: Difference) -> Iterator[str]:
    where = "no logged tick" if difference.tick is None else f"tick {difference.tick}"
    yield f"  first mismatch at {where}"
    for name, answers in (("logged", difference.logged), ("decided", difference.decided)):
        yield f"    {name:<8} {'; '.join(json.dumps(a) for a in answers) or 'nothing'}"


def counterfactual_lines(runs: Sequence[Counterfactual]) -> Iterator[str]:
    """Merges and reasons of the log beside those of the other policy."""
    for run in runs:
        note = f"  ({run.note})" if run.note else ""
        yield f"{run.label}: {run.policy} on the measurements of {run.run}{note}"
        yield f"  logged merges          {_merges(run.logged_merges)}"
        yield f"  counterfactual merges  {_merges(run.merges)}"
        yield f"  logged reasons         {_counts(run.logged_reasons)}"
        yield f"  counterfactual reasons {_counts(run.reasons)}"
        if run.first_different_tick is None:
            yield "  the same merges at every tick"
        else:
            yield f"  first different merge at tick {run.first_different_tick}: {run.warning}"


def _merges(merges: Sequence[Merge]) -> str:
    return ", ".join(f"{m.tick} {m.reason}" for m in merges) or "none"


def _counts(reasons: dict[str, int]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in reasons.items()) or "none"
