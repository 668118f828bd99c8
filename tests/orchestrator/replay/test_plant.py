"""What the plant's law says: latency alone and in a batch, the queue, merge windows, odd input."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from orchestrator.replay.closed_server import ClosedServer
from orchestrator.replay.plant import (
    PlantConfig,
    Served,
    Server,
    overheads,
    serve,
    window_factor,
)
from orchestrator.replay.state import Floats
from orchestrator.workload.config import ClosedLoopConfig, TokenRange

STEP_S, PER_SEQ_S, PREFILL_S, OVERHEAD_S = 0.02, 0.003, 0.0004, 0.05
Windows = Sequence[tuple[float, float, float]]  # start_s, end_s, factor


def plant_with(**changed: Any) -> PlantConfig:
    given = {
        "slots": 4,
        "step_base_s": STEP_S,
        "step_per_seq_s": PER_SEQ_S,
        "prefill_per_token_s": PREFILL_S,
        "overhead_s": OVERHEAD_S,
        "merge_factor": 1.5,
    }
    return PlantConfig(**{**given, **changed})


def asked(at_s: Sequence[float], prompt: Sequence[int], output: Sequence[int]) -> dict[str, Any]:
    return {
        "at_s": np.array(at_s, np.float64),
        "prompt_tokens": np.array(prompt, np.int64),
        "output_tokens": np.array(output, np.int64),
        "overheads_s": np.full(len(at_s), OVERHEAD_S),
    }


def served(plant: PlantConfig, requests: dict[str, Any], *, windows: Windows = ()) -> Served:
    edges = np.array([w[:2] for w in windows]).reshape(-1, 2)
    return serve(plant, **requests, windows=edges, factors=np.array([w[2] for w in windows]))


def many(seed: int, size: int = 60, *, over_s: float = 10.0, equal: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    output = np.full(size, 20) if equal else rng.integers(1, 40, size)
    at_s = np.sort(rng.uniform(0, over_s, size))
    return asked(at_s.tolist(), rng.integers(0, 200, size).tolist(), output.tolist())


def work_done(windows: Windows, *, start_s: float, end_s: float) -> float:
    """Seconds of work that fit between two times."""
    lost = [
        max(0.0, min(end_s, b) - max(start_s, a)) * (1.0 - 1.0 / factor) for a, b, factor in windows
    ]
    return end_s - start_s - sum(lost)


def test_a_request_alone_takes_its_overhead_its_prefill_and_its_steps() -> None:
    found = served(plant_with(), asked([3.0], [100], [12]))
    step_s = STEP_S + PER_SEQ_S
    first_s = 3.0 + OVERHEAD_S + step_s + 100 * PREFILL_S
    assert found.first_token_at_s == pytest.approx([first_s])
    assert found.done_at_s == pytest.approx([first_s + 11 * step_s])


def test_a_batch_is_faster_than_one_after_another_and_slower_than_alone() -> None:
    requests = asked([0.0] * 4, [0] * 4, [100] * 4)
    alone, batch, queued = (
        served(plant_with(slots=slots), taken).done_at_s[-1] - OVERHEAD_S
        for slots, taken in ((4, asked([0.0], [0], [100])), (4, requests), (1, requests))
    )
    assert batch == pytest.approx(100 * (STEP_S + 4 * PER_SEQ_S))
    assert queued == pytest.approx(4 * alone)
    assert alone < batch < queued


def test_a_newcomer_waits_for_the_step_under_way_and_its_prompt_slows_all() -> None:
    found = served(plant_with(overhead_s=0), asked([0.0, 0.03], [0, 500], [10, 1]))
    step_s = STEP_S + PER_SEQ_S
    begun_s = OVERHEAD_S + 2 * step_s  # the second's 0.03 s lie in the first's second step
    joint_s = STEP_S + 2 * PER_SEQ_S + 500 * PREFILL_S
    assert found.first_token_at_s[1] == pytest.approx(begun_s + joint_s)
    assert found.done_at_s[1] == found.first_token_at_s[1]  # its only token
    assert found.done_at_s[0] == pytest.approx(begun_s + joint_s + 7 * step_s)


@pytest.mark.parametrize("slots", [1, 3, 500])
def test_the_queue_is_served_in_order_by_no_more_than_the_slots(slots: int) -> None:
    requests = many(1, over_s=3.0)
    requests["overheads_s"] = np.random.default_rng(2).uniform(0, 1, 60)
    found = served(plant_with(slots=slots), requests)
    queue = np.argsort(requests["at_s"] + requests["overheads_s"])
    assert (np.diff(found.first_token_at_s[queue]) >= 0).all()
    times = np.unique(np.concatenate([found.first_token_at_s, found.done_at_s]))
    with_token = [
        np.count_nonzero((found.first_token_at_s <= t) & (t < found.done_at_s)) for t in times
    ]
    assert max(with_token) <= slots
    assert slots == 500 or max(with_token) == slots


def test_every_request_is_answered_after_it_came() -> None:
    for seed in range(20):
        requests = many(seed)
        found = served(plant_with(slots=1 + seed % 3), requests, windows=[(1.0, 3.0, 2.0)])
        assert (found.first_token_at_s > requests["at_s"] + OVERHEAD_S).all()
        assert (found.done_at_s >= found.first_token_at_s).all()
        assert (
            (found.done_at_s == found.first_token_at_s) == (requests["output_tokens"] == 1)
        ).all()


@pytest.mark.parametrize(
    "windows",
    [
        [(0.0, 100.0, 1.7)],
        [(1.003, 2.0, 3.0)],  # both edges inside a step
        [(0.5, 0.501, 8.0), (0.502, 0.5021, 5.0)],  # both inside one step
        [(0.5, 1.0, 2.0), (1.0, 1.7, 1.3)],  # adjacent
        [(0.0731, 2.0, 1.0)],  # no slow-down at all
    ],
)
def test_a_busy_server_does_its_work_at_rate_1_over_factor_inside_windows(windows: Windows) -> None:
    requests = asked([0.0] * 10, [70] * 10, [15] * 10)
    end_s = served(plant_with(slots=1), requests, windows=windows).done_at_s.max()
    work_s = 10 * (15 * (STEP_S + PER_SEQ_S) + 70 * PREFILL_S)
    assert work_done(windows, start_s=OVERHEAD_S, end_s=end_s) == pytest.approx(work_s)


def test_a_step_is_stretched_for_its_part_inside_a_window_alone() -> None:
    plant = plant_with(step_base_s=1.0, step_per_seq_s=0, prefill_per_token_s=0)
    found = served(plant, asked([0.0], [0], [3]), windows=[(1.55, 3.0, 2.0)])
    # ends 1.05; 0.5 of the second by 1.55, the rest in 1.0; then 0.225 in 0.45, 0.775 after 3
    assert found.done_at_s == pytest.approx([3.775])


def test_a_window_adds_its_seconds_to_each_step_whatever_its_batch() -> None:
    plant = plant_with(merge_step_s=0.011)
    for size in (1, 4):
        requests = asked([0.0] * size, [50] * size, [30] * size)
        found = served(plant, requests, windows=[(0.0, 100.0, 1.5)])
        step_s = STEP_S + size * PER_SEQ_S
        steps_s = 30 * (1.5 * step_s + 0.5 * 0.011) + 1.5 * size * 50 * PREFILL_S
        assert found.done_at_s == pytest.approx([OVERHEAD_S + steps_s] * size)


def test_a_step_that_an_edge_cuts_advances_at_each_sides_rate() -> None:
    plant = plant_with(step_base_s=1.0, step_per_seq_s=0, prefill_per_token_s=0, merge_step_s=0.5)
    found = served(plant, asked([0.0], [0], [2]), windows=[(0.55, 1.75, 2.0), (3.0, 9.0, 1.0)])
    # half of the first step by 0.55; 0.48 of it in 1.2 s, at 2.5 s a step; the rest by 1.77; the
    # second ends at 2.77
    assert found.first_token_at_s == pytest.approx([1.77])
    assert found.done_at_s == pytest.approx([2.77])


def test_what_follows_a_window_gives_way_to_the_next_one() -> None:
    plant = plant_with(step_base_s=0.1, step_per_seq_s=0, prefill_per_token_s=0, after_window_s=2.0)
    requests = asked([0.0], [0], [100])
    found = served(plant, requests, windows=[(1.0, 2.0, 3.0), (2.5, 3.0, 1.5)])
    seen = [(1.0, 2.5, 3.0), (2.5, 5.0, 1.5)]
    end_s = float(found.done_at_s[0])
    assert work_done(seen, start_s=OVERHEAD_S, end_s=end_s) == pytest.approx(10.0)


def test_a_stronger_slow_down_never_helps_requests_that_were_all_there() -> None:
    requests = asked([0.0] * 12, list(range(0, 120, 10)), list(range(1, 37, 3)))
    runs = [
        served(plant_with(slots=3), requests, windows=[(0.1, 0.4, f), (0.6, 0.9, f)])
        for f in (1.0, 1.2, 2.0, 5.0)
    ]
    for faster, slower in itertools.pairwise(runs):
        assert (slower.done_at_s >= faster.done_at_s - 1e-12).all()
        assert (slower.first_token_at_s >= faster.first_token_at_s - 1e-12).all()
        assert slower.done_at_s.sum() > faster.done_at_s.sum()


def test_a_stronger_slow_down_raises_the_mean_latency_of_traffic() -> None:
    means = [
        np.mean(
            [
                (served(plant_with(), many(seed), windows=[(2.0, 6.0, f)]).done_at_s).mean()
                for seed in range(10)
            ]
        )
        for f in (1.0, 1.3, 2.0, 4.0)
    ]
    assert (np.diff(means) > 0).all()


def test_a_slow_down_may_serve_one_request_sooner_by_ending_a_step_just_after_it_came() -> None:
    plant = plant_with(step_base_s=1.0, step_per_seq_s=0, prefill_per_token_s=0)
    requests = asked([0.0, 2.1], [0, 0], [9, 1])
    slowed = served(plant, requests, windows=[(0.05, 1.05, 2.0)])
    assert slowed.done_at_s[1] < served(plant, requests).done_at_s[1]
    assert slowed.done_at_s[0] > served(plant, requests).done_at_s[0]


@pytest.mark.parametrize("until_s", [0.0, 0.05, 1.0, 3.3, 9.9, 50.0, math.inf])
def test_the_counts_are_those_of_what_happened_before(until_s: float) -> None:
    requests = many(5)
    every = served(plant_with(slots=2), requests)
    server = Server(plant_with(slots=2), **requests)
    server.advance(until_s)
    done = np.count_nonzero(every.done_at_s < until_s)
    assert server.scheduled_so_far == np.count_nonzero(requests["at_s"] < until_s)
    assert server.in_flight == server.scheduled_so_far - done
    entered = np.count_nonzero(requests["at_s"] + OVERHEAD_S < until_s)
    assert server.running + server.waiting == entered - done
    assert server.running <= 2
    reached = server.served()
    assert np.isfinite(reached.done_at_s).sum() == done
    assert np.array_equal(reached.done_at_s, every.done_at_s) == (done == 60)


def test_before_it_is_advanced_nothing_has_happened() -> None:
    server = Server(plant_with(), **asked([0.0], [1], [1]))
    assert (server.scheduled_so_far, server.in_flight, server.running, server.waiting) == (0,) * 4
    assert np.isnan(server.served().first_token_at_s).all()


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_waits_in_a_queue_with_exponential_service_are_erlangs(busy: float) -> None:
    slots, mean_output, size = 8, 1000, 100_000
    rng = np.random.default_rng(12)
    plant = plant_with(slots=slots, step_base_s=1e-3, step_per_seq_s=0, prefill_per_token_s=0)
    output = rng.geometric(1 / mean_output, size)  # mean 1 s, steps of 1 ms: close to exponential
    requests = asked([0.0] * size, [0] * size, output.tolist())
    requests["at_s"] = np.cumsum(rng.exponential(1 / (busy * slots), size))
    entered_s = requests["at_s"] + OVERHEAD_S
    waits_s = served(plant, requests).first_token_at_s - entered_s
    # Erlang C: Cooper, Introduction to Queueing Theory, 3.4
    load = busy * slots
    terms = [load**k / math.factorial(k) for k in range(slots + 1)]
    waiting = terms[-1] / (1 - busy) / (sum(terms[:-1]) + terms[-1] / (1 - busy))
    assert np.mean(waits_s > 0.0025) == pytest.approx(waiting, abs=0.015)
    in_steps_s = 0.0015  # on average half a step until one begins, and the step of the first token
    mean_s = waiting / (slots * (1 - busy)) + in_steps_s
    assert waits_s.mean() == pytest.approx(mean_s, rel=0.06)


def test_no_requests_are_served_at_once() -> None:
    found = served(plant_with(), asked([], [], []), windows=[(0.0, 8.0, 2.0)])
    assert found.first_token_at_s.shape == found.done_at_s.shape == (0,)


def test_a_huge_prompt_is_one_long_step() -> None:
    found = served(plant_with(), asked([0.0], [2**31], [1]), windows=[(1.0, 2.0, 3.0)])
    assert found.done_at_s == pytest.approx([2**31 * PREFILL_S + STEP_S + OVERHEAD_S + 2 / 3])


def test_more_windows_than_there_was_room_for_are_all_kept() -> None:
    windows = [(t, t + 0.5, 2.0) for t in np.arange(0.0, 100.0).tolist()]
    plant = plant_with(step_base_s=0.1, step_per_seq_s=0, prefill_per_token_s=0)
    requests = asked([0.0], [0], [2000])
    server = Server(plant, **requests)
    for window in windows:
        server.advance(window[0])
        server.add_window(*window)
    server.advance(math.inf)
    found, at_once = server.served(), served(plant, requests, windows=windows)
    assert found.done_at_s.tolist() == at_once.done_at_s.tolist()
    end_s = float(found.done_at_s[0])
    assert work_done(windows, start_s=OVERHEAD_S, end_s=end_s) == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        ([(2.0, 2.0, 1.5)], r"window 0 is \[2.0, 2.0\)"),
        ([(2.0, 1.0, 1.5)], r"window 0 is \[2.0, 1.0\)"),
        ([(math.nan, 1.0, 1.5)], "window 0 is"),
        ([(0.0, math.inf, 1.5)], "window 0 is"),
        ([(-1.0, 1.0, 1.5)], "window 0 is"),
        ([(0.0, 2.0, 1.5), (1.0, 3.0, 1.5)], "window 1 starts at 1.0 s, before 2.0"),
        ([(4.0, 5.0, 1.5), (1.0, 3.0, 1.5)], "window 1 starts at 1.0 s, before 5.0"),
        ([(0.0, 2.0, 0.9)], r"factors\[0\]=0.9"),
        ([(0.0, 2.0, math.nan)], r"factors\[0\]=nan"),
        ([(0.0, 2.0, math.inf)], r"factors\[0\]=inf"),
    ],
)
def test_a_window_that_cannot_be_is_refused(windows: Windows, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        served(plant_with(), asked([0.0], [1], [1]), windows=windows)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"at_s": np.array([0.0, -1.0])}, r"at_s\[1\]=-1.0"),
        ({"at_s": np.array([0.0, np.nan])}, r"at_s\[1\]=nan"),
        ({"overheads_s": np.array([0.0, np.inf])}, r"overheads_s\[1\]=inf"),
        ({"overheads_s": np.array([0.0])}, r"overheads_s has shape \(1,\)"),
        ({"prompt_tokens": np.array([0, -1])}, r"prompt_tokens\[1\]=-1"),
        ({"prompt_tokens": np.array([0, 2**40])}, r"prompt_tokens\[1\]="),
        ({"output_tokens": np.array([1, 0])}, r"output_tokens\[1\]=0"),
        ({"output_tokens": np.array([1.0, 2.0])}, "output_tokens holds float64"),
    ],
)
def test_a_request_that_cannot_be_is_refused(changed: dict[str, Floats], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Server(plant_with(), **{**asked([0.0, 1.0], [1, 1], [1, 1]), **changed})


def test_time_goes_only_forward() -> None:
    server = Server(plant_with(), **asked([0.0], [1], [1]))
    server.advance(2.0)
    with pytest.raises(ValueError, match=r"until_s=1.0 lies before 2.0"):
        server.advance(1.0)
    with pytest.raises(ValueError, match="until_s=nan"):
        server.advance(math.nan)
    with pytest.raises(ValueError, match=r"window 0 starts at 1.5 s, before 2.0"):
        server.add_window(1.5, 3.0, 2.0)
    server.add_window(2.0, 3.0, 2.0)  # nothing at 2.0 has happened yet


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", 0),
        ("step_base_s", 0.0),
        ("step_base_s", math.inf),
        ("step_per_seq_s", -1.0),
        ("merge_factor", 0.9),
        ("merge_factor", math.nan),
        ("merge_step_s", -0.1),
        ("overhead_log_sd", -0.1),
    ],
)
def test_a_plant_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        plant_with(**{name: value})


def test_a_plant_is_the_same_after_json() -> None:
    plant = plant_with(overhead_log_sd=0.1)
    assert PlantConfig.model_validate_json(plant.model_dump_json()) == plant


def test_overheads_go_by_request_and_seed_around_their_median() -> None:
    plant = plant_with(overhead_log_sd=0.4)
    ids = np.arange(4001)
    every = overheads(plant, seed=3, request_ids=ids)
    assert overheads(plant, seed=3, request_ids=ids[[7, 3, 4000]]).tolist() == [
        every[7],
        every[3],
        every[4000],
    ]
    assert overheads(plant, seed=3, request_ids=ids[:5]).tolist() == every[:5].tolist()
    assert overheads(plant, seed=4, request_ids=ids[:5]).tolist() != every[:5].tolist()
    assert np.median(every) == pytest.approx(OVERHEAD_S, rel=0.05)
    assert np.log(every).std() == pytest.approx(0.4, rel=0.05)
    assert overheads(plant, seed=3, request_ids=ids[:0]).shape == (0,)
    assert set(overheads(plant_with(), seed=3, request_ids=ids)) == {OVERHEAD_S}
    with pytest.raises(ValueError, match="request id -1"):
        overheads(plant, seed=3, request_ids=np.array([0, -1]))


def test_a_window_slows_alike_in_every_arm_of_a_seed_and_never_speeds_up() -> None:
    plant = plant_with(merge_factor=1.2, merge_factor_log_sd=0.3)
    drawn = [window_factor(plant, seed=1, tick=tick) for tick in range(400)]
    assert drawn == [window_factor(plant, seed=1, tick=tick) for tick in range(400)]
    assert drawn[5] != window_factor(plant, seed=2, tick=5)
    assert min(drawn) > 1.0
    assert np.median(drawn) == pytest.approx(1.2, rel=0.05)
    assert np.log(np.array(drawn) - 1.0).std() == pytest.approx(0.3, rel=0.1)
    assert window_factor(plant_with(merge_factor=1.2), seed=1, tick=9) == 1.2


def closed_loop(users: int, mean_think_s: float) -> ClosedLoopConfig:
    tokens = TokenRange(low=5, high=5)
    return ClosedLoopConfig(
        kind="closed",
        users=users,
        mean_think_s=mean_think_s,
        prompt_tokens=tokens,
        output_tokens=tokens,
    )


def test_users_of_a_closed_loop_ask_less_often_where_the_server_is_slow() -> None:
    counts = []
    for factor in (1.0, 3.0):
        server = ClosedServer(plant_with(), config=closed_loop(3, 0.1), seed=2)
        server.add_window(0.0, 50.0, factor)
        server.advance(50.0)
        assert server.in_flight <= 3
        assert 0 <= server.running + server.waiting <= server.in_flight
        counts.append(server.scheduled_so_far)
    assert counts[1] < 0.8 * counts[0]


def test_overheads_of_a_closed_loop_go_by_user_and_turn() -> None:
    plant = plant_with(overhead_log_sd=0.5, slots=9)
    starts = []
    for users in (1, 4):
        server = ClosedServer(plant, config=closed_loop(users, 5.0), seed=2)
        server.advance(60.0)
        found = server.served()
        lag_s = found.first_token_at_s[0] - found.at_s[0]
        starts.append(float(lag_s))
        assert not math.isclose(lag_s, OVERHEAD_S + STEP_S + PER_SEQ_S + 5 * PREFILL_S)
    assert starts[0] == starts[1]  # the first user alone on the server at first


def test_a_closed_loop_is_the_same_after_another_arm_drew_more_turns() -> None:
    config, plant = closed_loop(2, 0.2), plant_with(overhead_log_sd=0.5)
    ends = []
    for until_s in (20.0, 200.0, 20.0):
        server = ClosedServer(plant, config=config, seed=11)
        server.advance(until_s)
        ends.append(server.served())
    for name in ("done_at_s", "at_s", "prompt_tokens", "prompt_seeds"):
        first, again = (getattr(ends[i], name) for i in (0, 2))
        assert first.tobytes() == again.tobytes()
    assert len(ends[1].at_s) > 5 * len(ends[0].at_s)


def test_a_closed_loop_does_not_run_for_ever() -> None:
    server = ClosedServer(plant_with(), config=closed_loop(1, 0.0), seed=2)
    with pytest.raises(ValueError, match="never ends"):
        server.advance(math.inf)
