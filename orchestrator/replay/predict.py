"""What a calibrated plant says of a live study: the same requests and windows, other latencies.

Effect ratio and gain are those of the gate, of the plant's answers; its noise is drawn several
times and averaged, as in the transfer check. Seeds that the fit saw are left out.
"""

import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from orchestrator.calibration.evidence import gather
from orchestrator.calibration.pooled import engine_of
from orchestrator.calibration.prediction import Predicted, Prediction, geometric_mean
from orchestrator.config import StudyConfig
from orchestrator.metrics import Floats, percentile, within
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.replay.calibrated import AIMS, Calibration
from orchestrator.replay.compare import Pair, pair_up
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.measured import measured_run, run_key
from orchestrator.replay.standing import mismatch_words, plant_words, standing_of

_KINDS = ("no_sync", "policy", "matched_random")


def predict(
    study: StudyConfig,
    records: Sequence[RunRecord],
    metrics: Sequence[RunMetrics],
    calibration: Calibration,
) -> Prediction:
    """The prediction for ``calibration.gate.judge``. Incomplete runs predict nothing."""
    source, engine, version = engine_of(gather(study, records, metrics))
    words = (*mismatch_words(study, calibration), *plant_words(calibration))
    least = study.gate.min_seeds_for_interval
    if source == "replay":  # nothing to foresee: the plant made these runs
        return Prediction(
            standing=standing_of(calibration, study=study),
            least_seeds=least,
            aim=AIMS["effect_ratio"],
            policies=None,
            words=words,
        )
    whole = [r for r in records if r.status == "complete" and r.seed in study.seeds]
    fitted = {r.seed for r in whole if run_key(r).content_sha256 in calibration.took_part}
    blocks = {
        seed: _Block(seed, [r for r in whole if r.seed == seed], plant=calibration.plant)
        for seed in study.seeds
        if seed not in fitted
    }
    return Prediction(
        standing=standing_of(calibration, study=study, engine=engine, engine_version=version),
        least_seeds=least,
        aim=AIMS["effect_ratio"],
        policies={
            arm.of: Predicted(
                effects={seed: block.effect(arm.of) for seed, block in blocks.items()},
                fitted_seeds=tuple(sorted(fitted)),
                gain=_gain(blocks.values(), arm.of),
            )
            for arm in study.arms
            if arm.kind == "matched_random"
        },
        words=words,
    )


class _Block:
    """One seed's runs with the plant's answers to each."""

    def __init__(self, seed: int, records: Sequence[RunRecord], *, plant: PlantConfig) -> None:
        runs = [measured_run(r) for r in records if r.arm.kind in _KINDS]
        self._pairs = pair_up(runs, plant=plant)
        self.seed = seed
        self.draws = min((len(p.predicted) for p in self._pairs), default=0)

    def _of(self, kind: str, policy: str | None = None) -> list[Pair]:
        arms = [(p, p.run.arm) for p in self._pairs if p.run.arm.kind == kind]
        return [p for p, arm in arms if policy is None or policy in (arm.of, arm.policy)]

    def effect(self, of: str) -> float | None:
        """Geometric mean of the ratio over the noise; None where one is unknown."""
        ratios = [self._ratio(of, draw) for draw in range(self.draws)]
        known = [r for r in ratios if r is not None]
        return geometric_mean(known) if known and len(known) == len(ratios) else None

    def _ratio(self, of: str, draw: int) -> float | None:
        """As calibration/effects.py: draws pooled, no_sync runs pooled value by value."""
        treated, bases = self._of("matched_random", of), self._of("no_sync")
        if not treated or not bases:
            return None
        inside: list[Floats] = []
        plain: list[Floats] = []
        for pair in treated:
            run = pair.run
            if any(not np.array_equal(run.request_id, b.run.request_id) for b in bases):
                return None
            chosen = run.counted & within(run.at_s, map(tuple, run.windows.tolist()))
            inside.append(pair.predicted[draw].e2e_s[chosen])
            plain += [b.predicted[draw].e2e_s[chosen] for b in bases]
        top, bottom = (percentile(np.concatenate(x), 0.95) for x in (inside, plain))
        return None if top is None or bottom is None or bottom <= 0.0 else top / bottom

    def rates(self, policy: str, draw: int) -> tuple[float, float] | None:
        """Violation rate of the policy and the mean one of its draws; None where one lacks."""
        mine, others = self._of("policy", policy), self._of("matched_random", policy)
        if not mine or not others:
            return None
        policy_rate, *control = (_rate(pair, draw) for pair in (mine[0], *others))
        return policy_rate, statistics.fmean(control)


def _rate(pair: Pair, draw: int) -> float:
    counted = pair.run.counted
    return float(np.mean(pair.predicted[draw].violates[counted]))


def _gain(blocks: Iterable[_Block], policy: str) -> float | None:
    """Relative gain over seeds and noise together; None where a seed lacks a run."""
    found = [b.rates(policy, draw) for b in blocks for draw in range(b.draws)]
    known = [r for r in found if r is not None]
    control = sum(c for _, c in known)
    if not known or len(known) < len(found) or control <= 0.0:
        return None
    return 1.0 - sum(p for p, _ in known) / control
