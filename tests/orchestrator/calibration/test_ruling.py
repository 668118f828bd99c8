"""From conditions to a verdict: PASS, FAIL with its name, INCONCLUSIVE; never above the tier."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.calibration.placement import (
    Placement,
    measure,
    passes,
    passes_alone,
    reverse,
)
from orchestrator.calibration.pooled import Emulation
from orchestrator.calibration.ruling import least_attainable_p, rule, sentence
from orchestrator.calibration.verdict import Condition, Status, Verdict, VerdictKind
from orchestrator.config import StudyConfig

Study = Callable[..., StudyConfig]
NAMES = (
    "run_validity",
    "load_match",
    "effect_transfer",
    "exposure_match",
    "matched_random",
    "not_yet_arrived",
    "exact_null",
    "negative_controls",
    "replay",
)


@pytest.fixture(scope="module")
def study(make_study: Study) -> StudyConfig:
    return make_study(seeds=list(range(12)))


def _conditions(**statuses: Status) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            name=name,
            status=statuses.get(name, Status.MET),
            value=None,
            interval=None,
            threshold="",
            n=12,
            why=f"why of {name}",
        )
        for name in NAMES
    )


def _placement(study: StudyConfig, rates: Sequence[float], control: Sequence[float]) -> Placement:
    return measure(rates, [(c,) for c in control], gate=study.gate, seeds=tuple(range(len(rates))))


def _rule(
    study: StudyConfig,
    placement: Placement,
    *,
    engine: tuple[str, str] = ("live", "vllm"),
    emulated: Emulation | None = None,
    statuses: dict[str, Status] | None = None,
) -> Verdict:
    return rule(
        study,
        "wa_ewma",
        conditions=_conditions(**(statuses or {})),
        placement=placement,
        early=placement,
        overlap=None,
        p_holm=None if placement.flip is None else placement.flip.p_value,
        engine=engine,
        emulated=emulated,
    )


def _spread(centre: float, n: int = 12) -> list[float]:
    """Rates around ``centre`` with a little, balanced spread."""
    return [centre * (1 + 0.01 * (-1) ** i * (1 + i // 2 % 3)) for i in range(n)]


CONTROL = [0.2] * 12
NOT_BETTER = {"matched_random": Status.NOT_MET, "not_yet_arrived": Status.NOT_MET}


def test_pass_needs_every_condition_a_replay_and_a_live_vllm_server(study: StudyConfig) -> None:
    better = _placement(study, _spread(0.1), CONTROL)
    verdict = _rule(study, better)
    assert (verdict.verdict, verdict.tier, verdict.needed) == (VerdictKind.PASS, 2, "")
    assert verdict.sentence == (
        "wa_ewma reduces SLO violations against matched random in the regime 'synthetic bursts'."
    )
    mock = _rule(study, better, engine=("live", "mock"))
    assert (mock.verdict, mock.tier, mock.sentence) == (VerdictKind.INCONCLUSIVE, 0, None)
    assert "engine=mock" in mock.reason
    absent = _rule(study, better, statuses={"replay": Status.ABSENT})
    assert (absent.verdict, absent.tier) == (VerdictKind.INCONCLUSIVE, None)
    for name in NAMES[:-1]:
        for status in (Status.NOT_MET, Status.NOT_ASSESSABLE):
            assert _rule(study, better, statuses={name: status}).verdict is not VerdictKind.PASS


def test_the_first_condition_that_is_not_met_names_the_verdict(study: StudyConfig) -> None:
    better = _placement(study, _spread(0.1), CONTROL)
    for i, name in enumerate(NAMES[:-1]):
        later = dict.fromkeys(NAMES[i:-1], Status.NOT_MET)
        verdict = _rule(study, better, statuses=later)
        assert verdict.reason == f"{name} is not met: why of {name}"
    unsure = {"load_match": Status.NOT_ASSESSABLE, "matched_random": Status.NOT_MET}
    verdict = _rule(study, better, statuses=unsure)
    assert verdict.reason.startswith("load_match is not assessable: ")


def test_a_gain_bounded_under_the_floor_is_a_fail(study: StudyConfig) -> None:
    worse = _placement(study, _spread(0.22), CONTROL)
    verdict = _rule(study, worse, statuses=NOT_BETTER)
    assert verdict.verdict is VerdictKind.FAIL
    assert "upper 95 % bound), under the floor of 5 %" in verdict.reason
    assert verdict.relative_gain_interval is not None
    assert verdict.relative_gain_interval[1] < 0.0
    assert verdict.sentence is None
    assert verdict.needed


def test_a_tie_is_a_fail_with_that_name(study: StudyConfig) -> None:
    tied = _placement(study, _spread(0.2), CONTROL)
    verdict = _rule(study, tied, statuses=NOT_BETTER)
    assert verdict.verdict is VerdictKind.FAIL
    assert verdict.reason.startswith("tie with matched random: ")


@pytest.mark.parametrize(
    "statuses",
    [
        {"run_validity": Status.NOT_MET},
        {"load_match": Status.NOT_ASSESSABLE},
        {"effect_transfer": Status.NOT_MET},
        {"exposure_match": Status.NOT_ASSESSABLE},
        {"negative_controls": Status.NOT_MET},
    ],
)
def test_what_is_not_valid_cannot_fail(study: StudyConfig, statuses: dict[str, Status]) -> None:
    worse = _placement(study, _spread(0.22), CONTROL)
    verdict = _rule(study, worse, statuses={**NOT_BETTER, **statuses})
    assert verdict.verdict is VerdictKind.INCONCLUSIVE


def test_a_wide_interval_is_inconclusive_and_names_the_seeds_needed(study: StudyConfig) -> None:
    noisy = _placement(study, [0.05, 0.3] * 6, [0.3, 0.1, 0.2] * 4)
    verdict = _rule(study, noisy, statuses=NOT_BETTER)
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "seeds for 80 % power" in verdict.needed


def test_too_few_seeds_cannot_fail_however_bad_the_policy(make_study: Study) -> None:
    study = make_study(seeds=[0, 1])
    bad = _placement(study, [0.9, 0.9], [0.1, 0.1])
    verdict = _rule(study, bad, statuses={"matched_random": Status.NOT_ASSESSABLE})
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.relative_gain_interval is None


def test_what_was_emulated_is_in_the_sentence(study: StudyConfig) -> None:
    fill = Emulation(kind="matmul", share=0.93)
    verdict = _rule(study, _placement(study, _spread(0.1), CONTROL), emulated=fill)
    assert verdict.sentence is not None
    assert verdict.sentence.endswith("with emulated merge load, matmul, 93 % of the window.")
    assert "an unknown share" in Emulation(kind="matmul", share=None).words


def test_each_tier_licenses_one_sentence_and_none_licenses_none() -> None:
    said = [sentence(t, "p", regime="r", emulated=None) for t in (None, 0, 1, 2, 3)]
    assert said[0] is None
    assert len(set(said)) == 5
    assert "In replay" in str(said[1])
    assert "reduces" not in str(said[2])
    assert "carries over" in str(said[4])


@pytest.mark.parametrize(
    ("seeds", "judged", "least"), [(2, 1, 0.25), (5, 1, 2.0**-5), (5, 2, 2.0**-4), (1, 2, 1.0)]
)
def test_least_attainable_p_is_after_holm(
    make_study: Study, seeds: int, judged: int, least: float
) -> None:
    policies = {f"p{i}": {"kind": "fixed_h", "h_steps": 100} for i in range(judged)} | {
        "wa_ewma": {"kind": "fixed_h", "h_steps": 100}
    }
    study = make_study(
        seeds=list(range(seeds)), policies=policies, judge=[f"p{i}" for i in range(judged)]
    )
    assert least_attainable_p(study) == least


# The placement test itself


def test_reversing_a_comparison_swaps_its_sides(study: StudyConfig) -> None:
    there = _placement(study, _spread(0.1), CONTROL)
    back = reverse(there, gate=study.gate, name="x")
    assert passes_alone(there, gate=study.gate, alpha=0.05)
    assert not passes_alone(back, gate=study.gate, alpha=0.05)
    again = reverse(back, gate=study.gate, name="x")
    assert passes_alone(again, gate=study.gate, alpha=0.05)
    assert back.differences == pytest.approx([-d for d in there.differences])


def test_a_significant_gain_under_the_floor_does_not_pass(study: StudyConfig) -> None:
    slightly = _placement(study, _spread(0.194), CONTROL)
    assert slightly.flip is not None
    assert slightly.flip.p_value < 0.05
    assert slightly.gain is not None
    assert slightly.gain.finite is not None
    assert 0.0 < slightly.gain.finite[0] < study.gate.relative_gain_floor
    assert not passes_alone(slightly, gate=study.gate, alpha=0.05)


def test_missing_seeds_or_p_values_never_pass(study: StudyConfig) -> None:
    good = _placement(study, _spread(0.1), CONTROL)
    assert passes(good, gate=study.gate, p=0.001, p_labels=0.001, alpha=0.05)
    assert not passes(good, gate=study.gate, p=None, p_labels=0.001, alpha=0.05)
    assert not passes(good, gate=study.gate, p=0.001, p_labels=0.2, alpha=0.05)
    lacking = replace(good, lacking=("seed 9",))
    assert not passes(lacking, gate=study.gate, p=0.001, p_labels=0.001, alpha=0.05)
    nothing = measure([], [], gate=study.gate, seeds=())
    assert not passes_alone(nothing, gate=study.gate, alpha=0.05)
    quiet = _placement(study, [0.0] * 12, [0.0] * 12)
    assert not passes_alone(quiet, gate=study.gate, alpha=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "draws"), [(7, 1), (12, 1), (7, 3)])
def test_a_policy_as_good_as_random_rarely_passes(make_study: Study, n: int, draws: int) -> None:
    """The whole placement test, on rates that differ by seed as bursts do."""
    study = make_study(seeds=list(range(n)))
    gate = study.gate.model_copy(update={"permutations": 1000, "resamples": 200})
    rng, trials, hits = np.random.default_rng(100 * n + draws), 500, 0
    for _ in range(trials):
        level = rng.gamma(3.0, 0.04, size=n)
        rates = np.minimum(rng.gamma(3.0, level[:, None] / 3.0, size=(n, draws + 1)), 1.0)
        placement = measure(
            rates[:, 0].tolist(), rates[:, 1:].tolist(), gate=gate, seeds=study.seeds
        )
        hits += passes_alone(placement, gate=gate, alpha=gate.alpha)
    assert hits / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_a_policy_that_halves_violations_mostly_passes_at_twelve_seeds(study: StudyConfig) -> None:
    rng, trials, hits = np.random.default_rng(5), 200, 0
    for _ in range(trials):
        level = rng.gamma(8.0, 0.015, size=12)
        policy, control = rng.gamma(6.0, 0.5 * level / 6.0), rng.gamma(6.0, level / 6.0)
        placement = _placement(study, policy.tolist(), control.tolist())
        hits += passes_alone(placement, gate=study.gate, alpha=0.05)
    assert hits / trials >= 0.8
