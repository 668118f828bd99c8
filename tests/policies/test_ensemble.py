"""Shadows, what they gain, and who leads."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from policies.config import EnsembleConfig, SeasonConfig, StoppingConfig
from policies.corridor import Corridor
from policies.ensemble import Ensemble, WindowCosts
from policies.frame import Frame
from policies.observation import Action, Decision, Reason, Sample, Seen

FRAME = Frame(
    corridor=Corridor(floor_ticks=2, ceiling_ticks=14, width_ticks=3, horizon_ticks=600),
    target_gap_ticks=7,
    tick_s=1.0,
)
CONFIG = EnsembleConfig(
    kind="ensemble",
    members=(StoppingConfig(kind="stopping"), SeasonConfig(kind="season")),
    gain_half_life_s=100.0,
)


@dataclass
class AtPhase:
    """Merges where tick % 10 is its phase."""

    phase: int
    asked: list[Seen] = field(default_factory=list)

    def observe(self, sample: Sample) -> None:
        """Nothing to remember."""

    def decide(self, seen: Seen) -> Decision:
        self.asked.append(seen)
        due = seen.tick % 10 == self.phase
        return Decision(action=Action.MERGE if due else Action.DEFER, reason=Reason.SCHEDULED)


def loaded(make_sample: Callable[..., Sample], tick: int) -> Sample:
    """Ticks 0..4 of ten are busy."""
    load = 9 if tick % 10 < 5 else 1
    return make_sample(tick, arrivals=load, in_flight=load)


def test_the_member_whose_shadow_met_less_leads(
    make_sample: Callable[..., Sample], make_seen: Callable[..., Seen]
) -> None:
    bad, good = AtPhase(0), AtPhase(5)
    policy = Ensemble(CONFIG, FRAME, (bad, good))
    assert dict(policy.decide(make_seen(0)).terms)["leader"] == 0.0
    for tick in range(60):
        policy.observe(loaded(make_sample, tick))
    terms = dict(policy.decide(make_seen(60)).terms)
    assert terms["leader"] == 1.0
    assert policy.decide(make_seen(65)).action is Action.MERGE
    gains = terms["gain.stopping"], terms["gain.season"]
    assert gains[0] is not None
    assert gains[1] is not None
    assert gains[0] < 0 < gains[1]


def test_a_shadow_stays_in_the_corridor_and_aims_at_the_target(
    make_sample: Callable[..., Sample],
) -> None:
    never = AtPhase(11)
    policy = Ensemble(CONFIG, FRAME, (never, AtPhase(5)))
    for tick in range(40):
        policy.observe(loaded(make_sample, tick))
    assert {seen.tick - seen.last_end_tick for seen in never.asked} == set(range(2, 15))
    assert {seen.last_end_tick for seen in never.asked} == {0, 17, 34}  # forced at the ceiling
    assert {seen.budget for seen in never.asked} == {0}
    # Seven ticks beyond the target of seven, twice: returned in eight rounds, above the floor.
    aims = {seen.last_end_tick: seen.target_gap_ticks for seen in never.asked}
    assert aims == {0: 7, 17: 6, 34: 5}


def test_an_unknown_window_scores_nothing(
    make_sample: Callable[..., Sample], make_seen: Callable[..., Seen]
) -> None:
    policy = Ensemble(CONFIG, FRAME, (AtPhase(0), AtPhase(5)))
    for tick in range(60):
        sample = loaded(make_sample, tick)
        policy.observe(make_sample(tick) if tick % 10 == 6 else sample)  # in the good one's window
    terms = dict(policy.decide(make_seen(60)).terms)
    assert terms["gain.season"] is None
    assert terms["gain.stopping"] is not None


def test_window_costs_are_those_of_the_window_that_ended_now(
    make_sample: Callable[..., Sample],
) -> None:
    costs = WindowCosts(width_ticks=2, half_life_ticks=1e9)
    found = []
    for tick, (arrivals, in_flight) in enumerate([(5, 1), (2, 0), (3, 4), (None, 0), (1, 0)]):
        costs.fold(make_sample(tick, arrivals=arrivals, in_flight=in_flight))
        found.append(costs.cost)
    assert found == [None, None, 1 + 2 + 3, None, None]
    costs.fold(make_sample(9, arrivals=1, in_flight=1))  # ticks 5..8 have no sample
    assert costs.cost is None
    assert WindowCosts(width_ticks=2, half_life_ticks=9.0).gain is None


def test_gain_compares_with_the_mean_window(make_sample: Callable[..., Sample]) -> None:
    costs = WindowCosts(width_ticks=1, half_life_ticks=1e9)
    for tick, load in enumerate([0, 4, 0, 4, 0]):
        costs.fold(make_sample(tick, arrivals=load, in_flight=0))
    assert costs.gain == pytest.approx(1 - 0 / 2)
