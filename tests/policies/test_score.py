"""The workload-aware score by hand: clipping, weights, the mean, and what is unknown."""

from collections.abc import Callable

import pytest

from policies.config import WaScoreConfig
from policies.observation import Action, Decision, IslandProgress, Reason, Sample, Seen
from policies.score import WaScore

MakeSample = Callable[..., Sample]
MakeIsland = Callable[..., IslandProgress]
MakeSeen = Callable[..., Seen]
PRESSURES = {"network": 0.2, "serving": 0.4, "checkpoint": 0.8}


def config(**changes: float) -> WaScoreConfig:
    """The published weights; scales that suit a small run."""
    scales = {"token_scale_tokens": 1000.0, "stale_scale_s": 40.0}
    return WaScoreConfig(kind="wa_score", **{**scales, **changes})


def decide(policy: WaScore, sample: Sample, seen: Seen) -> Decision:
    policy.observe(sample)
    return policy.decide(seen)


def test_the_published_defaults() -> None:
    published = WaScoreConfig(kind="wa_score")
    assert published.model_dump(exclude={"kind"}) == {
        "threshold": 0.0,
        "w_loss": 0.5,
        "w_tok": 0.5,
        "w_net": 0.5,
        "w_srv": 0.75,
        "w_ckpt": 0.25,
        "w_stale": 0.25,
        "loss_scale": 0.05,
        "token_scale_tokens": 1_000_000,
        "stale_scale_s": 1800.0,
    }


def test_score_of_two_islands_by_hand(
    make_sample: MakeSample, make_island: MakeIsland, make_seen: MakeSeen
) -> None:
    first = make_island(0, loss_drop=0.02, tokens_since_merge=600, staleness_s=10.0)
    second = make_island(3, loss_drop=0.01, tokens_since_merge=1000, staleness_s=20.0)
    sample = make_sample(**PRESSURES, islands=(first, second))
    decision = decide(WaScore(config()), sample, make_seen())
    terms = dict(decision.terms)
    # 0.5*0.02/0.05 + 0.5*600/1000 - 0.5*0.2 - 0.75*0.4 - 0.25*0.8 - 0.25*10/40
    assert terms["island0.score"] == pytest.approx(0.2 + 0.3 - 0.1 - 0.3 - 0.2 - 0.0625)
    # 0.5*0.01/0.05 + 0.5*1000/1000 - 0.6 - 0.25*20/40
    assert terms["island3.score"] == pytest.approx(0.1 + 0.5 - 0.6 - 0.125)
    assert decision.score == pytest.approx((-0.1625 - 0.125) / 2)
    assert (decision.action, decision.reason) == (Action.DEFER, Reason.SCORE_BELOW)
    assert {k: v for k, v in terms.items() if not k.startswith("island")} == PRESSURES
    assert terms["island0.loss"] == pytest.approx(0.4)
    assert terms["island0.tokens"] == pytest.approx(0.6)
    assert terms["island0.staleness"] == pytest.approx(0.25)
    assert len(terms) == 3 + 2 * 4


def test_every_term_is_clipped_to_zero_and_one(
    make_sample: MakeSample, make_island: MakeIsland, make_seen: MakeSeen
) -> None:
    far = make_island(0, loss_drop=9.0, tokens_since_merge=10**9, staleness_s=1e9)
    high = {"network": 7.0, "serving": 7.0, "checkpoint": 7.0}
    decision = decide(WaScore(config()), make_sample(**high, islands=(far,)), make_seen())
    assert decision.score == pytest.approx(0.5 + 0.5 - 0.5 - 0.75 - 0.25 - 0.25)
    worse = make_island(0, loss_drop=-3.0)
    quiet = {"network": -1.0, "serving": 0.0, "checkpoint": 0.0}
    decision = decide(WaScore(config()), make_sample(**quiet, islands=(worse,)), make_seen())
    assert decision.score == 0.0


def test_it_merges_only_above_the_threshold(
    make_sample: MakeSample, make_island: MakeIsland, make_seen: MakeSeen
) -> None:
    island = make_island(0, tokens_since_merge=1000)  # s = 0.5 exactly
    calm = make_sample(network=0.0, serving=0.0, checkpoint=0.0, islands=(island,))
    at = decide(WaScore(config(threshold=0.5)), calm, make_seen())
    assert (at.action, at.reason, at.score) == (Action.DEFER, Reason.SCORE_BELOW, 0.5)
    below = decide(WaScore(config(threshold=0.499)), calm, make_seen())
    assert (below.action, below.reason) == (Action.MERGE, Reason.SCORE_ABOVE)


@pytest.mark.parametrize("missing", ["network", "serving", "checkpoint"])
def test_a_missing_pressure_is_unknown_not_zero(
    make_sample: MakeSample, make_island: MakeIsland, make_seen: MakeSeen, missing: str
) -> None:
    eager = config(threshold=-100.0)
    island = make_island(0, loss_drop=0.01, tokens_since_merge=500)
    sample = make_sample(**{**PRESSURES, missing: None}, islands=(island,))
    decision = decide(WaScore(eager), sample, make_seen())
    assert (decision.action, decision.reason) == (Action.DEFER, Reason.UNKNOWN)
    assert decision.score is None
    terms = dict(decision.terms)
    assert terms[missing] is None
    assert terms["island0.score"] is None
    assert terms["island0.tokens"] == pytest.approx(0.5)  # what is known is logged all the same


@pytest.mark.parametrize("loss_drop", [None, float("nan")])
def test_one_island_without_a_loss_makes_the_mean_unknown(
    make_sample: MakeSample, make_island: MakeIsland, make_seen: MakeSeen, loss_drop: float | None
) -> None:
    pair = (make_island(0, loss_drop=0.01), make_island(1, loss_drop=loss_drop))
    decision = decide(
        WaScore(config(threshold=-100.0)), make_sample(**PRESSURES, islands=pair), make_seen()
    )
    terms = dict(decision.terms)
    assert decision.reason is Reason.UNKNOWN
    assert terms["island0.score"] is not None
    assert terms["island1.loss"] is None
    assert terms["island1.score"] is None


def test_no_reporting_island_is_unknown(make_sample: MakeSample, make_seen: MakeSeen) -> None:
    decision = decide(WaScore(config(threshold=-100.0)), make_sample(**PRESSURES), make_seen())
    assert (decision.action, decision.reason) == (Action.DEFER, Reason.UNKNOWN)
    assert dict(decision.terms) == PRESSURES


def test_only_the_islands_that_report_now_count(
    make_sample: MakeSample, make_island: MakeIsland, make_seen: MakeSeen
) -> None:
    policy = WaScore(config())
    both = (make_island(0, tokens_since_merge=1000), make_island(1, tokens_since_merge=0))
    zero = {"network": 0.0, "serving": 0.0, "checkpoint": 0.0}
    assert decide(policy, make_sample(0, **zero, islands=both), make_seen()).score == 0.25
    assert decide(policy, make_sample(1, **zero, islands=both[:1]), make_seen(1)).score == 0.5


def test_a_term_without_weight_may_be_missing(
    make_sample: MakeSample, make_island: MakeIsland, make_seen: MakeSeen
) -> None:
    sample = make_sample(serving=0.4, network=0.2, islands=(make_island(0, loss_drop=0.05),))
    decision = decide(WaScore(config(w_ckpt=0.0)), sample, make_seen())
    assert decision.score == pytest.approx(0.5 - 0.1 - 0.3)
    assert dict(decision.terms)["checkpoint"] is None
