"""Conditions to a verdict: PASS, FAIL or INCONCLUSIVE, its tier, its reason and what is needed.

Nothing is said above the tier that the evidence reaches.
"""

import math
import statistics
from collections.abc import Sequence

from orchestrator.calibration.asked import Asked
from orchestrator.calibration.overlap import Overlap
from orchestrator.calibration.placement import Placement
from orchestrator.calibration.pooled import Emulation
from orchestrator.calibration.power import POWER, seeds_to_claim
from orchestrator.calibration.statistics import attainable_p, seeds_for_least_p
from orchestrator.calibration.verdict import Condition, Status, Verdict, VerdictKind

_DRAWS_SHOWN = 10  # of a seed, one by one
_BEFORE_PLACEMENT = ("run_validity", "load_match", "effect_transfer", "exposure_match")


def rule(
    study: Asked,
    policy: str,
    *,
    conditions: tuple[Condition, ...],
    placement: Placement,
    early: Placement,
    overlap: tuple[Overlap, Overlap] | None,
    p_holm: float | None,
    engine: tuple[str, str],
    emulated: Emulation | None,
    scope: str = "",
    held_out: bool | None = None,
) -> Verdict:
    """The verdict for one judged policy. ``engine``: source and engine of the runs.

    ``scope``: why runs like these speak of less than the regime, whatever they show.
    """
    tier = _tier(conditions, engine=engine, scope=scope, held_out=held_out)
    kind, reason = _decide(study, conditions, placement, tier=tier, engine=engine, scope=scope)
    gain, difference = placement.gain, placement.difference
    many = placement.n >= study.gate.min_seeds_for_interval
    return Verdict(
        policy=policy,
        regime=study.regime,
        verdict=kind,
        tier=tier,
        reason=qualified(reason, engine=engine[1], emulated=emulated),
        needed="" if kind is VerdictKind.PASS else _needed(study, conditions, placement, kind=kind),
        sentence=sentence(tier, policy, regime=study.regime, emulated=emulated)
        if kind is VerdictKind.PASS
        else None,
        n_seeds=placement.n,
        violation_rate_policy=_mean(placement.rates),
        violation_rate_control=_mean(placement.controls),
        difference=None if difference is None else difference.estimate,
        difference_interval=difference.finite if difference is not None and many else None,
        relative_gain=None if gain is None else gain.estimate,
        relative_gain_interval=gain.finite if gain is not None and many else None,
        p_value=None if placement.flip is None else placement.flip.p_value,
        p_holm=p_holm,
        least_attainable_p=least_attainable_p(study),
        permutation_p=None if placement.labels is None else placement.labels.p_value,
        conditions=conditions,
        per_seed=_per_seed(placement, early, overlap),
        held_out=held_out,
    )


def least_attainable_p(study: Asked) -> float:
    """Least p after Holm that this many seeds can reach: 2^-n times the judged family.

    Above 20 seeds sign vectors are drawn, so that 1 / (permutations + 1) bounds it as well.
    Labels permuted over K draws reach (K + 1)^-n, but the gate asks for the sign flips as well.
    """
    least = attainable_p(len(study.seeds), draws=study.gate.permutations)
    return min(1.0, least * max(1, len(study.judge)))


def _tier(
    conditions: Sequence[Condition], *, engine: tuple[str, str], scope: str, held_out: bool | None
) -> int | None:
    """Highest tier of which all lower ones are reached; only a live vLLM server goes above 0.

    A replay reaches 0 where it shows the policy better than matched random; a live study where a
    calibrated plant foresaw its effect, 1 where the server shows that effect too.
    """
    status = {c.name: c.status for c in conditions}
    everything = all(s is Status.MET for s in status.values()) and not scope
    if status["replay"] is not Status.MET:
        return None
    if engine[0] == "replay":
        return 0 if everything else None
    if engine != ("live", "vllm") or status["effect_transfer"] is not Status.MET:
        return 0
    if not everything:
        return 1
    return 3 if held_out else 2


def met_but_replay(verdict: Verdict) -> bool:
    """Every condition is met but that the plant may speak of a real server: no claim, a finding."""
    return all(c.status is Status.MET for c in verdict.conditions if c.name != "replay")


def sentence(
    tier: int | None, policy: str, *, regime: str, emulated: Emulation | None
) -> str | None:
    """The one sentence that a tier licenses."""
    licensed = {
        0: f"In replay, {policy} places merges better than matched random",
        1: f"The merge effect that {policy} is to avoid is real here",
        2: f"{policy} reduces SLO violations against matched random in the regime {regime!r}",
        3: f"{policy} reduces SLO violations in the regime {regime!r}, and it carries over to "
        "traces and seeds that took no part in tuning",
    }
    if tier is None:
        return None
    return licensed[tier] + (f", {emulated.words}." if emulated is not None else ".")


def _decide(
    study: Asked,
    conditions: Sequence[Condition],
    placement: Placement,
    *,
    tier: int | None,
    engine: tuple[str, str],
    scope: str,
) -> tuple[VerdictKind, str]:
    """The first condition that is not met names the verdict."""
    first = next((c for c in conditions if c.status is not Status.MET), None)
    if first is None:
        if scope:
            return VerdictKind.INCONCLUSIVE, f"every condition is met, but {scope}"
        if tier is not None and (tier >= 2 or engine[0] == "replay"):
            return VerdictKind.PASS, "every condition is met"
        return VerdictKind.INCONCLUSIVE, "every condition is met, but not on a real server"
    failed = _failure(study, conditions, placement)
    if failed is not None:
        return VerdictKind.FAIL, failed
    if first.name == "replay":
        runs = "of the replay" if engine[0] == "replay" else "on live runs"
        return VerdictKind.INCONCLUSIVE, f"every condition {runs} is met, but {first.why}"
    return VerdictKind.INCONCLUSIVE, named_by(first)


def named_by(condition: Condition) -> str:
    """The reason of a verdict that this condition names."""
    state = "not met" if condition.status is Status.NOT_MET else "not assessable"
    return f"{condition.name} is {state}: {condition.why}"


def _failure(study: Asked, conditions: Sequence[Condition], placement: Placement) -> str | None:
    """Why the study, valid and powered, speaks against the policy; None when it does not."""
    status = {c.name: c.status for c in conditions}
    valid = all(status[name] is Status.MET for name in _BEFORE_PLACEMENT)
    powered = status["matched_random"] in (Status.MET, Status.NOT_MET)
    clean = status["negative_controls"] is not Status.NOT_MET
    if not (valid and powered and clean) or placement.gain is None:
        return None
    bounds = placement.gain.finite
    if bounds is None or status["matched_random"] is Status.MET:
        return None
    gate = study.gate
    low, high = (f"{100 * b:.1f} %" for b in bounds)
    if -gate.tie_half_width <= bounds[0] and bounds[1] <= gate.tie_half_width:
        return (
            f"tie with matched random: the 90 % interval of the relative gain, [{low}, {high}], "
            f"lies inside +-{100 * gate.tie_half_width:g} %"
        )
    if bounds[1] < gate.relative_gain_floor:
        return (
            f"the relative gain is at most {high} (upper 95 % bound), under the floor of "
            f"{100 * gate.relative_gain_floor:g} %"
        )
    return None


def qualified(reason: str, *, engine: str, emulated: Emulation | None) -> str:
    """What no reading of the reason may leave out."""
    notes = [] if engine == "vllm" else [f"engine={engine}, no real server"]
    notes += [] if emulated is None else [emulated.words]
    return f"{reason} ({'; '.join(notes)})" if notes else reason


def _needed(
    study: Asked,
    conditions: Sequence[Condition],
    placement: Placement,
    *,
    kind: VerdictKind,
) -> str:
    """What a claim would still take; seeds first."""
    if kind is VerdictKind.FAIL:
        return "another policy or a stronger merge effect: more seeds would not change this"
    by_name = {c.name: c for c in conditions}
    parts = []
    for name in ("run_validity", "load_match", "exposure_match", "effect_transfer"):
        if by_name[name].status is Status.NOT_MET:
            parts.append(f"{name} met")
    parts.append(_seeds_needed(study, placement))
    if by_name["negative_controls"].status is Status.NOT_ASSESSABLE:
        kinds = {arm.kind for arm in study.arms}
        lacking = [k for k in ("aa", "placebo") if k not in kinds]
        parts += [f"arms: {', '.join(lacking)}"] if lacking else []
    if by_name["replay"].status is not Status.MET:
        parts.append("a calibrated replay (tiers 0 and 1)")
    return "; ".join(p for p in parts if p)


def _seeds_needed(study: Asked, placement: Placement) -> str:
    gate, family, n = study.gate, max(1, len(study.judge)), len(study.seeds)
    least = max(
        seeds_for_least_p(alpha=gate.alpha, family=family),
        gate.min_seeds_for_interval,
        gate.min_seeds_for_drift,
    )
    words = []
    if n < least:
        words.append(
            f"n >= {least} seeds (n={n} has least attainable p {least_attainable_p(study):.2g} "
            f"after Holm over {family}; drift from {gate.min_seeds_for_drift}, intervals from "
            f"{gate.min_seeds_for_interval})"
        )
    power = seeds_to_claim(placement.rates, placement.controls, gate=gate, family=family)
    if power is not None and power > max(n, least):
        words.append(f"about {power} seeds for {100 * POWER:.0f} % power at the spread seen here")
    return ", ".join(words)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _per_seed(
    placement: Placement, early: Placement, overlap: tuple[Overlap, Overlap] | None
) -> tuple[dict[str, float | int | None], ...]:
    """The distribution behind the tests, one row a seed."""
    overlaps = {} if overlap is None else _overlap_rows(overlap)
    not_yet = dict(zip(early.seeds, zip(early.rates, early.controls, strict=True), strict=True))
    rows: list[dict[str, float | int | None]] = []
    for i, seed in enumerate(placement.seeds):
        policy, control = placement.rates[i], placement.controls[i]
        mine, others = not_yet.get(seed, (None, None))
        row: dict[str, float | int | None] = {
            "seed": seed,
            "policy_rate": policy,
            "control_rate": control,
            "difference": policy - control,
            "relative_gain": (control - policy) / control if control else None,
            "not_yet_arrived_policy_rate": mine,
            "not_yet_arrived_control_rate": others,
        }
        row |= _draw_rates(placement.control_rates[i])
        row |= overlaps.get(f"seed {seed}", {})
        rows.append(row)
    return tuple(rows)


def _draw_rates(rates: Sequence[float]) -> dict[str, float | int | None]:
    """Each draw, or of many the least, the middle and the largest one."""
    if len(rates) <= _DRAWS_SHOWN:
        return {f"draw_{k}_rate": rate for k, rate in enumerate(rates)}
    return {
        "draws": len(rates),
        "draw_least_rate": min(rates),
        "draw_median_rate": statistics.median(rates),
        "draw_largest_rate": max(rates),
    }


def _overlap_rows(overlap: tuple[Overlap, Overlap]) -> dict[str, dict[str, float | int | None]]:
    """Requests overlapped, with mean and sd under uniform placement, by cluster."""
    rows: dict[str, dict[str, float | int | None]] = {}
    for what, o in zip(("overlap", "not_yet_arrived_overlap"), overlap, strict=True):
        for cluster, *values in zip(o.clusters, o.policy, o.mean, o.variance, strict=True):
            policy, mean, variance = values
            rows.setdefault(cluster, {}).update(
                {
                    f"{what}_policy": policy,
                    f"{what}_random_mean": mean,
                    f"{what}_random_sd": math.sqrt(variance),
                }
            )
    return rows
