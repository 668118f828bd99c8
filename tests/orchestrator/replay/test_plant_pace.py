"""What slows a step besides its work: merges that cost it a fixed time, a pace that wanders."""

import numpy as np
import pytest

from orchestrator.replay.plant import PlantConfig, Served, paces, serve, slow_windows, window_factor
from orchestrator.replay.state import NO_PACES, Floats

STEP_S, PER_SEQ_S = 0.02, 0.01
PLANT = PlantConfig(
    slots=4,
    step_base_s=STEP_S,
    step_per_seq_s=PER_SEQ_S,
    prefill_per_token_s=0.0,
    overhead_s=0.0,
    merge_factor=1.5,
)


def steps(
    plant: PlantConfig, *, together: int, count: int, windows: Floats, own: Floats = NO_PACES
) -> Served:
    """``together`` requests at time 0 of ``count`` tokens each."""
    return serve(
        plant,
        at_s=np.zeros(together),
        prompt_tokens=np.zeros(together, np.int64),
        output_tokens=np.full(together, count),
        overheads_s=np.zeros(together),
        windows=windows,
        factors=np.full(len(windows), plant.merge_factor),
        paces=own,
    )


@pytest.mark.parametrize("together", [1, 3])
def test_a_merge_costs_every_step_its_share_of_the_work_and_of_what_stands_beside_it(
    together: int,
) -> None:
    plant = PLANT.model_copy(update={"merge_step_s": 0.1})
    step_s = STEP_S + together * PER_SEQ_S
    found = steps(plant, together=together, count=50, windows=np.array([[0.0, 1000.0]]))
    assert found.done_at_s == pytest.approx([50 * (step_s + 0.5 * (step_s + 0.1))] * together)


def test_a_step_that_an_edge_cuts_goes_on_with_the_slow_down_of_the_whole_step() -> None:
    plant = PLANT.model_copy(update={"merge_step_s": 0.03})
    slowed_by = 1 + 0.5 * (0.03 + 0.03) / 0.03  # of a step of 0.03 s
    found = steps(plant, together=1, count=1, windows=np.array([[0.01, 1000.0]]))
    assert found.done_at_s == pytest.approx([0.01 + 0.02 * slowed_by])
    found = steps(plant, together=1, count=1, windows=np.array([[0.0, 0.01]]))
    assert found.done_at_s == pytest.approx([0.01 + 0.03 - 0.01 / slowed_by])


def test_the_pace_holds_for_its_slot_and_is_1_after_the_last() -> None:
    own = np.array([2.0, 0.5])  # of 1 s each: 0.5 s of work, then 2 s of it
    found = steps(PLANT, together=1, count=100, windows=np.empty((0, 2)), own=own)
    assert found.done_at_s == pytest.approx([2.0 + (100 * 0.03 - 2.5)])


def test_paces_are_the_seeds_with_median_1_and_the_stated_spread() -> None:
    plant = PLANT.model_copy(update={"pace_log_sd": 0.2, "pace_slot_s": 0.5})
    drawn = paces(plant, seed=3, horizon_s=1000.0)
    assert len(drawn) == 2000
    assert np.median(drawn) == pytest.approx(1.0, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.2, rel=0.05)
    assert (drawn[:20] == paces(plant, seed=3, horizon_s=10.0)).all()
    assert (drawn[:20] != paces(plant, seed=4, horizon_s=10.0)).any()
    assert len(paces(PLANT, seed=3, horizon_s=10.0)) == 0


def test_no_server_keeps_a_pace_of_0() -> None:
    with pytest.raises(ValueError, match=r"paces\[1\]=0.0; give a finite number above 0"):
        steps(PLANT, together=1, count=1, windows=np.empty((0, 2)), own=np.array([1.0, 0.0]))


def test_a_window_slows_from_the_end_of_its_calm_beginning_on() -> None:
    windows = np.array([[10.0, 14.0], [20.0, 24.0]])
    edges, factors = slow_windows(PLANT, seed=1, ticks=[10, 20], windows=windows)
    assert edges.tolist() == windows.tolist()
    assert factors.tolist() == [1.5, 1.5]
    plant = PLANT.model_copy(update={"merge_calm_s": 0.5})
    edges, _ = slow_windows(plant, seed=1, ticks=[10, 20], windows=windows)
    assert edges.tolist() == [[10.5, 14.0], [20.5, 24.0]]
    edges, factors = slow_windows(plant, seed=1, ticks=[], windows=np.empty((0, 2)))
    assert (edges.shape, factors.shape) == ((0, 2), (0,))
    assert windows.tolist() == [[10.0, 14.0], [20.0, 24.0]]  # what was handed in stays


def test_calm_beginnings_are_the_seeds_and_a_window_may_be_calm_to_its_end() -> None:
    plant = PLANT.model_copy(
        update={"merge_calm_s": 1.0, "merge_calm_log_sd": 1.0, "merge_factor_log_sd": 0.2}
    )
    ticks = list(range(0, 4000, 4))
    windows = np.array([(t, t + 4.0) for t in ticks])
    edges, factors = slow_windows(plant, seed=3, ticks=ticks, windows=windows)
    again, _ = slow_windows(plant, seed=3, ticks=ticks[5:9], windows=windows[5:9])
    assert set(map(tuple, again)) <= set(map(tuple, edges))
    calm_s = 4.0 - (edges[:, 1] - edges[:, 0])
    assert 0.0 < calm_s.min() < 0.2
    assert len(edges) == len(factors) == pytest.approx(1000 * 0.917, rel=0.03)  # Phi(log 4)
    first = ticks.index(round(float(edges[0, 1])) - 4)
    assert factors[0] == window_factor(plant, seed=3, tick=ticks[first])
