"""The gate's conditions on what the runs show; each is computed as far as the record allows.

Missing evidence is never met: it is not assessable.
"""

from collections.abc import Iterable, Sequence

from orchestrator.calibration.asked import OfStudy
from orchestrator.calibration.effects import SeedEffects
from orchestrator.calibration.phrase import condition, gain_words, percent, sampled_words
from orchestrator.calibration.placement import (
    CONFIDENCE,
    Placement,
    passes,
    passes_alone,
    reverse,
)
from orchestrator.calibration.statistics import Interval, attainable_p, ratio_interval
from orchestrator.calibration.verdict import Condition, Status

REPLAY_ABSENT = "replay: absent"


def effect_transfer(
    evidence: OfStudy, effects: Sequence[SeedEffects], *, replay: str = REPLAY_ABSENT
) -> Condition:
    """Merges slow the requests in their windows, on this server; marked windows alone do not.

    ``replay``: what the replay has to say of it, shown beside the effect.
    """
    gate = evidence.study.gate
    whole, placebo = (
        _pooled([e.whole.value for e in effects], gate.min_seeds_for_interval),
        _pooled([e.placebo.value for e in effects], gate.min_seeds_for_interval),
    )
    threshold = (
        f"p95 ratio over no_sync: lower 95 % bound above {gate.effect_ratio_floor:g}; placebo's "
        f"90 % interval inside [{gate.placebo_ratio_low:g}, {gate.placebo_ratio_high:g}]; "
        f"n >= {gate.min_seeds_for_interval}"
    )
    bounds = None if whole is None else whole.finite
    control = None if placebo is None else placebo.finite
    gaps = _gaps(effects, len(evidence.study.seeds))
    if gaps or bounds is None or control is None:
        status = Status.NOT_ASSESSABLE
        why = gaps or f"{len(effects)} seeds, {gate.min_seeds_for_interval} needed for an interval"
    elif bounds[0] <= gate.effect_ratio_floor:
        status = Status.NOT_MET
        why = f"the merge effect is not shown: lower bound {bounds[0]:.3g}"
    elif not gate.placebo_ratio_low <= control[0] <= control[1] <= gate.placebo_ratio_high:
        status = Status.NOT_MET
        why = f"the placebo is not shown to be neutral: [{control[0]:.3g}, {control[1]:.3g}]"
    else:
        status, why = Status.MET, "merges slow the requests in their windows; marks alone do not"
    return condition(
        "effect_transfer",
        status,
        value=None if whole is None else whole.estimate,
        interval=bounds,
        threshold=threshold,
        n=0 if whole is None else whole.n,
        why=f"{why}; {_beside(effects, placebo, gate.min_seeds_for_interval)}; {replay}",
    )


def _pooled(ratios: Iterable[float | None], least_n: int) -> Interval | None:
    known = [r for r in ratios if r is not None]
    return ratio_interval(known, confidence=CONFIDENCE, least_n=least_n) if known else None


def _gaps(effects: Sequence[SeedEffects], seeds: int) -> str:
    """The first seed without a ratio, and why."""
    if len(effects) < seeds:
        return "the study has no matched_random arm of this policy"
    for e in effects:
        for name, ratio in (("effect", e.whole), ("placebo", e.placebo)):
            if ratio.value is None:
                return f"seed {e.seed}: {name} unknown: {ratio.why}"
    return ""


def _beside(effects: Sequence[SeedEffects], placebo: Interval | None, least_n: int) -> str:
    """Placebo and the real part alone: shown beside the effect."""
    real = _pooled([e.real_part.value for e in effects], least_n)
    why = next((e.real_part.why for e in effects if e.real_part.value is None), "no run")
    part = f"{real.estimate:.3g} (n={real.n})" if real is not None else f"unknown ({why})"
    marks = "unknown" if placebo is None else f"{placebo.estimate:.3g}"
    return f"placebo {marks}; real part alone {part}"


def placement_condition(
    name: str,
    placement: Placement,
    evidence: OfStudy,
    *,
    p_holm: float | None,
    labels_holm: float | None,
    note: str = "",
) -> Condition:
    """matched_random, and the same on requests that had not yet arrived.

    ``note``: what has to be said of the control beside every outcome.
    """
    gate, family = evidence.study.gate, len(evidence.study.judge)
    threshold = (
        f"one-sided sign-flip and label-permutation p at most {gate.alpha:g} after Holm over "
        f"{family}; lower 95 % bound of the relative gain at least "
        f"{percent(gate.relative_gain_floor)}"
    )
    gain = placement.gain
    least = min(1.0, attainable_p(placement.n, draws=gate.permutations) * family)
    if placement.lacking or placement.flip is None:
        status = Status.NOT_ASSESSABLE
        why = f"policy or control unknown in {', '.join(placement.lacking) or 'every seed'}"
    elif least > gate.alpha or placement.n < gate.min_seeds_for_interval:
        status = Status.NOT_ASSESSABLE
        why = (
            f"n={placement.n}: least attainable p {least:.3g} after Holm over {family}; "
            + _p_words(placement, p_holm, labels_holm)
        )
    elif passes(placement, gate=gate, p=p_holm, p_labels=labels_holm, alpha=gate.alpha):
        status, why = Status.MET, _p_words(placement, p_holm, labels_holm)
    else:
        status, why = Status.NOT_MET, _p_words(placement, p_holm, labels_holm)
    return condition(
        name,
        status,
        value=None if gain is None else gain.estimate,
        interval=None if gain is None else gain.finite,
        threshold=threshold,
        n=placement.n,
        why=f"{why}; {note}" if note else why,
    )


def _p_words(placement: Placement, p_holm: float | None, labels_holm: float | None) -> str:
    flip, labels, gain = placement.flip, placement.labels, placement.gain
    if flip is None or labels is None or p_holm is None or labels_holm is None:
        return "no seed to test"
    return (
        f"p {p_holm:.3g}, labels permuted {labels_holm:.3g}{sampled_words(flip, labels)}; "
        + gain_words(gain, undefined="the control never violates")
    )


def negative_controls(
    evidence: OfStudy, *, same: Placement | None, placebo: Placement | None
) -> Condition:
    """Comparisons without a difference must not pass the placement test, either way round.

    A/A: a policy under another label against itself, or one draw of matched random against another
    where the study has no such arm. Placebo: windows marked, nothing merged,
    against no_sync (against matched_random it would rightly look better). Each is tried both ways
    at alpha / 2. A control that could not pass with any data, for want of seeds, shows nothing and
    is not assessable.
    """
    gate, n_seeds = evidence.study.gate, len(evidence.study.seeds)
    alpha = 0.5 * gate.alpha
    found, gaps, smallest = [], [], []
    for name, placement in (("A/A", same), ("placebo", placebo)):
        if placement is None:
            gaps.append(f"no {name} arm" + ("" if name == "placebo" else ", nor two draws"))
            continue
        if placement.lacking or placement.flip is None:
            gaps.append(f"{name} unknown in {', '.join(placement.lacking) or 'every seed'}")
            continue
        both = (placement, reverse(placement, gate=gate, name=name))
        smallest += [p.flip.p_value for p in both if p.flip is not None]
        if any(passes_alone(p, gate=gate, alpha=alpha) for p in both):
            found.append(f"{name} passes, so the gate sees a difference where none is")
    if 2.0**-n_seeds > alpha or n_seeds < gate.min_seeds_for_interval:
        gaps.append(f"n={n_seeds} can pass no test")
    if found:
        status, why = Status.NOT_MET, "; ".join(found)
    elif gaps:
        status, why = Status.NOT_ASSESSABLE, "; ".join(gaps)
    else:
        status, why = Status.MET, "neither passes"
    return condition(
        "negative_controls",
        status,
        value=min(smallest, default=None),
        threshold=(
            "A/A, and placebo against no_sync, do not pass the placement test, either way round "
            f"at {alpha:g}"
        ),
        n=n_seeds,
        why=why,
    )


def replay_absent() -> Condition:
    """Tiers 0 and 1 rest on a calibrated replay; a live study alone holds none."""
    return condition(
        "replay",
        Status.ABSENT,
        threshold="a calibrated replay that predicts the effect (tiers 0 and 1)",
        n=0,
        why=f"{REPLAY_ABSENT}, so tiers 0 and 1 are not reached",
    )
