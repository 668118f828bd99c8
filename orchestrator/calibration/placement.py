"""One arm against its controls, paired by seed: the comparison behind conditions and controls.

The control of a seed is the mean over its runs (the K draws of matched random).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.calibration.asked import Compared
from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.evidence import Rate
from orchestrator.calibration.statistics import (
    Interval,
    PermutationResult,
    label_permutation,
    mean_difference,
    relative_gain,
    sign_flip,
)
from policies.streams import stream

CONFIDENCE = 0.90  # two-sided, so that each end is a one-sided 95 % bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The comparison over the seeds that have all its runs; ``lacking`` names the others."""

    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    control_rates: tuple[tuple[float, ...], ...]  # [seed][draw]
    lacking: tuple[str, ...]
    flip: PermutationResult | None  # None without any seed
    labels: PermutationResult | None
    gain: Interval | None
    difference: Interval | None

    @property
    def n(self) -> int:
        return len(self.seeds)

    @property
    def controls(self) -> tuple[float, ...]:
        return tuple(float(np.mean(draws)) for draws in self.control_rates)

    @property
    def differences(self) -> tuple[float, ...]:
        return tuple(p - c for p, c in zip(self.rates, self.controls, strict=True))


def compare(
    evidence: Compared, arm: str, controls: Sequence[str], *, rate: Rate, name: str
) -> Placement:
    """``arm`` minus ``controls``; ``name`` keeps the random streams of comparisons apart."""
    seeds, rates, control_rates, lacking = [], [], [], []
    for seed in evidence.study.seeds:
        mine = evidence.complete(arm, seed)
        own = None if mine is None else rate(mine.metrics)
        others = [rate(run.metrics) for run in evidence.completed(controls, seed)]
        known = [r for r in others if r is not None]
        if own is None or not controls or len(known) != len(controls):
            lacking.append(f"seed {seed}")
            continue
        seeds.append(seed)
        rates.append(own)
        control_rates.append(tuple(known))
    return measure(
        rates,
        control_rates,
        gate=evidence.study.gate,
        seeds=seeds,
        lacking=lacking,
        name=f"{name} {arm}",
    )


def measure(
    rates: Sequence[float],
    control_rates: Sequence[Sequence[float]],
    *,
    gate: GateConfig,
    seeds: Sequence[int],
    lacking: Sequence[str] = (),
    name: str = "",
) -> Placement:
    """The numbers alone: sign flips, labels, and intervals of gain and difference."""
    flip = labels = gain = difference = None
    if seeds:
        controls = np.array([np.mean(draws) for draws in control_rates])
        mine = np.asarray(rates, dtype=np.float64)
        d = mine - controls
        flip = sign_flip(d, draws=gate.permutations, rng=stream(gate.seed, f"sign flip {name}"))
        labels = label_permutation(
            mine,
            control_rates,
            permutations=gate.permutations,
            rng=stream(gate.seed, f"labels {name}"),
        )
        gain = relative_gain(
            mine,
            controls,
            confidence=CONFIDENCE,
            draws=gate.resamples,
            rng=stream(gate.seed, f"gain {name}"),
        )
        difference = mean_difference(
            d,
            confidence=CONFIDENCE,
            draws=gate.resamples,
            rng=stream(gate.seed, f"difference {name}"),
        )
    return Placement(
        seeds=tuple(seeds),
        rates=tuple(rates),
        control_rates=tuple(tuple(draws) for draws in control_rates),
        lacking=tuple(lacking),
        flip=flip,
        labels=labels,
        gain=gain,
        difference=difference,
    )


def reverse(placement: Placement, *, gate: GateConfig, name: str) -> Placement:
    """The controls' mean as if it were the policy, against the arm."""
    return measure(
        placement.controls,
        [(rate,) for rate in placement.rates],
        gate=gate,
        seeds=placement.seeds,
        lacking=placement.lacking,
        name=f"{name} reversed",
    )


def passes(
    placement: Placement,
    *,
    gate: GateConfig,
    p: float | None,
    p_labels: float | None,
    alpha: float,
) -> bool:
    """Both exact tests significant (p after Holm), and the gain's lower bound at the floor."""
    if placement.lacking or p is None or p_labels is None or placement.gain is None:
        return False
    bounds = placement.gain.finite
    return (
        p <= alpha
        and p_labels <= alpha
        and placement.n >= gate.min_seeds_for_interval
        and bounds is not None
        and bounds[0] >= gate.relative_gain_floor
    )


def passes_alone(placement: Placement, *, gate: GateConfig, alpha: float) -> bool:
    """As ``passes``, for a comparison outside the judged family (negative controls)."""
    p = None if placement.flip is None else placement.flip.p_value
    labels = None if placement.labels is None else placement.labels.p_value
    return passes(placement, gate=gate, p=p, p_labels=labels, alpha=alpha)
