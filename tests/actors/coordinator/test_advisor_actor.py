"""The advice as a named Ray actor: one for all trainers, and silent when it is gone."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
advisor_actor = pytest.importorskip("actors.coordinator.advisor_actor")

from actors.coordinator.advice import ADVISOR_SILENT, AdviceRefused, Learner, Progress
from orchestrator.advisor.session import AdviceSession
from orchestrator.redecide import read_records, redecide
from tests.advising import advice

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default::ResourceWarning")]
PATIENT_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def cluster(checkout: Path) -> Iterator[None]:
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": str(checkout)}},
    )
    yield
    ray.shutdown()


def test_trainers_share_one_advice_by_its_name(tmp_path: Path) -> None:
    make = partial(AdviceSession, advice(), folder=tmp_path / "a")
    first = advisor_actor.get_or_connect("mine", make, timeout_s=PATIENT_S)
    second = advisor_actor.get_or_connect("mine", timeout_s=PATIENT_S)
    learners = [
        Learner(transport, learner=i, own_h_steps=7) for i, transport in enumerate((first, second))
    ]
    merged: list[list[int]] = [[], []]
    for step in range(1, 46):
        for i, learner in enumerate(learners):
            if learner.ready_to_merge(step, Progress(tokens=step)):
                merged[i].append(step)
                learner.merged(step, seconds=0.5)
    assert merged == [[20, 40], [20, 40]]
    assert second.standing().learners == (0, 1)
    with pytest.raises(AdviceRefused, match=r"learner 5 reports step 2, .* at step 40"):
        Learner(first, learner=5, own_h_steps=7).ready_to_merge(2, Progress(tokens=1))
    first.finish()
    (record,) = read_records(tmp_path / "a")
    assert record.status == "complete"
    assert redecide(record).mismatches == 0
    ray.kill(ray.get_actor("mine", namespace=advisor_actor.NAMESPACE))
    alone = learners[0].ready_to_merge(50, Progress(tokens=1))
    assert (alone.reason, alone.advised, alone.merge_at_step) == (ADVISOR_SILENT, False, 50)


def test_an_advice_that_nobody_made_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="nobody_s"):
        advisor_actor.get_or_connect("nobody_s")
