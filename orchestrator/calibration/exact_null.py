"""The exact-null condition: overlap against the whole law of uniform placement, live or offline."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.evidence import Evidence
from orchestrator.calibration.overlap import Overlap, compare_overlap
from orchestrator.calibration.phrase import condition, gain_words, named, null_words
from orchestrator.calibration.recorded import overlap_blocks
from orchestrator.calibration.statistics import holm
from orchestrator.calibration.verdict import Condition, Status


def exact_null(
    both: tuple[Overlap, Overlap],
    *,
    p: tuple[float | None, float | None],
    family: int,
    gate: GateConfig,
    n: int,
) -> Condition:
    """Overlap against the exact law of uniform placement, on all and on not-yet-arrived requests.

    ``p``: of z, after Holm over ``family``.
    """
    every, new = both
    known = [q for q in p if q is not None]
    if len(known) < len(p):
        status = Status.NOT_ASSESSABLE
        why = "uniform placement has no variance: no placement could have changed the overlap; "
    else:
        status = Status.MET if max(known) <= gate.alpha else Status.NOT_MET
        why = ""
    return condition(
        "exact_null",
        status,
        value=every.z,
        threshold=asked(gate, family=family),
        n=n,
        why=why
        + "; ".join(
            f"{what}: {null_words(o.z, q)}, {gain_words(o.gain)}"
            for what, o, q in (("all", every, p[0]), ("not yet arrived", new, p[1]))
        ),
    )


def asked(gate: GateConfig, *, family: int) -> str:
    """The condition's threshold in words."""
    return (
        f"one-sided p of z at most {gate.alpha:g} after Holm over {family}, on all requests "
        "overlapped and on those that had not yet arrived"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A policy's overlap on the recorded traffic; None with the reason why."""

    both: tuple[Overlap, Overlap] | None  # all requests, not-yet-arrived ones
    why: str


def recorded_overlap(evidence: Evidence, policy: str) -> Recorded:
    """The policy's realised starts on the traffic of each seed's no_sync runs.

    Only where every seed of the study is known: seeds that are left out could be chosen.
    """
    try:
        blocks, gaps = overlap_blocks(evidence, policy)
        if gaps:
            return Recorded(both=None, why=named(gaps))
        every, new = (
            compare_overlap(blocks, new=new, gate=evidence.study.gate, name=policy)
            for new in (False, True)
        )
    except ValueError as error:
        return Recorded(both=None, why=str(error))
    return Recorded(both=(every, new), why="")


def recorded_nulls(family: Sequence[Recorded], *, gate: GateConfig) -> list[Condition]:
    """The condition of each judged policy, Holm over the family for each cost by itself."""
    raw = [[None if r.both is None else r.both[i].z_p for r in family] for i in (0, 1)]
    after = [holm(p) for p in raw]
    found = []
    for i, r in enumerate(family):
        if r.both is None:
            found.append(_unknown(r.why, gate=gate, family=len(family)))
            continue
        p = tuple(None if raw[k][i] is None else after[k][i] for k in (0, 1))
        found.append(
            exact_null(r.both, p=(p[0], p[1]), family=len(family), gate=gate, n=r.both[0].n)
        )
    return found


def _unknown(why: str, *, gate: GateConfig, family: int) -> Condition:
    return condition(
        "exact_null",
        Status.NOT_ASSESSABLE,
        threshold=asked(gate, family=family),
        n=0,
        why=f"overlap unknown: {why}",
    )
