"""Overlap against the exact law: figures by enumeration, and a verdict that cannot be tricked."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.overlap import Block, compare_overlap
from orchestrator.calibration.overlap_verdict import Case, OverlapVerdict, judge_overlap
from orchestrator.calibration.verdict import Status, VerdictKind
from policies.corridor import Corridor
from policies.streams import stream

CORRIDOR = Corridor(floor_ticks=2, ceiling_ticks=6, width_ticks=2, horizon_ticks=24)
BUDGET = 3
ALL = [
    starts
    for starts in itertools.combinations(range(CORRIDOR.horizon_ticks + 1), BUDGET)
    if CORRIDOR.contains(starts)
]
GATE = GateConfig(
    alpha=0.05,
    relative_gain_floor=0.05,
    tie_half_width=0.03,
    drift_margin_fraction=0.005,
    min_seeds_for_drift=7,
    min_seeds_for_interval=5,
    effect_ratio_floor=1.1,
    placebo_ratio_low=0.9,
    placebo_ratio_high=1.1,
    max_lateness_fraction_of_slo=0.2,
    max_no_sync_violation_fraction=0.05,
    permutations=2000,
    resamples=500,
    seed=0,
)


def _block(seed: int, *, skill: str = "best", cluster: str | None = None) -> Block:
    """Bursty counts; ``skill``: the oracle's, the worst or a random schedule, or the dodger's.

    dodge: fewest requests in flight, whatever arrives.
    """
    rng = stream(seed, "test overlap")
    new = rng.poisson(np.where(rng.random(25) < 0.3, 12.0, 2.0)).astype(float)
    flight = rng.poisson(3.0, size=25).astype(float)
    cost = {"best": new + flight, "worst": -(new + flight), "dodge": flight}.get(skill)
    starts = ALL[int(rng.integers(len(ALL)))] if cost is None else CORRIDOR.best(cost, BUDGET)[1]
    return Block(
        name=f"seed {seed}",
        cluster=cluster or f"seed {seed}",
        corridor=CORRIDOR,
        budget=BUDGET,
        starts=starts,
        cost=new + flight,
        new_cost=new,
    )


def _blocks(n: int, *, skill: str = "best", first: int = 0) -> list[Block]:
    return [_block(seed, skill=skill) for seed in range(first, first + n)]


def _judge(
    blocks: Sequence[Block], *, gate: GateConfig = GATE, trace: str | None = None, family: int = 1
) -> OverlapVerdict:
    case = Case(policy="p", regime="r", blocks=blocks, trace=trace)
    (verdict,) = judge_overlap([case], gate=gate, label="overlap model", family=family)
    return verdict


def _status(verdict: OverlapVerdict) -> dict[str, Status]:
    return {c.name: c.status for c in verdict.conditions}


# The figures


@pytest.mark.parametrize("new", [False, True])
def test_totals_and_z_are_those_of_enumerating_every_schedule(new: bool) -> None:
    blocks = _blocks(6, skill="random")
    overlap = compare_overlap(blocks, new=new, gate=GATE, name="x")
    above = variance = 0.0
    for i, block in enumerate(blocks):
        cost = block.new_cost if new else block.cost
        totals = np.array([cost[list(s)].sum() for s in ALL])
        assert overlap.mean[i] == pytest.approx(totals.mean())
        assert overlap.variance[i] == pytest.approx(totals.var())
        assert overlap.policy[i] == cost[list(block.starts)].sum()
        above += overlap.policy[i] - totals.mean()
        variance += totals.var()
    assert overlap.z == pytest.approx(above / math.sqrt(variance))
    assert overlap.z_p == pytest.approx(stats.norm.cdf(above / math.sqrt(variance)))
    assert overlap.flip.statistic == pytest.approx(above / 6)
    assert overlap.gain.estimate == pytest.approx(1 - sum(overlap.policy) / sum(overlap.mean))


def test_blocks_of_one_cluster_are_one_replicate() -> None:
    blocks = [_block(seed, cluster=f"hour {seed // 4}") for seed in range(8)]
    overlap = compare_overlap(blocks, new=False, gate=GATE, name="x")
    alone = compare_overlap(_blocks(8), new=False, gate=GATE, name="x")
    assert (overlap.n, overlap.blocks, overlap.clusters) == (2, 8, ("hour 0", "hour 1"))
    assert overlap.flip.least_p == 0.25
    assert overlap.gain.finite is None
    assert overlap.policy[0] == sum(alone.policy[:4])
    assert overlap.variance[0] == pytest.approx(sum(v**0.5 for v in alone.variance[:4]) ** 2)
    assert overlap.z is not None
    assert alone.z is not None
    assert alone.z < overlap.z < 0  # the same traffic counted four times shows no more than once


def test_a_copied_block_adds_no_evidence_in_its_cluster_and_is_refused_outside() -> None:
    once = compare_overlap(_blocks(5), new=False, gate=GATE, name="x")
    copies = [replace(b, name=f"{b.name} again") for b in _blocks(5)]
    twice = compare_overlap([*_blocks(5), *copies], new=False, gate=GATE, name="x")
    assert twice.z == pytest.approx(once.z)
    assert twice.flip.p_value == once.flip.p_value
    other = replace(copies[3], cluster="seed 9")
    with pytest.raises(ValueError, match="seed 3 and seed 3 again have the same cost at every"):
        compare_overlap([*_blocks(5), other], new=False, gate=GATE, name="x")


def test_a_constant_cost_shows_nothing() -> None:
    flat = [replace(b, cost=np.full(25, 4.0), new_cost=np.full(25, 1.0)) for b in _blocks(6)]
    overlap = compare_overlap(flat, new=False, gate=GATE, name="x")
    assert (overlap.z, overlap.z_p) == (None, None)
    assert overlap.gain.estimate == pytest.approx(0.0)
    verdict = _judge(flat)
    assert verdict.verdict is not VerdictKind.PASS
    assert _status(verdict)["exact_null"] is Status.NOT_ASSESSABLE
    none = [replace(b, cost=np.zeros(25), new_cost=np.zeros(25)) for b in _blocks(6)]
    empty = _judge(none)
    assert (empty.verdict, empty.z_holm) == (VerdictKind.INCONCLUSIVE, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"starts": (3, 9)}, r"seed 2: 2 merges, budget 3"),
        ({"starts": (1, 9, 17)}, r"seed 2: schedule \[1, 9, 17\] is outside Corridor"),
        ({"cost": np.full(25, np.nan)}, r"seed 2: cost\[0\]=nan"),
        ({"cost": np.r_[np.ones(20), np.inf, np.ones(4)]}, r"seed 2: cost\[20\]=inf"),
        ({"new_cost": np.r_[-1.0, np.ones(24)]}, r"seed 2: new_cost\[0\]=-1"),
        ({"cost": np.ones(24)}, r"seed 2: cost has shape \(24,\)"),
    ],
)
def test_what_cannot_count_is_refused_by_block_and_value(
    changes: dict[str, object], message: str
) -> None:
    blocks = _blocks(5)
    blocks[2] = replace(blocks[2], **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        compare_overlap(blocks, new=False, gate=GATE, name="x")
    with pytest.raises(ValueError, match="no block"):
        compare_overlap([], new=False, gate=GATE, name="x")


# The verdict


def test_skill_passes_with_its_label_and_never_above_tier_0() -> None:
    verdict = _judge(_blocks(7))
    assert verdict.verdict is VerdictKind.PASS
    assert (verdict.tier, verdict.needed) == (None, "")
    assert verdict.sentence == (
        "In the overlap model, p places merges better than matched random in the regime 'r'."
    )
    assert "overlap model: no server was measured" in verdict.reason
    assert verdict.p_holm == 2.0**-7
    case = Case(policy="p", regime="r", blocks=_blocks(7))
    (replayed,) = judge_overlap([case], gate=GATE, label="replay", calibrated=True)
    assert replayed.tier == 0
    assert str(replayed.sentence).startswith("In replay, p places")


def test_chance_and_harm_do_not_pass() -> None:
    chance = [_judge(_blocks(12, skill="random", first=first)) for first in range(100, 220, 12)]
    assert all(v.verdict is not VerdictKind.PASS for v in chance)
    unsure = [v for v in chance if v.verdict is VerdictKind.INCONCLUSIVE]
    assert any("80 % power" in v.needed for v in unsure)
    harm = _judge(_blocks(12, skill="worst"))
    assert harm.verdict is VerdictKind.FAIL
    assert "under the floor of 5 %" in harm.reason
    assert harm.sentence is None


def test_a_tie_is_a_fail_with_that_name() -> None:
    """Costs so flat that even the best schedule gains next to nothing."""
    flat = [replace(b, cost=100 + b.cost / 10, new_cost=100 + b.new_cost / 10) for b in _blocks(7)]
    verdict = _judge(flat)
    assert verdict.verdict is VerdictKind.FAIL
    assert verdict.reason.startswith("tie with matched random: ")


def test_dodging_requests_in_flight_alone_is_no_skill() -> None:
    def steady(block: Block) -> Block:
        """Nearly the same number arrives whenever a merge starts; few in flight when it chose."""
        flight = block.cost - block.new_cost
        new = 20 + 0.1 * block.new_cost
        starts = CORRIDOR.best(flight, BUDGET)[1]
        return replace(block, cost=new + 5 * flight, new_cost=new, starts=starts)

    verdict = _judge([steady(b) for b in _blocks(12)])
    assert _status(verdict)["matched_random"] is Status.MET
    assert verdict.verdict is VerdictKind.FAIL
    assert "on requests that had not yet arrived" in verdict.reason


def test_a_schedule_outside_the_corridor_is_named_and_tested_no_further() -> None:
    blocks = _blocks(7)
    blocks[4] = replace(blocks[4], starts=(1, 9, 17))
    verdict = _judge(blocks)
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.reason.startswith("exposure_match is not met: seed 4: schedule [1, 9, 17]")
    assert set(_status(verdict).values()) == {Status.NOT_MET, Status.NOT_ASSESSABLE}
    assert verdict.p_holm is None


def test_too_few_seeds_for_the_family_are_inconclusive() -> None:
    assert _judge(_blocks(5)).verdict is VerdictKind.PASS
    verdict = _judge(_blocks(5), family=2)
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "least attainable p 0.0625 after Holm over 2" in verdict.reason
    assert "n >= 6 independent seeds (n=5)" in verdict.needed
    assert (verdict.family, verdict.p_holm) == (2, 2 * 2.0**-5)


def test_few_windows_of_a_trace_license_this_hour_only() -> None:
    hour = _judge(_blocks(2), trace="Azure code, 1 h")
    assert hour.verdict is VerdictKind.INCONCLUSIVE
    assert "license a sentence about this hour of it, not about the regime 'r'" in hour.reason
    assert "n >= 20 independent disjoint windows" in hour.needed
    assert _status(hour)["exact_null"] is Status.MET  # it is shown, and licenses no regime
    assert _judge(_blocks(7), trace="t").verdict is VerdictKind.INCONCLUSIVE


def test_holm_counts_every_policy_and_regime_and_each_test_for_itself() -> None:
    cases = [
        Case(policy=policy, regime=regime, blocks=_blocks(7, skill=skill, first=first))
        for policy, skill in (("good", "best"), ("chance", "random"))
        for regime, first in (("a", 0), ("b", 50))
    ]
    verdicts = judge_overlap(cases, gate=GATE, label="overlap model")
    assert [v.verdict for v in verdicts[:2]] == [VerdictKind.PASS] * 2
    assert all(v.verdict is not VerdictKind.PASS for v in verdicts[2:])
    assert verdicts[0].p_holm == 4 * 2.0**-7
    with pytest.raises(ValueError, match="each policy and regime"):
        judge_overlap([cases[0], cases[0]], gate=GATE, label="x")
    with pytest.raises(ValueError, match="family of 1"):
        judge_overlap(cases, gate=GATE, label="x", family=1)


def test_sampled_flips_state_their_error() -> None:
    verdict = _judge(_blocks(21, skill="random"))
    why = next(c.why for c in verdict.conditions if c.name == "matched_random")
    assert "sampled: Monte-Carlo error" in why
