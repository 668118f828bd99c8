"""A verdict on overlap alone: offline studies, whose blocks come from a model or a trace.

Nothing here was measured on a server: no tier above 0, and none without a calibrated replay.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.exact_null import exact_null
from orchestrator.calibration.overlap import (
    Block,
    Floats,
    Moments,
    Overlap,
    compare_overlap,
    exact_moments,
    schedule_problem,
)
from orchestrator.calibration.phrase import (
    condition,
    flip_words,
    gain_words,
    named,
    percent,
)
from orchestrator.calibration.pooled import WINDOWS_FOR_REGIME
from orchestrator.calibration.power import POWER, seeds_to_claim
from orchestrator.calibration.statistics import Interval, holm, seeds_for_least_p
from orchestrator.calibration.verdict import Condition, Status, VerdictKind
from policies.corridor import Corridor

_NEW = " on requests that had not yet arrived"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test of the family: a policy in a regime, on blocks of traffic."""

    policy: str
    regime: str
    blocks: Sequence[Block]
    trace: str | None = None  # the one trace that all blocks are cut from, e.g. "Azure code, 1 h"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapVerdict:
    """The gate's answer for one case; never evidence about a server."""

    policy: str
    regime: str
    verdict: VerdictKind
    tier: int | None  # 0 for a PASS on a calibrated replay, else None
    label: str  # what the figures were computed on
    reason: str
    needed: str  # "" on PASS
    sentence: str | None
    n: int  # clusters
    family: int
    p_holm: float | None
    new_p_holm: float | None
    z_holm: float | None
    new_z_holm: float | None
    all_requests: Overlap | None  # None where a schedule is not feasible
    not_yet_arrived: Overlap | None
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tested:
    case: Case
    problems: tuple[str, ...]
    both: tuple[Overlap, Overlap] | None  # all requests, not-yet-arrived ones


@dataclass(frozen=True, slots=True, kw_only=True)
class _Adjusted:
    """One case's p after Holm, each over the whole family: (all requests, not yet arrived)."""

    flip: tuple[float | None, float | None]
    z: tuple[float | None, float | None]
    family: int


def judge_overlap(
    cases: Sequence[Case],
    *,
    gate: GateConfig,
    label: str,
    calibrated: bool = False,
    family: int | None = None,
    moments: Moments = exact_moments,
) -> tuple[OverlapVerdict, ...]:
    """Judge a family of policies x regimes, fixed beforehand; one verdict a case, in order.

    ``label`` says what the blocks are ("overlap model, synthetic traffic"); ``calibrated``: a
    replay that was fitted to a real server. ``family``: the size of the Holm family where it is
    larger than ``cases``. ValueError for numbers that cannot count; a schedule that is not
    feasible fails exposure_match of its case and is tested no further.
    """
    pairs = [(case.policy, case.regime) for case in cases]
    size = len(cases) if family is None else family
    if not cases or size < len(cases) or len(set(pairs)) < len(pairs):
        raise ValueError(
            f"{len(cases)} cases in a family of {size}: give at least one, each policy and regime "
            "once, and no family smaller than its cases"
        )
    kept = _remembered(moments)
    tested = [_test(case, gate=gate, moments=kept) for case in cases]
    columns = []
    for get in (_flip_p, _z_p):
        for i in (0, 1):
            raw = [None if t.both is None else get(t.both[i]) for t in tested]
            after = holm([*raw, *[None] * (size - len(raw))])
            columns.append([None if p is None else q for p, q in zip(raw, after, strict=False)])
    return tuple(
        _verdict(
            t,
            _Adjusted(flip=(flip, new_flip), z=(z, new_z), family=size),
            gate=gate,
            label=label,
            calibrated=calibrated,
        )
        for t, flip, new_flip, z, new_z in zip(tested, *columns, strict=True)
    )


def _remembered(moments: Moments) -> Moments:
    """Policies of a family share their traffic: each cost's moments are computed once."""
    known: dict[tuple[int, Corridor, int], tuple[Floats, tuple[float, float]]] = {}

    def remembered(corridor: Corridor, cost: Floats, budget: int) -> tuple[float, float]:
        key = (id(cost), corridor, budget)  # the array is kept, so that its id stays its own
        if key not in known:
            known[key] = (cost, moments(corridor, cost, budget))
        return known[key][1]

    return remembered


def _flip_p(overlap: Overlap) -> float | None:
    return overlap.flip.p_value


def _z_p(overlap: Overlap) -> float | None:
    return overlap.z_p


def _test(case: Case, *, gate: GateConfig, moments: Moments) -> _Tested:
    if not case.blocks:
        return _Tested(case=case, problems=("no block of traffic",), both=None)
    problems = tuple(p for b in case.blocks if (p := schedule_problem(b)) is not None)
    if problems:
        return _Tested(case=case, problems=problems, both=None)
    name = f"{case.policy} in {case.regime}"
    every, new = (
        compare_overlap(case.blocks, new=new, gate=gate, name=name, moments=moments)
        for new in (False, True)
    )
    return _Tested(case=case, problems=(), both=(every, new))


def _verdict(
    tested: _Tested, adjusted: _Adjusted, *, gate: GateConfig, label: str, calibrated: bool
) -> OverlapVerdict:
    case = tested.case
    conditions = _conditions(tested, adjusted, gate=gate)
    kind, reason = _decide(tested, conditions, gate=gate)
    passed = kind is VerdictKind.PASS
    model = "in replay" if calibrated else f"in the {label}"
    every, new = tested.both if tested.both is not None else (None, None)
    return OverlapVerdict(
        policy=case.policy,
        regime=case.regime,
        verdict=kind,
        tier=0 if passed and calibrated else None,
        label=label,
        reason=f"{reason} ({label}: no server was measured)",
        needed="" if passed else _needed(tested, adjusted, gate=gate, kind=kind),
        sentence=f"{model[:1].upper()}{model[1:]}, {case.policy} places merges better than matched "
        f"random in the regime {case.regime!r}."
        if passed
        else None,
        n=0 if every is None else every.n,
        family=adjusted.family,
        p_holm=adjusted.flip[0],
        new_p_holm=adjusted.flip[1],
        z_holm=adjusted.z[0],
        new_z_holm=adjusted.z[1],
        all_requests=every,
        not_yet_arrived=new,
        conditions=conditions,
    )


def _conditions(tested: _Tested, adjusted: _Adjusted, *, gate: GateConfig) -> tuple[Condition, ...]:
    n = 0 if tested.both is None else tested.both[0].n
    exposure = condition(
        "exposure_match",
        Status.NOT_MET if tested.problems else Status.MET,
        value=float(len(tested.problems)),
        threshold="every schedule in the corridor, with the budget of its control",
        n=len(tested.case.blocks),
        why=named(tested.problems) or "every schedule is a feasible one of the budget",
    )
    if tested.both is None:
        lacking = tuple(
            condition(
                name,
                Status.NOT_ASSESSABLE,
                threshold="feasible schedules",
                n=0,
                why="a schedule is not feasible, so there is no control of its exposure",
            )
            for name in ("matched_random", "not_yet_arrived", "exact_null")
        )
        return (exposure, *lacking)
    every, new = tested.both
    floor = gate.relative_gain_floor
    return (
        exposure,
        _placement("matched_random", every, adjusted.flip[0], adjusted, floor=floor, gate=gate),
        _placement("not_yet_arrived", new, adjusted.flip[1], adjusted, floor=floor, gate=gate),
        exact_null(tested.both, p=adjusted.z, family=adjusted.family, gate=gate, n=n),
    )


def _placement(
    name: str,
    overlap: Overlap,
    p: float | None,
    adjusted: _Adjusted,
    *,
    floor: float,
    gate: GateConfig,
) -> Condition:
    """Sign flip over clusters after Holm, and the gain's lower bound at (or above) ``floor``."""
    bounds = overlap.gain.finite
    least = min(1.0, overlap.flip.least_p * adjusted.family)
    if least > gate.alpha or overlap.n < gate.min_seeds_for_interval:
        status = Status.NOT_ASSESSABLE
        words = f"n={overlap.n}: least attainable p {least:.3g} after Holm over {adjusted.family}; "
    else:
        high = bounds is not None and bounds[0] >= floor
        met = p is not None and p <= gate.alpha and high
        status, words = Status.MET if met else Status.NOT_MET, ""
    return condition(
        name,
        status,
        value=overlap.gain.estimate,
        interval=bounds,
        threshold=(
            f"one-sided sign-flip p at most {gate.alpha:g} after Holm over {adjusted.family}; "
            f"lower 95 % bound of the relative gain at least {percent(floor)}"
        ),
        n=overlap.n,
        why=f"{words}{flip_words(p, overlap.flip)}; {gain_words(overlap.gain)}",
    )


def _decide(
    tested: _Tested, conditions: Sequence[Condition], *, gate: GateConfig
) -> tuple[VerdictKind, str]:
    """FAIL where a powered test bounds the gain; PASS where all is met; else INCONCLUSIVE."""
    first = next((c for c in conditions if c.status is not Status.MET), None)
    status = {c.name: c.status for c in conditions}
    if tested.both is not None:
        names = ("matched_random", "not_yet_arrived")
        for name, overlap, whose in zip(names, tested.both, ("", _NEW), strict=True):
            failed = status[name] is Status.NOT_MET and _bounded(overlap.gain, whose, gate=gate)
            if failed:
                return VerdictKind.FAIL, failed
    if first is not None:
        state = "not met" if first.status is Status.NOT_MET else "not assessable"
        scope = _this_trace_only(tested)
        return VerdictKind.INCONCLUSIVE, (
            f"{first.name} is {state}: {first.why}" + (f"; {scope}" if scope else "")
        )
    scope = _this_trace_only(tested)
    if scope:
        return VerdictKind.INCONCLUSIVE, f"every condition is met, but {scope}"
    return VerdictKind.PASS, "every condition is met"


def _bounded(gain: Interval, whose: str, *, gate: GateConfig) -> str | None:
    """Why the gain is shown to be too small: a tie, or an upper bound under the floor."""
    if gain.finite is None:
        return None
    low, high = gain.finite
    if -gate.tie_half_width <= low and high <= gate.tie_half_width:
        return (
            f"tie with matched random{whose}: the 90 % interval of the relative gain, "
            f"[{percent(low)}, {percent(high)}], lies inside +-{percent(gate.tie_half_width)}"
        )
    if high < gate.relative_gain_floor:
        return (
            f"the relative gain{whose} is at most {percent(high)} (upper 95 % bound), under the "
            f"floor of {percent(gate.relative_gain_floor)}"
        )
    return None


def _this_trace_only(tested: _Tested) -> str:
    """What few windows of one trace license."""
    case = tested.case
    n = len({b.cluster for b in case.blocks})
    if case.trace is None or n >= WINDOWS_FOR_REGIME:
        return ""
    return (
        f"{n} disjoint windows of one trace ({case.trace}) license a sentence about this hour of "
        f"it, not about the regime {case.regime!r}"
    )


def _needed(tested: _Tested, adjusted: _Adjusted, *, gate: GateConfig, kind: VerdictKind) -> str:
    """What a claim would still take."""
    if kind is VerdictKind.FAIL:
        return "another policy or burstier traffic: more blocks would not change this"
    if tested.both is None:
        return "schedules of the control's budget inside the corridor"
    every = tested.both[0]
    least = max(
        seeds_for_least_p(alpha=gate.alpha, family=adjusted.family), gate.min_seeds_for_interval
    )
    unit = "seeds" if tested.case.trace is None else "disjoint windows"
    words = []
    if tested.case.trace is not None:
        least = max(least, WINDOWS_FOR_REGIME)
    if every.n < least:
        words.append(f"n >= {least} independent {unit} (n={every.n})")
    powered = seeds_to_claim(every.policy, every.mean, gate=gate, family=adjusted.family)
    if powered is not None and powered > max(every.n, least):
        words.append(f"about {powered} {unit} for {100 * POWER:.0f} % power at the spread seen")
    return "; ".join(words) or "another policy: the tests that are not met had their power"
