"""Batches of seeds on Ray: the same rows as in one process, bad seeds named as there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray

from orchestrator.cluster.replay_pool import spread_on_ray
from orchestrator.replay.scale import ReplayJob, in_this_process
from orchestrator.study import load_study
from tests.replaying import PLANT, replay_study


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


def test_rows_do_not_depend_on_where_they_were_computed() -> None:
    job = ReplayJob(study=replay_study(), plant=PLANT, study_dir=Path(), arms=None)
    batches = [(i, (2 * i, 2 * i + 1)) for i in range(9)]
    here = dict(in_this_process(job, batches))
    there = dict(spread_on_ray(job, batches, workers=2))
    assert there.keys() == here.keys()
    for number, table in here.items():
        assert there[number].equals(table)


def test_a_seed_without_traffic_is_named_as_in_one_process(checkout: Path) -> None:
    path = checkout / "experiments" / "quickstart" / "study.yaml"
    job = ReplayJob(study=load_study(path), plant=PLANT, study_dir=path.parent, arms=None)
    with pytest.raises(ValueError, match="windows") as here:
        list(in_this_process(job, [(0, (5000,))]))
    with pytest.raises(ValueError, match="windows") as there:
        list(spread_on_ray(job, [(0, (5000,))], workers=2))
    assert str(here.value) in str(there.value)
