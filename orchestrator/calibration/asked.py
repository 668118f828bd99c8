"""What the gate has to know of a study and of its runs to rule, live or replayed.

A study file says it, and so does the description of a published comparison.
"""

from collections.abc import Iterable, Sequence
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


class Figures(Protocol):
    """What is compared of a run; met by ``RunMetrics`` and by a row of ``replay.parquet``."""

    @property
    def requests_scheduled(self) -> int: ...
    @property
    def violations(self) -> int: ...
    @property
    def violation_rate(self) -> float | None: ...
    @property
    def violations_not_yet_arrived(self) -> int | None: ...


class Measured(Protocol):
    """One run, by its figures."""

    @property
    def metrics(self) -> Figures: ...


class Compared(OfStudy, Protocol):
    """Runs side by side: what comparisons look at, whether live or replayed."""

    def labels(self, kind: str, *, of: str | None = None) -> tuple[str, ...]: ...
    def complete(self, label: str, seed: int) -> Measured | None: ...
    def completed(self, labels: Iterable[str], seed: int) -> Sequence[Measured]: ...
