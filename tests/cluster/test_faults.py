"""Each fault of `make faults` once, through the real command line on one Ray cluster."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from ray.cluster_utils import Cluster

from tests.benchmarks.faulting import FAULTS, PLANNED, Reference, reference_run, trial

pytestmark = [pytest.mark.ray, pytest.mark.step_clock, pytest.mark.slow]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    yield cluster.address
    cluster.shutdown()


@pytest.fixture(scope="module")
def reference(address: str, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return reference_run(tmp_path_factory.mktemp("reference") / "run", address=address)


GRACE_S = 5.0  # so that beside other tests only the frozen island is late
ELSEWHERE = ("kill the driver", "kill an island in all-reduce")  # in test_step_clock_study.py


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ELSEWHERE])
def test_a_run_survives_and_loses_no_more_than_the_round_it_is_in(
    fault: str, reference: Reference, address: str, tmp_path: Path
) -> None:
    if fault == "fill the disk" and os.geteuid() != 0:
        pytest.skip("a small file system to fill can be mounted by root alone")
    folder = tmp_path / "run"
    one = trial(fault, folder, reference, seed=0, address=address, grace_s=GRACE_S)
    assert one.ended in ("by itself", "after --resume"), one
    assert one.parameters_equal, one
    assert one.recovered_s is not None, one
    assert one.rounds_lost is not None, one
    assert one.rounds_lost <= 1, one
    if fault not in PLANNED and not one.left_out:  # on a busy machine one may come too late
        assert one.bit_equal, one
