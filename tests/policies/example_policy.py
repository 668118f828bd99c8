"""A user's policy in one file: merge when at most ``most_in_flight`` requests are in flight."""

from typing import ClassVar, Literal

from policies.frame import Frame, unknown
from policies.observation import Action, Decision, Policy, Reason, Sample, Seen
from policies.units import Count, FrozenModel


class FewInFlightConfig(FrozenModel):
    kind: Literal["few_in_flight"]
    most_in_flight: Count
    needs_probes: ClassVar[bool] = False  # the client's own count; no probe takes part

    def build(self, *, frame: Frame, step_interval_s: float) -> Policy:
        return FewInFlight(self.most_in_flight)


class FewInFlight:
    def __init__(self, most: int) -> None:
        self._most = most
        self._in_flight: int | None = None

    def observe(self, sample: Sample) -> None:
        self._in_flight = sample.in_flight

    def decide(self, seen: Seen) -> Decision:
        if self._in_flight is None:
            return unknown((("in_flight", None),))
        few = self._in_flight <= self._most
        return Decision(
            action=Action.MERGE if few else Action.DEFER,
            reason=Reason.PRESSURE_LOW if few else Reason.PRESSURE_HIGH,
            terms=(("in_flight", float(self._in_flight)),),
        )
