"""Guard rails: the clock forces, fairness defers, and neither leaves corridor or budget."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.config import GuardsConfig
from policies.corridor import Corridor
from policies.guards import FairShare, Guards, cut_corridor
from policies.observation import Action, Decision, Reason, Sample, Seen, SidecarLoad
from policies.wrapper import CorridorWrapper

MakeSample = Callable[..., Sample]
CORRIDOR = Corridor(floor_ticks=3, ceiling_ticks=12, width_ticks=4, horizon_ticks=120)
BUDGET = 11
OFF = GuardsConfig()


class Eager:
    """Wants a merge wherever ``wants`` says so."""

    def __init__(self, wants: Callable[[int], bool]) -> None:
        self._wants = wants

    def observe(self, sample: Sample) -> None:
        pass

    def decide(self, seen: Seen) -> Decision:
        action = Action.MERGE if self._wants(seen.tick) else Action.DEFER
        return Decision(action=action, reason=Reason.SCORE_ABOVE, score=2.0, terms=(("a", 1.0),))


def run(
    samples: list[Sample],
    wants: Callable[[int], bool],
    guards: GuardsConfig,
    *,
    corridor: Corridor = CORRIDOR,
    budget: int = BUDGET,
    needs_probes: bool = False,
) -> tuple[list[int], dict[int, Decision]]:
    """Starts and decisions by tick; samples may leave ticks out."""
    wrapper = CorridorWrapper(
        corridor,
        budget=budget,
        policy=Eager(wants),
        tick_s=1.0,
        target_gap_ticks=6,
        needs_probes=needs_probes,
        guards=Guards(guards, width_ticks=corridor.width_ticks, tick_s=1.0),
    )
    starts: list[int] = []
    decided = {}
    end = 0
    for sample in samples:
        wrapper.observe(sample)
        decision, earliest, _ = wrapper.decide(
            sample, merges_done=len(starts), last_end_tick=end, in_window=sample.tick < end
        )
        decided[sample.tick] = decision
        if decision.action is Action.MERGE:
            assert earliest is not None
            assert sample.tick >= earliest
            starts.append(sample.tick)
            end = sample.tick + corridor.width_ticks
    return starts, decided


def loads(*counts: tuple[int, int]) -> tuple[SidecarLoad, ...]:
    """(arrivals, in_flight) of each sidecar."""
    return tuple(SidecarLoad(sidecar=s, arrivals=a, in_flight=f) for s, (a, f) in enumerate(counts))


pairs = st.tuples(st.integers(0, 9), st.integers(0, 9))


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(
    answers=st.lists(st.booleans(), min_size=1, max_size=20),
    counts=st.lists(st.lists(pairs, max_size=3), min_size=1, max_size=20),
    late_s=st.lists(st.floats(0, 5), min_size=1, max_size=9),
    max_gap_s=st.none() | st.floats(8, 14),
    share=st.none() | st.floats(0.01, 0.99),
    blind=st.lists(st.booleans(), min_size=1, max_size=9),
)
def test_no_policy_and_no_guard_leaves_the_corridor_or_the_budget(
    make_sample: MakeSample,
    answers: list[bool],
    counts: list[list[tuple[int, int]]],
    late_s: list[float],
    max_gap_s: float | None,
    share: float | None,
    blind: list[bool],
) -> None:
    corridor = CORRIDOR
    if max_gap_s is not None:
        corridor = cut_corridor(corridor, max_gap_s=max_gap_s, tick_s=1.0, budget=BUDGET)
    samples = [
        make_sample(
            t,
            now_s=t + late_s[t % len(late_s)],
            by_sidecar=loads(*counts[t % len(counts)]),
            blind=blind[t % len(blind)],
        )
        for t in range(corridor.horizon_ticks)
    ]
    starts, decided = run(
        samples,
        lambda t: answers[t % len(answers)],
        GuardsConfig(max_gap_s=max_gap_s, max_overlap_share=share),
        corridor=corridor,
        needs_probes=True,
    )
    assert corridor.contains(starts)
    assert len(starts) == BUDGET
    for sample in samples:  # blind: merge only when forced, by the corridor or by the clock
        decision = decided[sample.tick]
        if sample.blind:
            assert decision.reason not in (Reason.SCORE_ABOVE, Reason.UNFAIR)


def test_the_clock_forces_a_merge_that_late_ticks_would_put_off(make_sample: MakeSample) -> None:
    """From tick 5 on every tick comes 4 s late: at tick 6 ten seconds have passed, not six."""
    samples = [make_sample(t, now_s=t + (4.0 if t > 4 else 0.0)) for t in range(120)]
    starts, decided = run(samples, lambda _: False, GuardsConfig(max_gap_s=10.0))
    assert starts[0] == 6
    assert decided[6].reason is Reason.STARVED
    assert dict(decided[6].terms) == {"since_merge_s": 10.0, "max_gap_s": 10.0}
    unguarded, _ = run(samples, lambda _: False, OFF)
    assert unguarded[0] == CORRIDOR.ceiling_ticks


def test_the_first_tick_after_missed_ones_is_forced(make_sample: MakeSample) -> None:
    """No tick between 7 and 20: past the bound and H_max, so at once; the floor still holds."""
    samples = [make_sample(t) for t in range(120) if not 7 < t < 20]
    bounded = GuardsConfig(max_gap_s=10.0)
    starts, decided = run(samples, lambda _: False, bounded)
    assert starts[0] == 20
    assert decided[20].reason is Reason.STARVED
    starts, decided = run(samples, lambda _: False, OFF)
    assert starts[0] == 20
    assert decided[20].reason is Reason.AT_CEILING
    behind = [make_sample(t, now_s=t + 50.0) for t in range(8)]
    _, decided = run(behind, lambda _: False, bounded)
    assert [decided[t].reason for t in range(3)] == [Reason.BELOW_FLOOR] * 3


def test_a_bound_cuts_the_ceiling_and_is_refused_where_it_cannot_hold() -> None:
    cut = cut_corridor(CORRIDOR, max_gap_s=8.9, tick_s=1.0, budget=BUDGET)
    assert cut == replace(CORRIDOR, ceiling_ticks=8)
    assert cut_corridor(CORRIDOR, max_gap_s=99.0, tick_s=1.0, budget=BUDGET) == CORRIDOR
    with pytest.raises(ValueError, match=r"max_gap_s=2 is below the corridor's floor of 3 ticks"):
        cut_corridor(CORRIDOR, max_gap_s=2.0, tick_s=1.0, budget=BUDGET)
    with pytest.raises(ValueError, match=r"max_gap_s=4 cuts the ceiling: budget_merges=11 does"):
        cut_corridor(CORRIDOR, max_gap_s=4.0, tick_s=1.0, budget=BUDGET)


def two_sidecars(make_sample: MakeSample) -> list[Sample]:
    """Sidecar 0 is busy in every other stretch of 10 ticks, sidecar 1 in the ones between."""
    busy, quiet = (9, 5), (1, 0)
    return [
        make_sample(t, by_sidecar=loads(busy, quiet) if t % 20 < 10 else loads(quiet, busy))
        for t in range(120)
    ]


def carried(samples: list[Sample], starts: list[int]) -> list[int]:
    """Requests in flight at a start or arrived inside a window, by sidecar."""
    total = [0, 0]
    for start in starts:
        for load in samples[start].by_sidecar:
            total[load.sidecar] += load.in_flight
        for sample in samples[start + 1 : start + CORRIDOR.width_ticks + 1]:
            for load in sample.by_sidecar:
                total[load.sidecar] += load.arrivals
    return total


def wants_sidecar_0(tick: int) -> bool:
    return tick % 20 < 6 or tick % 20 == 18


def test_the_largest_share_falls_and_the_policy_keeps_its_score(make_sample: MakeSample) -> None:
    samples = two_sidecars(make_sample)
    plain, _ = run(samples, wants_sidecar_0, OFF)
    fair, decided = run(samples, wants_sidecar_0, GuardsConfig(max_overlap_share=0.6))
    shares = [max(c) / sum(c) for c in (carried(samples, plain), carried(samples, fair))]
    assert shares[0] > 0.7
    assert shares[1] < 0.6
    assert len(fair) == len(plain) == BUDGET
    unfair = [d for d in decided.values() if d.reason is Reason.UNFAIR]
    assert unfair
    for decision in unfair:
        assert (decision.action, decision.score) == (Action.DEFER, 2.0)
        terms = dict(decision.terms)
        assert terms["a"] == 1.0
        assert terms["unfair_to_sidecar"] == 0.0
        assert (terms["share_after"] or 0) > 0.6


def test_the_books_are_those_of_the_merges_and_deciding_twice_adds_nothing(
    make_sample: MakeSample,
) -> None:
    samples = two_sidecars(make_sample)
    starts, _ = run(samples, wants_sidecar_0, OFF)
    books = FairShare(0.6, width_ticks=4, tick_s=1.0)
    end = 0
    for sample in samples:
        books.observe(sample)
        for _ in range(2):
            books.settle(last_end_tick=end)
        if sample.tick in starts:
            end = sample.tick + 4
    total = carried(samples, starts)
    assert books.shares() == {s: c / sum(total) for s, c in enumerate(total)}


@pytest.mark.parametrize("known", ["one sidecar", "unknown", "nobody is met"])
def test_fairness_is_silent_without_two_known_loads(make_sample: MakeSample, known: str) -> None:
    by_sidecar = {
        "one sidecar": loads((9, 9)),
        "unknown": (),
        "nobody is met": loads((0, 0), (0, 0)),
    }
    samples = [make_sample(t, by_sidecar=by_sidecar[known]) for t in range(120)]
    guarded = run(samples, lambda t: t % 5 == 0, GuardsConfig(max_overlap_share=0.5))
    assert guarded == run(samples, lambda t: t % 5 == 0, OFF)


def test_fairness_says_nothing_before_a_rate_is_known(make_sample: MakeSample) -> None:
    books = FairShare(0.5, width_ticks=4, tick_s=1.0)
    books.observe(make_sample(0, by_sidecar=loads((9, 9), (0, 0))))
    books.settle(last_end_tick=0)
    books.observe(make_sample(1, now_s=0.0, by_sidecar=loads((4, 9), (0, 0))))  # a clock that stood
    books.settle(last_end_tick=4)
    assert books.shares() == {0: 1.0, 1: 0.0}
    assert books.objection() is None
    books.observe(make_sample(2, now_s=1.0, by_sidecar=loads((2, 9), (1, 0))))
    terms = dict(books.objection() or ())
    assert terms["unfair_to_sidecar"] == 0.0
    # carried 9 + 4; now 9 in flight and 4 s of (9 + 4 + 2) / 1 s, the other 4 s of 1 / 1 s
    assert terms["share_after"] == pytest.approx((13 + 9 + 60) / (13 + 9 + 60 + 4))
