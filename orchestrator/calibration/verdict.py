"""What the gate says: conditions, a verdict for each judged policy, and the whole judgement."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Outcome of one condition."""

    MET = "met"
    NOT_MET = "not_met"
    NOT_ASSESSABLE = "not_assessable"  # too few seeds, or an arm that the study lacks
    ABSENT = "absent"  # evidence that does not exist yet (replay)


class VerdictKind(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of the gate, always computed as far as the record allows."""

    name: str  # run_validity, load_match, effect_transfer, exposure_match, matched_random, ...
    status: Status
    value: float | None
    interval: tuple[float, float] | None
    threshold: str  # in words, with the number
    n: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The gate's answer for one judged policy against its matched random."""

    policy: str
    regime: str
    verdict: VerdictKind
    tier: int | None  # highest evidence tier reached; None when not even tier 0
    reason: str  # one sentence
    needed: str  # what would be needed for a claim; "" on PASS
    sentence: str | None  # the one sentence that the tier licenses
    n_seeds: int
    violation_rate_policy: float | None
    violation_rate_control: float | None
    difference: float | None  # policy minus control, fraction of requests
    difference_interval: tuple[float, float] | None
    relative_gain: float | None  # (control - policy) / control
    relative_gain_interval: tuple[float, float] | None
    p_value: float | None
    p_holm: float | None
    least_attainable_p: float
    permutation_p: float | None  # labels permuted within a seed over policy and K draws
    conditions: tuple[Condition, ...]
    per_seed: tuple[dict[str, float | int | None], ...]  # the distribution behind the test
    held_out: bool | None = None  # no seed or trace took part in tuning; None: not stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All that ``verdicts.json`` holds; a pure function of the study's run folders."""

    study: str
    regime: str
    source: str  # live | replay
    engine: str  # vllm | mock | model
    engine_version: str
    gate_hash: str
    seeds: tuple[int, ...]
    verdicts: tuple[Verdict, ...]
    effects: tuple[dict[str, float | int | str | None], ...]  # per seed: effect, placebo, real part
    arms: tuple[dict[str, float | int | str | None], ...]  # one row an arm label, pooled over seeds
    caveats: tuple[str, ...]
    rate_effects: tuple[dict[str, float | int | str | None], ...] = ()  # free cadence only
