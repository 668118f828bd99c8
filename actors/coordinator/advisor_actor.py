"""Ray shell of an advice session: one named actor that the trainers of a cluster share.

transport = get_or_connect("my_run", partial(AdviceSession, config, folder=folder))
learner = Learner(transport, learner=rank, own_h_steps=100)
"""

from collections.abc import Callable
from typing import Any

import ray

from actors.coordinator.advice import (
    AdviceRefused,
    AdvisorSilent,
    Merged,
    MergeDecision,
    Report,
    Standing,
)

NAMESPACE = "lull-advice"
TIMEOUT_S = 1.0
CREATE_TIMEOUT_S = 120.0


@ray.remote
class AdvisorActor:
    """``make`` gives what answers: an AdviceSession, made in the actor's own process."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._session = make()

    def ask(self, report: Report) -> MergeDecision:
        decision: MergeDecision = self._session.ask(report)
        return decision

    def merged(self, done: Merged) -> None:
        self._session.merged(done)

    def standing(self) -> Standing:
        standing: Standing = self._session.standing()
        return standing

    def finish(self) -> None:
        self._session.finish()


class RayTransport:
    """Every call ends within ``timeout_s``."""

    def __init__(self, actor: Any, *, timeout_s: float = TIMEOUT_S) -> None:
        self._actor = actor
        self._timeout_s = timeout_s

    def ask(self, report: Report) -> MergeDecision:
        decision: MergeDecision = self._get(self._actor.ask.remote(report), self._timeout_s)
        return decision

    def merged(self, done: Merged) -> None:
        self._get(self._actor.merged.remote(done), self._timeout_s)

    def standing(self) -> Standing:
        standing: Standing = self._get(self._actor.standing.remote(), self._timeout_s)
        return standing

    def finish(self) -> None:
        """End the record; the actor goes with the process that made it."""
        self._get(self._actor.finish.remote(), CREATE_TIMEOUT_S)

    def wait_ready(self) -> None:
        """Return when the actor answers; AdvisorSilent after CREATE_TIMEOUT_S."""
        self._get(self._actor.standing.remote(), CREATE_TIMEOUT_S)

    def _get(self, ref: Any, timeout_s: float) -> Any:
        try:
            return ray.get(ref, timeout=timeout_s)
        except AdviceRefused as error:  # Ray's wrapping is of this class too
            raise AdviceRefused(str(getattr(error, "cause", error))) from error
        except ray.exceptions.RayError as error:
            why = " ".join(str(error).split())[:200] or type(error).__name__
            raise AdvisorSilent(f"the advisor's actor gives no answer: {why}") from error


def get_or_connect(
    name: str,
    make: Callable[[], Any] | None = None,
    *,
    namespace: str = NAMESPACE,
    timeout_s: float = TIMEOUT_S,
) -> RayTransport:
    """The advice of that name: made by whoever asks first, joined by the others.

    Without ``make`` only joined: ValueError where there is none. It lives as long as its maker.
    """
    if make is None:
        actor: Any = ray.get_actor(name, namespace=namespace)
    else:
        actor = AdvisorActor.options(  # type: ignore[attr-defined]
            name=name, namespace=namespace, get_if_exists=True, num_cpus=0
        ).remote(make)
    transport = RayTransport(actor, timeout_s=timeout_s)
    transport.wait_ready()
    return transport
