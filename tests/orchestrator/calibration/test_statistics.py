"""Statistics against references, under the null by simulation, and on degenerate data."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

from orchestrator.calibration.statistics import (
    equivalence,
    holm,
    label_permutation,
    mean_difference,
    ratio_interval,
    relative_gain,
    seeds_for_least_p,
    seeds_for_power,
    sign_flip,
)

DRAWS = 2000
RATES = st.integers(0, 100).map(lambda k: k / 100)


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _mean(x: np.ndarray, axis: int) -> np.ndarray:
    return np.mean(x, axis=axis)


# Sign flips and labels


@pytest.mark.parametrize("n", [2, 3, 5, 8, 11])
@pytest.mark.parametrize("rounded", [False, True])
def test_sign_flip_equals_scipy(n: int, rounded: bool) -> None:
    d = _rng(n).normal(-0.3, 1.0, size=n)
    d = np.round(d, 1) if rounded else d
    ours = sign_flip(d, draws=DRAWS, rng=_rng())
    theirs = stats.permutation_test(
        (d,), _mean, permutation_type="samples", n_resamples=np.inf, alternative="less"
    )
    assert ours.exact
    assert ours.p_value == pytest.approx(theirs.pvalue, abs=1e-12)
    assert ours.least_p == 2.0**-n
    assert len(ours.null_distribution) == 2**n
    assert ours.statistic == pytest.approx(d.mean())


def test_drawn_sign_flips_agree_with_exact_ones() -> None:
    d = _rng(3).normal(-0.25, 1.0, size=21)  # one above the exact limit
    drawn = sign_flip(d, draws=200_000, rng=_rng())
    assert not drawn.exact
    assert drawn.least_p == pytest.approx(1 / 200_001)
    # Two equal halves of the sign of the last seed: exact p from the other 20.
    halves = [
        float(np.mean(sign_flip_null(d[:20]) + s * d[20] <= d.sum() + 1e-12)) for s in (1.0, -1.0)
    ]
    assert drawn.p_value == pytest.approx(np.mean(halves), abs=5 * drawn.p_error)
    assert (
        sign_flip(d, draws=500, rng=_rng(7)).p_value == sign_flip(d, draws=500, rng=_rng(7)).p_value
    )


def sign_flip_null(d: np.ndarray) -> np.ndarray:
    """Sums over all sign vectors, from our exact distribution of the mean."""
    return sign_flip(d, draws=1, rng=_rng()).null_distribution * len(d)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (4, 1), (3, 2), (4, 3)])
def test_label_permutation_equals_enumeration(n: int, k: int) -> None:
    runs = _rng(10 * n + k).random((n, k + 1))
    result = label_permutation(runs[:, 0], runs[:, 1:].tolist(), permutations=10_000, rng=_rng())

    def statistic(pick: tuple[int, ...]) -> float:
        return float(
            np.mean([row[j] - np.delete(row, j).mean() for row, j in zip(runs, pick, strict=True)])
        )

    every = [statistic(p) for p in itertools.product(range(k + 1), repeat=n)]
    assert result.exact
    assert result.statistic == pytest.approx(statistic((0,) * n))
    assert result.p_value == pytest.approx(np.mean(np.array(every) <= statistic((0,) * n) + 1e-12))
    assert result.least_p == pytest.approx((k + 1.0) ** -n)


def test_with_one_draw_labels_and_signs_are_the_same_test() -> None:
    runs = _rng(4).random((9, 2))
    labels = label_permutation(runs[:, 0], runs[:, 1:].tolist(), permutations=10_000, rng=_rng())
    assert labels.p_value == sign_flip(runs[:, 0] - runs[:, 1], draws=1, rng=_rng()).p_value


def test_drawn_labels_agree_with_all_labels() -> None:
    runs = _rng(5).random((7, 3)) - np.array([0.15, 0, 0])
    arguments = (runs[:, 0], runs[:, 1:].tolist())
    exact = label_permutation(*arguments, permutations=3**7, rng=_rng())
    drawn = label_permutation(*arguments, permutations=3**7 - 1, rng=_rng())
    assert (exact.exact, drawn.exact) == (True, False)
    assert exact.p_error == 0.0
    assert drawn.p_value == pytest.approx(exact.p_value, abs=5 * drawn.p_error)


@given(st.lists(st.floats(-1.0, 1.0, allow_subnormal=False), min_size=1, max_size=9))
def test_sign_flip_keeps_its_bounds_and_its_symmetry(d: list[float]) -> None:
    p = sign_flip(d, draws=DRAWS, rng=_rng()).p_value
    mirrored = sign_flip([-x for x in d], draws=DRAWS, rng=_rng()).p_value
    assert 2.0 ** -len(d) <= p <= 1.0
    assert p + mirrored >= 1.0
    assert sign_flip(d[::-1], draws=DRAWS, rng=_rng()).p_value == p
    assert sign_flip([8.0 * x for x in d], draws=DRAWS, rng=_rng()).p_value == p


def test_degenerate_differences_are_safe() -> None:
    assert sign_flip([0.0] * 6, draws=DRAWS, rng=_rng()).p_value == 1.0
    assert sign_flip([-0.1] * 6, draws=DRAWS, rng=_rng()).p_value == 2.0**-6
    assert sign_flip([0.1] * 6, draws=DRAWS, rng=_rng()).p_value == 1.0
    assert sign_flip([-1.0, -1.0], draws=DRAWS, rng=_rng()).p_value == 0.25
    same = label_permutation([0.2] * 4, [[0.2, 0.2]] * 4, permutations=1000, rng=_rng())
    assert same.p_value == 1.0


@pytest.mark.parametrize("bad", [[], [math.nan, 1.0], [math.inf], [[1.0, 2.0]]])
def test_unknown_or_misshapen_values_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="differences"):
        sign_flip(bad, draws=DRAWS, rng=_rng())


@pytest.mark.parametrize("n", [5, 7, 12])
def test_false_positives_stay_under_alpha(n: int) -> None:
    """Skewed seeds of unequal spread, the policy as good as its control."""
    rng, alpha, trials = _rng(n), 0.05, 3000
    hits = 0
    for _ in range(trials):
        level = rng.gamma(2.0, 0.05, size=n)  # busy and quiet seeds
        policy, control = rng.gamma(2.0, level / 2), rng.gamma(2.0, level / 2)
        hits += sign_flip(policy - control, draws=1, rng=rng).p_value <= alpha
    assert hits / trials <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / trials)


# Holm


@pytest.mark.slow  # statsmodels collects garbage at every call
@pytest.mark.parametrize(
    "p", [[0.01, 0.04, 0.03, 0.2], [0.2, 0.01], [0.02, 0.02, 0.02], [0.9, 0.8], [0.05]]
)
def test_holm_equals_statsmodels(p: list[float]) -> None:
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])


def test_a_test_that_could_not_be_made_counts_in_the_family() -> None:
    assert holm([0.02, None, None]) == pytest.approx((0.06, 1.0, 1.0))
    assert holm([]) == ()


# Relative gain


@settings(max_examples=60)
@given(
    st.lists(st.tuples(RATES, RATES), min_size=5, max_size=9).filter(
        lambda pairs: sum(c for _, c in pairs) > 0
    )
)
def test_the_gain_is_above_zero_just_when_the_test_rejects(
    pairs: list[tuple[float, float]],
) -> None:
    policy, control = np.array(pairs).T
    gain = relative_gain(policy, control, confidence=0.90, draws=DRAWS, rng=_rng())
    p = sign_flip(policy - control, draws=DRAWS, rng=_rng()).p_value
    assert gain.low is not None
    assert gain.high is not None
    assert gain.estimate is not None
    if abs(gain.low) > 1e-9:  # a tie at exactly 0 may fall on either side by rounding
        assert (gain.low > 0) == (p <= 0.05)
    assert gain.low <= gain.estimate + 1e-9
    assert gain.estimate <= gain.high + 1e-9
    assert gain.high <= 1.0


def _symmetric(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    level = rng.gamma(4.0, 0.05, size=n)
    return 0.7 * level * rng.uniform(0.5, 1.5, n), level * rng.uniform(0.5, 1.5, n)


def _skewed(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Policy and control of one law, scaled: as when each seed's rate is a heavy-tailed count."""
    return 0.7 * rng.lognormal(-2.0, 0.8, n), rng.lognormal(-2.0, 0.8, n)


def _counts(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Few violations among 300 requests: many ties and zeros."""
    level = rng.gamma(4.0, 0.005, size=n)
    return rng.binomial(300, 0.7 * level) / 300, rng.binomial(300, level) / 300


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 12])
@pytest.mark.parametrize("law", [_symmetric, _skewed, _counts])
def test_each_bound_of_the_gain_covers_as_often_as_it_says(
    n: int, law: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
) -> None:
    rng, trials, truth = _rng(n), 1500 if n == 5 else 800, 0.3
    below = above = 0
    for _ in range(trials):
        policy, control = law(rng, n)
        if control.sum() == 0:
            continue
        gain = relative_gain(policy, control, confidence=0.90, draws=1, rng=rng)
        assert gain.low is not None
        assert gain.high is not None
        below += gain.low <= truth
        above += gain.high >= truth
    least = 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)
    assert below / trials >= least
    assert above / trials >= least


def test_gain_has_no_bound_under_five_seeds_and_none_without_control_violations() -> None:
    few = relative_gain([0.1] * 4, [0.2] * 4, confidence=0.90, draws=DRAWS, rng=_rng())
    assert few.estimate == pytest.approx(0.5)
    assert few.low == -math.inf
    assert few.finite is None
    five = relative_gain([0.1] * 5, [0.2] * 5, confidence=0.90, draws=DRAWS, rng=_rng())
    assert five.finite == pytest.approx((0.5, 0.5))
    quiet = relative_gain([0.1] * 5, [0.0] * 5, confidence=0.90, draws=DRAWS, rng=_rng())
    assert (quiet.estimate, quiet.low, quiet.high, quiet.finite) == (None, None, None, None)
    nothing = relative_gain([0.0] * 5, [0.0] * 5, confidence=0.90, draws=DRAWS, rng=_rng())
    assert nothing.estimate is None


def test_seeds_in_which_nothing_happens_only_widen_the_gain() -> None:
    policy, control = [0.1, 0.12, 0.09, 0.11, 0.1, 0.1], [0.2, 0.22, 0.19, 0.2, 0.21, 0.2]
    busy = relative_gain(policy, control, confidence=0.90, draws=DRAWS, rng=_rng())
    padded = relative_gain(
        [*policy, 0.0], [*control, 0.0], confidence=0.90, draws=DRAWS, rng=_rng()
    )
    assert busy.finite is not None
    assert padded.finite is not None
    assert padded.estimate == busy.estimate
    assert padded.finite[0] <= busy.finite[0]
    assert padded.finite[1] >= busy.finite[1]


def test_gain_from_drawn_subsets_agrees_with_a_large_sample() -> None:
    rng = _rng(8)
    control = rng.uniform(0.1, 0.3, 24)
    policy = 0.6 * control * rng.uniform(0.8, 1.2, 24)
    gain = relative_gain(policy, control, confidence=0.90, draws=20_000, rng=rng)
    margin = 0.6 * control - policy
    half = 1.645 * math.sqrt(24) * margin.std() / control.sum()
    assert gain.finite == pytest.approx((gain.estimate - half, gain.estimate + half), abs=0.01)


def test_wrong_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="pair them by seed"):
        relative_gain([0.1], [0.1, 0.2], confidence=0.90, draws=1, rng=_rng())
    with pytest.raises(ValueError, match="negative"):
        relative_gain([-0.1], [0.1], confidence=0.90, draws=1, rng=_rng())
    with pytest.raises(ValueError, match="draws of 1 seeds"):
        label_permutation([0.1, 0.2], [[0.1]], permutations=9, rng=_rng())


@given(st.lists(st.floats(-1.0, 1.0, allow_subnormal=False), min_size=5, max_size=9))
def test_the_difference_lies_below_zero_just_when_the_test_rejects(d: list[float]) -> None:
    interval = mean_difference(d, confidence=0.90, draws=DRAWS, rng=_rng())
    p = sign_flip(d, draws=DRAWS, rng=_rng()).p_value
    assert interval.high is not None
    if abs(interval.high) > 1e-9:
        assert (interval.high < 0) == (p <= 0.05)


# Ratios, equivalence, planning


def test_ratio_interval_is_student_t_on_logarithms() -> None:
    ratios = [1.2, 1.5, 1.1, 1.4, 1.3]
    ours = ratio_interval(ratios, confidence=0.90, least_n=5)
    logs = np.log(ratios)
    low, high = stats.t.interval(0.90, 4, loc=logs.mean(), scale=stats.sem(logs))
    assert ours.estimate == pytest.approx(stats.gmean(ratios))
    assert ours.finite == pytest.approx((math.exp(low), math.exp(high)))
    assert ratio_interval(ratios[:4], confidence=0.90, least_n=5).finite is None
    assert ratio_interval([2.0] * 5, confidence=0.90, least_n=5).finite == pytest.approx((2.0, 2.0))
    with pytest.raises(ValueError, match="above 0"):
        ratio_interval([1.0, 0.0], confidence=0.90, least_n=5)


@pytest.mark.parametrize("n", [5, 12])
def test_ratio_interval_covers(n: int) -> None:
    rng, trials = _rng(n), 2000
    hits = 0
    for _ in range(trials):
        interval = ratio_interval(rng.lognormal(0.3, 0.4, n), confidence=0.90, least_n=5).finite
        assert interval is not None
        hits += interval[0] <= math.exp(0.3) <= interval[1]
    assert hits / trials >= 0.90 - 3 * math.sqrt(0.9 * 0.1 / trials)


@pytest.mark.parametrize("shift", [0.0, 0.004, 0.02])
def test_equivalence_equals_statsmodels(shift: float) -> None:
    start = _rng(1).normal(0.03, 0.004, size=8)
    end = start + shift + _rng(2).normal(0.0, 0.002, size=8)
    ours = equivalence(end - start, margin=0.005, alpha=0.05)
    p, *_ = ttost_paired(end, start, -0.005, 0.005)
    assert ours.p_value == pytest.approx(float(p))
    inside = -0.005 < ours.interval[0] and ours.interval[1] < 0.005
    assert ours.equivalent == inside


def test_equivalence_of_seeds_without_any_spread() -> None:
    assert equivalence([0.0] * 7, margin=0.005, alpha=0.05).equivalent
    assert not equivalence([0.01] * 7, margin=0.005, alpha=0.05).equivalent
    with pytest.raises(ValueError, match="at least 2 seeds"):
        equivalence([0.0], margin=0.005, alpha=0.05)


@pytest.mark.parametrize(
    ("alpha", "family", "n"), [(0.05, 1, 5), (0.01, 1, 7), (0.01, 6, 10), (0.01, 36, 12)]
)
def test_seeds_for_the_least_p(alpha: float, family: int, n: int) -> None:
    assert seeds_for_least_p(alpha=alpha, family=family) == n


@pytest.mark.parametrize(("effect", "sd", "alpha"), [(0.02, 0.03, 0.05), (0.01, 0.05, 0.01)])
def test_seeds_for_power_equal_statsmodels(effect: float, sd: float, alpha: float) -> None:
    theirs = TTestPower().solve_power(
        effect_size=effect / sd, alpha=alpha, power=0.8, alternative="larger"
    )
    assert seeds_for_power(effect=effect, sd=sd, alpha=alpha, power=0.8) == math.ceil(theirs)


def test_seeds_for_power_without_effect_or_spread() -> None:
    assert seeds_for_power(effect=0.0, sd=0.1, alpha=0.05, power=0.8) is None
    assert seeds_for_power(effect=0.1, sd=0.0, alpha=0.05, power=0.8) == 2
    assert seeds_for_power(effect=1e-9, sd=1.0, alpha=0.05, power=0.8) is None
    assert seeds_for_power(effect=9.0, sd=0.1, alpha=0.05, power=0.8) == 2
