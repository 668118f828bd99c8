"""The compiled plant equals the plain one, and itself however a run is cut, to the last bit.

Every other case lies on a grid of 1/8 s, where arrivals, ends of steps and window edges coincide.
"""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from orchestrator.replay import kernel
from orchestrator.replay.closed_server import ClosedServer
from orchestrator.replay.plant import PlantConfig, Served, Server, serve
from orchestrator.replay.reference import Sequenced, step_by_step
from orchestrator.replay.state import Floats, Ints
from orchestrator.workload.closed import ClosedLoop
from orchestrator.workload.config import ClosedLoopConfig, CrowdConfig, TokenRange

CASES = 1000
CROWD = CrowdConfig(users=3, period_s=9.0, burst_s=2.5, phase_s=4.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plant, its requests and its merge windows."""

    plant: PlantConfig
    at_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    overheads_s: Floats
    windows: Floats
    factors: Floats
    paces: Floats
    until_s: float


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    on_grid = bool(seed % 2)

    def seconds(most: float, size: int | None = None) -> Floats:
        drawn = rng.uniform(0.0, most, size)
        return np.round(drawn * 8) / 8 if on_grid else drawn

    plant = PlantConfig(
        slots=int(rng.integers(1, 7)),
        step_base_s=max(float(seconds(0.6)), 0.125),
        step_per_seq_s=float(seconds(0.3)) if rng.random() < 0.7 else 0.0,
        prefill_per_token_s=float(seconds(0.3)) if rng.random() < 0.7 else 0.0,
        overhead_s=0.0,
        merge_factor=1.0,
        merge_step_s=float(seconds(1.0)) if rng.random() < 0.5 else 0.0,
        after_window_s=float(seconds(3.0)) if rng.random() < 0.3 else 0.0,
        pace_slot_s=max(float(seconds(3.0)), 0.5),
    )
    size, count = int(rng.integers(0, 16)), int(rng.integers(0, 5))
    edges = np.unique(seconds(20.0, 2 * count + 1))
    windows = np.stack([edges[:-1], edges[1:]], axis=1)  # adjacent; then some with a pause
    windows = windows[rng.random(len(windows)) < 0.6]
    return Case(
        plant=plant,
        at_s=np.sort(seconds(15.0, size)),
        prompt_tokens=rng.integers(0, 6, size),
        output_tokens=rng.integers(1, 12, size),
        overheads_s=seconds(1.0, size),
        windows=windows,
        factors=1.0 + seconds(2.0, len(windows)),
        paces=0.5 + seconds(1.5, int(rng.integers(0, 12))),
        until_s=math.inf if rng.random() < 0.5 else float(seconds(25.0)),
    )


def server_of(case: Case) -> Server:
    return Server(
        case.plant,
        at_s=case.at_s,
        prompt_tokens=case.prompt_tokens,
        output_tokens=case.output_tokens,
        overheads_s=case.overheads_s,
        paces=case.paces,
    )


def at_once(case: Case) -> Served:
    return serve(
        case.plant,
        at_s=case.at_s,
        prompt_tokens=case.prompt_tokens,
        output_tokens=case.output_tokens,
        overheads_s=case.overheads_s,
        windows=case.windows,
        factors=case.factors,
        paces=case.paces,
        until_s=case.until_s,
    )


def in_pieces(case: Case, *, rng: np.random.Generator) -> Served:
    """Told of each window only when it begins, and stopped at odd times in between."""
    server = server_of(case)
    stops = [(float(t), -1) for t in rng.uniform(0.0, 25.0, int(rng.integers(0, 20)))]
    stops += [(float(w[0]), i) for i, w in enumerate(case.windows)]
    for stop_s, window in sorted(stops):
        if stop_s > case.until_s:
            break
        server.advance(stop_s)
        if window >= 0:
            start_s, end_s = case.windows[window].tolist()
            server.add_window(start_s, end_s, float(case.factors[window]))
    server.advance(case.until_s)
    return server.served()


def plainly(case: Case) -> list[Sequenced]:
    requests = [
        Sequenced(request=i, enter_s=enter_s, prompt_tokens=prompt, tokens_left=output)
        for i, (enter_s, prompt, output) in enumerate(
            zip(
                (case.at_s + case.overheads_s).tolist(),
                case.prompt_tokens.tolist(),
                case.output_tokens.tolist(),
                strict=True,
            )
        )
    ]
    windows = [(*w, f) for w, f in zip(case.windows.tolist(), case.factors.tolist(), strict=True)]
    return step_by_step(
        case.plant,
        requests,
        windows=windows,
        paces=case.paces.tolist(),
        until_s=case.until_s,
    )


def assert_same_bits(found: Served, expected: Served) -> None:
    assert found.first_token_at_s.tobytes() == expected.first_token_at_s.tobytes()
    assert found.done_at_s.tobytes() == expected.done_at_s.tobytes()


def as_served(requests: list[Sequenced]) -> Served:
    return Served(
        first_token_at_s=np.array([one.first_token_at_s for one in requests]),
        done_at_s=np.array([one.done_at_s for one in requests]),
    )


def test_the_kernel_is_the_plain_plant_bit_for_bit_in_1000_random_cases() -> None:
    reached = 0
    for seed in range(CASES):
        case = random_case(seed)
        found = at_once(case)
        assert_same_bits(found, as_served(plainly(case)))
        reached += int(np.isfinite(found.done_at_s).sum())
    assert reached > 3 * CASES  # the cases are no empty ones


def test_a_run_in_pieces_is_the_run_at_once_bit_for_bit_in_1000_random_cases() -> None:
    rng = np.random.default_rng(7)
    for seed in range(CASES):
        case = random_case(seed)
        assert_same_bits(in_pieces(case, rng=rng), at_once(case))


def test_an_edge_on_the_end_of_a_step_off_the_grid_cuts_nothing() -> None:
    """The edges of `random_case` meet the end of a step only where sums are exact."""
    rng = np.random.default_rng(5)
    for seed in range(0, 200, 2):
        case = random_case(seed)
        one = replace(
            case,
            at_s=np.array([rng.uniform(0.0, 9.0)]),
            prompt_tokens=np.array([3]),
            output_tokens=np.array([200]),
            overheads_s=np.zeros(1),
            windows=np.empty((0, 2)),
            factors=np.empty(0),
            until_s=math.inf,
        )
        first_s = float(at_once(one).first_token_at_s[0])
        step_s = case.plant.step_base_s + case.plant.step_per_seq_s
        for k in rng.integers(1, 50, 3).tolist():
            edge_s = first_s + k * step_s
            cut = replace(one, windows=np.array([[edge_s, edge_s + 4.0]]), factors=np.array([1.3]))
            assert_same_bits(at_once(cut), as_served(plainly(cut)))
            assert_same_bits(in_pieces(cut, rng=rng), at_once(cut))


@pytest.mark.parametrize("mean_think_s", [0.0, 0.7])
@pytest.mark.parametrize("overhead_s", [0.0, 0.2])
@pytest.mark.parametrize("crowd", [None, CROWD])
def test_a_closed_loop_is_the_plain_plant_answering_the_workloads_users(
    mean_think_s: float, overhead_s: float, crowd: CrowdConfig | None
) -> None:
    config = ClosedLoopConfig(
        kind="closed",
        users=5,
        mean_think_s=mean_think_s,
        prompt_tokens=TokenRange(low=1, high=9),
        output_tokens=TokenRange(low=1, high=8),
        crowd=crowd,
    )
    plant = PlantConfig(
        slots=3,
        step_base_s=0.05,
        step_per_seq_s=0.01,
        prefill_per_token_s=0.003,
        overhead_s=overhead_s,
        merge_factor=2.0,
        merge_step_s=0.02,
        pace_slot_s=0.9,
    )
    paces = np.array([1.3, 0.7] * 20)
    users = ClosedLoop(config=config, seed=4)
    asked = list(users.start())

    def sequenced(index: int) -> Sequenced:
        one = asked[index]
        return Sequenced(
            request=one.request_id,
            enter_s=one.scheduled_at_s + overhead_s,
            prompt_tokens=one.prompt_tokens,
            tokens_left=one.output_tokens,
        )

    def answered(one: Sequenced) -> Sequenced:
        asked.append(users.after(one.request, done_at_s=one.done_at_s))
        return sequenced(-1)

    expected = step_by_step(
        plant,
        [sequenced(i) for i in range(len(asked))],
        windows=[(3.0, 8.0, 1.7)],
        paces=paces.tolist(),
        until_s=40.0,
        answered=answered,
    )
    server = ClosedServer(plant, config=config, seed=4, paces=paces)
    for tick in range(3):
        server.advance(float(tick))
    server.add_window(3.0, 8.0, 1.7)
    for stop_s in itertools.chain(np.linspace(3.0, 39.0, 50), [40.0]):
        server.advance(float(stop_s))
    found = server.served()
    assert_same_bits(found, as_served(expected))
    assert found.at_s.tolist() == [one.scheduled_at_s for one in asked]
    assert found.prompt_tokens.tolist() == [one.prompt_tokens for one in asked]
    assert found.output_tokens.tolist() == [one.output_tokens for one in asked]
    assert found.prompt_seeds.tolist() == [one.prompt_seed for one in asked]
    assert len(asked) > 5 * 16  # every user's first turns were used up


def test_the_first_step_that_ends_at_a_time_or_later_is_found_exactly() -> None:
    rng = np.random.default_rng(3)
    for anchor_s, step_s in rng.uniform((0.0, 1e-6), (1e6, 1.0), (200, 2)).tolist():
        for k in rng.integers(1, 10**6, 5).tolist():
            end_s = anchor_s + k * step_s
            assert kernel.steps_to(anchor_s, step_s, end_s) == k
            assert kernel.steps_to(anchor_s, step_s, math.nextafter(end_s, math.inf)) == k + 1
