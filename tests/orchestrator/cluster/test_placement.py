"""Bundles of a study and whether nodes hold them, with logical resources only."""

import pytest

from orchestrator.cluster.placement import Placement, island_placement, why_infeasible
from tests.synthetic import synthetic_study

HALF = {"CPU": 0.5}


def placement(strategy: str, bundles: list[dict[str, float]]) -> Placement:
    return Placement(bundles=tuple(bundles), strategy=strategy, islands=len(bundles) - 1)


def test_bundles_come_islands_first() -> None:
    made = placement("PACK", [HALF] * 3)
    assert [made.island_bundle(1), made.sidecar_bundle(0)] == [1, 2]


def test_same_node_needs_one_node_that_holds_all() -> None:
    made = placement("STRICT_PACK", [HALF] * 5)
    assert why_infeasible(made, [{"CPU": 2.0}, {"CPU": 4.0}]) is None
    assert why_infeasible(made, [{"CPU": 2.0}, {"CPU": 2.0}]) == (
        "the study needs 2.5 CPU on one node (placement: same_node); CPU: 2.5 needed, 2 present"
    )


def test_missing_gpus_are_named() -> None:
    made = placement("STRICT_PACK", [{"CPU": 1.0, "GPU": 0.5}] * 2)
    problem = why_infeasible(made, [{"CPU": 16.0}])
    assert problem is not None
    assert "GPU: 1 needed, 0 present" in problem


def test_gpu_fractions_add_up_on_one_device() -> None:
    made = placement("STRICT_PACK", [{"GPU": 0.25}, {"GPU": 0.25}, {"GPU": 0.5}])
    assert why_infeasible(made, [{"CPU": 8.0, "GPU": 1.0}]) is None


def test_spread_bundles_may_use_several_nodes() -> None:
    made = placement("SPREAD", [{"CPU": 2.0}] * 2)
    assert why_infeasible(made, [{"CPU": 2.0}, {"CPU": 2.0}]) is None


def test_enough_in_total_but_in_too_small_pieces_is_refused() -> None:
    made = placement("PACK", [{"CPU": 3.0}])
    problem = why_infeasible(made, [{"CPU": 2.0}, {"CPU": 2.0}])
    assert problem is not None
    assert "no assignment" in problem


@pytest.mark.parametrize("strategy", ["PACK", "STRICT_PACK"])
def test_a_cluster_without_nodes_holds_nothing(strategy: str) -> None:
    assert why_infeasible(placement(strategy, [HALF] * 2), []) is not None


def test_where_nothing_is_served_the_islands_alone_are_placed() -> None:
    study = synthetic_study(islands={"num_cpus": 0.5}, resources={"placement": "spread"})
    made = island_placement(study)
    assert (made.bundles, made.strategy, made.islands) == (({"CPU": 0.5},) * 2, "SPREAD", 2)
