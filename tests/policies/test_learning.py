"""What all policies that learn from counts must keep: bursts dodged, holes not read as idle."""

import json
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from pydantic import TypeAdapter

from policies.build import build_policy
from policies.config import PolicyConfig
from policies.corridor import Corridor
from policies.frame import Frame
from policies.observation import Action, Decision, Policy, Reason, Sample, Seen
from policies.streams import stream
from policies.wrapper import CorridorWrapper

pytestmark = pytest.mark.slow  # many policies on much traffic: the pure suite has seconds

MakeSample = Callable[..., Sample]
MakeSeen = Callable[..., Seen]
KINDS = ("ewma_threshold", "stopping", "foresight", "season", "analog", "ensemble")
CORRIDOR = Corridor(floor_ticks=8, ceiling_ticks=32, width_ticks=4, horizon_ticks=240)
FRAME = Frame(corridor=CORRIDOR, target_gap_ticks=16, tick_s=1.0)
BUDGET = 12
HISTORY_TICKS = 480
PERIOD_TICKS, BURST_TICKS = 40, 12


def build(kind: str, *, least_data_s: float = 120.0) -> Policy:
    learns: dict[str, object] = {"least_data_s": least_data_s, "memory_s": 600}
    alone = {
        name: {"kind": name, **learns}
        for name in ("ewma_threshold", "stopping", "season", "analog")
    }
    alone["foresight"] = {**alone["stopping"], "levels_of": "forecast"}
    alone["stopping"]["levels_of"] = "signal"
    members = list(alone.values())
    text = json.dumps(alone.get(kind, {"kind": "ensemble", "members": members}))
    config: PolicyConfig = TypeAdapter(PolicyConfig).validate_json(text)
    return build_policy(config, step_interval_s=1.0, tick_s=1.0, frame=FRAME)


def planted(make_sample: MakeSample, *, seed: int) -> list[Sample]:
    """Ticks -HISTORY_TICKS .. T: one request a second, ten in a burst; 1 s of service."""
    ticks = np.arange(-HISTORY_TICKS, CORRIDOR.horizon_ticks + 1)
    rng = stream(seed, "planted")
    phase = rng.integers(PERIOD_TICKS)
    burst = (ticks + phase) % PERIOD_TICKS < BURST_TICKS
    counts = rng.poisson(np.where(burst, 10.0, 1.0))
    return [
        make_sample(int(t), arrivals=int(n), in_flight=int(n))
        for t, n in zip(ticks, counts, strict=True)
    ]


def starts_of(policy: Policy, samples: list[Sample], *, budget: int | None = BUDGET) -> list[int]:
    wrapper = CorridorWrapper(
        CORRIDOR,
        budget=budget,
        policy=policy,
        tick_s=1.0,
        target_gap_ticks=FRAME.target_gap_ticks,
        needs_probes=False,
    )
    starts: list[int] = []
    end = 0
    for sample in samples:
        wrapper.observe(sample)
        if sample.tick < 0:
            continue
        decision, _, _ = wrapper.decide(
            sample, merges_done=len(starts), last_end_tick=end, in_window=sample.tick < end
        )
        if decision.action is Action.MERGE:
            starts.append(sample.tick)
            end = sample.tick + CORRIDOR.width_ticks
    return starts


def cost_of(starts: list[int], samples: list[Sample]) -> int:
    """Requests that arrive in the windows."""
    counts = {s.tick: s.arrivals or 0 for s in samples}
    return sum(counts[t + i] for t in starts for i in range(1, CORRIDOR.width_ticks + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_planted_bursts_are_dodged_better_than_by_chance(
    kind: str, make_sample: MakeSample
) -> None:
    """Five stretches of traffic: below nine tenths of the cost of every one of 20 draws' means."""
    cost, chance = 0, np.zeros(20)
    for seed in range(5):
        samples = planted(make_sample, seed=seed)
        starts = starts_of(build(kind), samples)
        assert CORRIDOR.contains(starts)
        assert len(starts) == BUDGET
        cost += cost_of(starts, samples)
        draws = CORRIDOR.sample(BUDGET, size=20, rng=stream(seed, "draws"))
        chance += [cost_of(draw.tolist(), samples) for draw in draws]
    assert cost < 0.9 * chance.min()


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_budget_they_keep_the_corridor_to_the_end(
    kind: str, make_sample: MakeSample
) -> None:
    starts = starts_of(build(kind), planted(make_sample, seed=0), budget=None)
    ends = [0, *(t + CORRIDOR.width_ticks for t in starts)]
    gaps = np.subtract([*starts, CORRIDOR.horizon_ticks], ends)
    assert CORRIDOR.floor_ticks <= gaps[:-1].min()
    assert gaps[:-1].max() <= CORRIDOR.ceiling_ticks
    assert gaps[-1] < CORRIDOR.ceiling_ticks + CORRIDOR.width_ticks


@pytest.mark.parametrize("kind", KINDS)
def test_traffic_after_a_tick_moves_no_start_before_it(kind: str, make_sample: MakeSample) -> None:
    samples = planted(make_sample, seed=0)
    cut = 100
    swapped = [
        s if s.tick <= cut else make_sample(s.tick, arrivals=7 * (s.tick % 2), in_flight=0)
        for s in samples
    ]
    before = [t for t in starts_of(build(kind), samples) if t <= cut]
    assert [t for t in starts_of(build(kind), swapped) if t <= cut] == before
    assert len(before) >= 2


def asked(policy: Policy, make_seen: MakeSeen, tick: int, **fields: int) -> Decision:
    corridor = {"last_end_tick": 0, "latest_tick": tick + 10, "target_gap_ticks": 16}
    return policy.decide(make_seen(tick, **{**corridor, "width_ticks": 4, **fields}))


@pytest.mark.parametrize("kind", KINDS)
def test_too_little_data_means_the_target_cadence(
    kind: str, make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    policy = build(kind, least_data_s=50.0)
    needed = dict(asked(policy, make_seen, 0).terms)["needed_ticks"]
    assert needed is not None
    assert needed >= 50
    for tick in range(int(needed) - 1):
        policy.observe(make_sample(tick, arrivals=1, in_flight=1))
    early = asked(policy, make_seen, 15)
    due = asked(policy, make_seen, 16)
    assert (early.action, early.reason) == (Action.DEFER, Reason.TOO_LITTLE_DATA)
    assert (due.action, due.reason) == (Action.MERGE, Reason.TOO_LITTLE_DATA)
    assert dict(due.terms)["known_ticks"] == needed - 1
    policy.observe(make_sample(int(needed) - 1, arrivals=1, in_flight=1))
    assert asked(policy, make_seen, int(needed) - 1).reason is not Reason.TOO_LITTLE_DATA


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hole", [{"arrivals": None}, {"in_flight": None}])
def test_unknown_ticks_are_no_data_and_no_idle_ones(
    kind: str, hole: dict[str, None], make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    policy = build(kind, least_data_s=50.0)
    for tick in range(100):
        policy.observe(make_sample(tick, **{"arrivals": 1, "in_flight": 1, **hole}))
    assert dict(asked(policy, make_seen, 99).terms)["known_ticks"] == 0.0
    for tick in range(100, 500):
        policy.observe(make_sample(tick, arrivals=1, in_flight=1))
    assert asked(policy, make_seen, 499).reason is not Reason.UNKNOWN
    policy.observe(make_sample(500, **{"arrivals": 1, "in_flight": 1, **hole}))
    blind = asked(policy, make_seen, 500)
    assert (blind.action, blind.reason) == (Action.DEFER, Reason.UNKNOWN)
    assert dict(blind.terms)["signal"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_outage_longer_than_the_memory_is_survived(
    kind: str, make_sample: MakeSample, make_seen: MakeSeen
) -> None:
    policy = build(kind)
    for tick in range(1400):
        known = {"arrivals": tick % 5, "in_flight": 1} if not 500 <= tick < 1300 else {}
        policy.observe(make_sample(tick, **known))
        decision = asked(policy, make_seen, tick, last_end_tick=tick - 16)
        if 500 <= tick < 1300:
            assert decision.reason in (Reason.UNKNOWN, Reason.TOO_LITTLE_DATA)
    assert decision.reason is not Reason.UNKNOWN


@pytest.mark.parametrize("kind", ["stopping", "foresight"])
def test_no_traffic_is_no_error_and_stopping_keeps_its_cadence(
    kind: str, make_sample: MakeSample
) -> None:
    ticks = range(-HISTORY_TICKS, CORRIDOR.horizon_ticks + 1)
    starts = starts_of(build(kind), [make_sample(t, arrivals=0, in_flight=0) for t in ticks])
    assert len(starts) == BUDGET
    if kind == "stopping":  # where nothing costs anything, foresight has no price of the cadence
        assert {later - now for now, later in pairwise(starts)} == {20}
