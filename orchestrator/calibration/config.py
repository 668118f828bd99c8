"""Thresholds of the gate: part of the study, fixed before it runs, none with a default."""

from typing import Annotated

from pydantic import Field

from policies.units import Count, Fraction, FrozenModel, Positive, PositiveCount, Repeats


class GateConfig(FrozenModel):
    """What a claim has to meet; design section 6."""

    alpha: Annotated[float, Field(gt=0, lt=1)]  # family-wise, after Holm over the judge family
    relative_gain_floor: Fraction  # lower bound of the gain has to reach it
    tie_half_width: Fraction  # 90 % interval of the gain within +- this: a tie
    drift_margin_fraction: Fraction  # no_sync start against end, two one-sided tests
    min_seeds_for_drift: PositiveCount
    min_seeds_for_interval: PositiveCount
    effect_ratio_floor: Positive  # p95 ratio matched_random / no_sync: lower bound above it
    placebo_ratio_low: Positive
    placebo_ratio_high: Positive
    max_lateness_fraction_of_slo: Fraction  # p99 send lateness outside windows
    max_no_sync_violation_fraction: Fraction
    permutations: Repeats  # where exact enumeration is too large
    resamples: Repeats  # for intervals
    seed: Count  # of the resampling streams
