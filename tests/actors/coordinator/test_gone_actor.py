"""A process that is lost is told from one that answered with an error, whatever the error is of."""

import pytest

ray = pytest.importorskip("ray")

from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    OutOfMemoryError,
    RayTaskError,
    WorkerCrashedError,
)

from actors.coordinator.gone_actor import is_gone

pytestmark = pytest.mark.ray


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        ActorUnavailableError("it restarts", None),
        WorkerCrashedError(),
        OutOfMemoryError("running low on memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_process_is_gone(error: BaseException) -> None:
    assert is_gone(error)


def test_an_answer_is_an_answer_even_when_it_tells_of_another_process_s_death() -> None:
    """As a call fails whose argument was to come from an island that died."""
    wrapped = RayTaskError("adopt", "trace", ActorDiedError(), proctitle="p", pid=1, ip="127.0.0.1")
    told = wrapped.as_instanceof_cause()
    assert isinstance(told, ActorDiedError)
    assert not is_gone(told)
    assert not is_gone(wrapped)
    assert not is_gone(GetTimeoutError("later"))
    assert not is_gone(ValueError("of ours"))
