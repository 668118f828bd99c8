"""Which of Ray's errors mean that a process is lost, and not that it answered with an error."""

import ray


def is_gone(error: BaseException) -> bool:
    """The actor died, restarts, or its node cannot be reached.

    A process that was ended because memory ran out is no RayActorError, but lost all the same.
    """
    lost = (
        ray.exceptions.RayActorError,
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.NodeDiedError,
    )
    return isinstance(error, lost) and not isinstance(error, ray.exceptions.RayTaskError)
