"""How many seeds a claim takes: from the spread that was seen, or before a run from the traffic.

Before a run nothing is known of latencies, but the overlap of every schedule is: exactly.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.statistics import Floats, seeds_for_least_p, seeds_for_power
from policies.streams import stream

POWER = 0.80
TRIALS = 400  # drawn studies; power is known to +-.02
ENUMERATED = 12  # seeds
MOST_SEEDS = 1000


def seeds_to_claim(
    policy: Sequence[float], control: Sequence[float], *, gate: GateConfig, family: int
) -> int | None:
    """Seeds to show a gain at the floor: at the gain seen, or at twice the floor if less.

    None where the spread is unknown (under 2 seeds), or the control is 0.
    """
    if len(policy) < 2 or not sum(control):
        return None
    floor, level = gate.relative_gain_floor, float(np.mean(control))
    hoped = max(1.0 - float(np.mean(policy)) / level, 2.0 * floor)
    # The lower bound of the gain reaches the floor when (1 - floor) c - p is above 0.
    margin = [(1.0 - floor) * c - p for p, c in zip(policy, control, strict=True)]
    sd = float(np.std(margin, ddof=1))
    needed = [
        seeds_for_power(effect=effect, sd=sd, alpha=alpha, power=POWER)
        for effect, alpha in (
            ((hoped - floor) * level, 0.05),
            (hoped * level, gate.alpha / max(1, family)),
        )
    ]
    known = [n for n in needed if n is not None]
    return max(known) if len(known) == len(needed) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPower:
    """What the study can show of a stated gain, on overlap: before any latency is known."""

    basis: str
    gain: float  # relative, assumed of the policy
    n: int
    family: int
    draws: int  # of matched random a seed; the control is their mean
    alpha_each: float  # of the first step of Holm
    power: float | None  # None where every schedule overlaps alike, or the seeds have no arrivals
    n_for_80: int | None  # None: not within MOST_SEEDS
    random_sd_fraction: float | None  # sd of one random schedule's overlap over its mean
    why: str  # "" where known

    @property
    def words(self) -> str:
        """One line for the plan."""
        if self.power is None:
            return f"unknown: {self.why} (on the {self.basis})"
        if self.n_for_80 is None:
            enough = f"80 % not within {MOST_SEEDS} seeds"
        else:
            enough = f"80 % from about {self.n_for_80} seeds"
        return (
            f"{100 * self.power:.0f} % at {self.n} seeds for a gain of {100 * self.gain:g} % "
            f"(alpha {self.alpha_each:.2g} each of {self.family}, {self.draws} draws), {enough}; "
            f"computed on the {self.basis}"
        )


def planned_power(
    means: Sequence[float],
    variances: Sequence[float],
    *,
    gain: float,
    gate: GateConfig,
    family: int,
    draws: int,
) -> PlannedPower:
    """Power of matched_random and exact_null together, from the exact moments of each seed.

    Of seed k: control c_k ~ N(m_k, v_k / draws), policy p_k ~ N((1 - gain) m_k, v_k): a policy's
    own spread is taken as wide as that of one random schedule. A seed beyond those of the study
    is one of them again. The tests are the gate's (least step of Holm), on TRIALS drawn studies.
    """
    if not 0.0 < gain < 1.0:
        raise ValueError(f"gain={gain:g}; state a relative gain between 0 and 1, e.g. 0.3")
    m, v = np.asarray(means, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    n, tests = len(m), max(1, family)
    known = bool(m.sum() > 0.0 and v.sum() > 1e-12 * m.sum() ** 2)

    def power_of(seeds: int) -> float:
        rng = stream(gate.seed, "planned power", seeds)
        return _power(m, v, seeds, gain=gain, gate=gate, family=tests, draws=draws, rng=rng)

    return PlannedPower(
        basis="overlap of arriving requests, not latencies",
        gain=gain,
        n=n,
        family=tests,
        draws=draws,
        alpha_each=gate.alpha / tests,
        power=power_of(n) if known else None,
        n_for_80=_least_n(power_of, gate=gate, family=tests) if known else None,
        random_sd_fraction=float(np.sqrt(v.sum() / (m**2).sum())) if known else None,
        why="" if known else "no placement changes the overlap of this load",
    )


def _power(
    m: Floats,
    v: Floats,
    n: int,
    *,
    gain: float,
    gate: GateConfig,
    family: int,
    draws: int,
    rng: np.random.Generator,
) -> float:
    """Share of drawn studies of n seeds in which every test on overlap is met."""
    if 2.0**-n * family > gate.alpha or n < gate.min_seeds_for_interval:
        return 0.0
    mean, sd = np.resize(m, n)[:, None], np.sqrt(np.resize(v, n))[:, None]
    noise = rng.standard_normal((2, n, TRIALS))
    control = mean + sd / math.sqrt(draws) * noise[0]
    policy = (1.0 - gain) * mean + sd * noise[1]
    # The gain's lower bound reaches the floor when the sign flip of this margin rejects at .05.
    margin = policy - (1.0 - gate.relative_gain_floor) * control
    alpha = gate.alpha / family
    z = (policy - mean).sum(axis=0) / math.sqrt(float((sd**2).sum()))
    met = _flips(policy - control, alpha=alpha, rng=rng) & _flips(margin, alpha=0.05, rng=rng)
    return float(np.mean(met & (z <= stats.norm.ppf(alpha))))


def _flips(d: Floats, *, alpha: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which columns a one-sided sign flip rejects; enumerated for few seeds, else Student's t.

    Above ENUMERATED seeds the two agree closely, and enumeration takes long.
    """
    n = len(d)
    if n > ENUMERATED:
        t = d.mean(axis=0) / (d.std(axis=0, ddof=1) / math.sqrt(n))
        return np.asarray(t <= stats.t.ppf(alpha, n - 1))
    signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)  # [2^n, n]
    sums = signs @ d
    least = sums[0] + 1e-12 * np.abs(d).sum(axis=0)
    return np.asarray((sums <= least).mean(axis=0) <= alpha)


def _least_n(power_of: Callable[[int], float], *, gate: GateConfig, family: int) -> int | None:
    """Fewest seeds with POWER; power rises with n but for steps of the attainable p."""
    n = max(seeds_for_least_p(alpha=gate.alpha, family=family), gate.min_seeds_for_interval)
    below = n - 1
    while power_of(n) < POWER:
        below, n = n, n + (1 if n < ENUMERATED else n // 4)
        if n > MOST_SEEDS:
            return None
    while n - below > 1:
        middle = (n + below) // 2
        below, n = (below, middle) if power_of(middle) >= POWER else (middle, n)
    return n
