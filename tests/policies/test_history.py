"""The memory of counts: the signal by hand, holes, windows, and what is thrown away."""

import math
import pickle
from collections.abc import Callable

import numpy as np

from policies.history import History
from policies.observation import Sample

MakeSample = Callable[..., Sample]


def fed(
    make_sample: MakeSample, ticks: dict[int, tuple[int | None, int | None]], memory_ticks: int = 50
) -> History:
    """After (arrivals, in flight) at these ticks, with a half-life of one tick (alpha .5)."""
    history = History(half_life_ticks=1.0, memory_ticks=memory_ticks)
    for tick, (arrivals, in_flight) in ticks.items():
        history.fold(make_sample(tick, arrivals=arrivals, in_flight=in_flight))
    return history


def test_signal_is_the_ewma_of_arrivals_plus_what_is_in_flight(make_sample: MakeSample) -> None:
    history = fed(make_sample, {-1: (4, 1), 0: (8, 2), 1: (0, 0)})
    np.testing.assert_allclose(history.past().signal, [4 + 1, 6 + 2, 3 + 0])
    assert (history.signal, history.known, history.past().last_tick) == (3.0, 3, 1)


def test_a_count_after_unknown_ticks_is_their_mean_and_decays_as_long(
    make_sample: MakeSample,
) -> None:
    history = fed(make_sample, {0: (4, 0), 1: (None, 0), 2: (None, 0), 3: (6, 0)})
    past = history.past()
    np.testing.assert_array_equal(past.arrivals, [4, math.nan, math.nan, 2])
    np.testing.assert_array_equal(past.signal, [4, math.nan, math.nan, 4 / 8 + 2 * 7 / 8])
    assert history.known == 2


def test_a_tick_without_a_sample_is_an_unknown_one(make_sample: MakeSample) -> None:
    past = fed(make_sample, {0: (4, 0), 3: (6, 0)}).past()
    np.testing.assert_array_equal(past.arrivals, [4, math.nan, math.nan, 2])
    np.testing.assert_array_equal(past.in_flight, [0, math.nan, math.nan, 0])


def test_window_costs_count_what_comes_after_the_start_and_need_all_of_it(
    make_sample: MakeSample,
) -> None:
    counts = {0: (9, 1), 1: (2, 0), 2: (3, 5), 3: (4, None), 4: (None, 0), 5: (2, 0)}
    cost = fed(make_sample, counts).past().window_costs(2)
    np.testing.assert_array_equal(cost, [1 + 2 + 3, 0 + 3 + 4, math.nan, math.nan])


def test_only_the_memory_is_kept_and_it_pickles(make_sample: MakeSample) -> None:
    history = fed(make_sample, {t: (t, 0) for t in range(100)}, memory_ticks=7)
    np.testing.assert_array_equal(history.past().arrivals, np.arange(93, 100))
    moved = pickle.loads(pickle.dumps(history))
    np.testing.assert_array_equal(moved.past().signal, history.past().signal)
