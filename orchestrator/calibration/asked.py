"""What the gate has to know of a study to rule: thresholds, family, seeds, regime, kinds of arms.

A study file says it, and so does the description of a published comparison.
"""

from collections.abc import Sequence
from typing import Protocol

from orchestrator.calibration.config import GateConfig


class OfKind(Protocol):
    @property
    def kind(self) -> str: ...


class Asked(Protocol):
    """Met by ``StudyConfig``; every property is fixed before the runs."""

    @property
    def regime(self) -> str: ...
    @property
    def gate(self) -> GateConfig: ...
    @property
    def judge(self) -> tuple[str, ...]: ...
    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def arms(self) -> Sequence[OfKind]: ...


class OfStudy(Protocol):
    """Met by ``Evidence``: whatever belongs to a study that was asked."""

    @property
    def study(self) -> Asked: ...
