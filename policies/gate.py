"""The pressure gate: merge while the largest known pressure is low enough.

Serving pressure is the one it cannot do without; network and checkpoint join in when known.
"""

from policies.observation import Action, Decision, Reading, Reason, Sample, Seen


class PressureGate:
    """Compares the latest pressures with one threshold; remembers nothing older."""

    def __init__(self, *, pressure_threshold: float) -> None:
        self._threshold = pressure_threshold
        self._serving: Reading | None = None
        self._network: Reading | None = None
        self._checkpoint: Reading | None = None

    def observe(self, sample: Sample) -> None:
        """Keep the latest readings; one that is missing now is unknown now."""
        self._serving = sample.serving
        self._network = sample.network
        self._checkpoint = sample.checkpoint

    def decide(self, seen: Seen) -> Decision:
        """Merge at or below the threshold."""
        readings = {
            "serving": self._serving,
            "network": self._network,
            "checkpoint": self._checkpoint,
        }
        terms = tuple((name, None if r is None else r.value) for name, r in readings.items())
        if self._serving is None:
            return Decision(
                action=Action.DEFER, reason=Reason.UNKNOWN, terms=(*terms, ("largest", None))
            )
        largest = max(value for _, value in terms if value is not None)
        low = largest <= self._threshold
        return Decision(
            action=Action.MERGE if low else Action.DEFER,
            reason=Reason.PRESSURE_LOW if low else Reason.PRESSURE_HIGH,
            score=largest,
            terms=(*terms, ("largest", largest)),
        )
