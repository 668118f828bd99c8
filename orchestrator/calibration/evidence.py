"""A study's runs side by side, as the conditions of the gate look at them.

Only complete runs count as evidence; what is missing is named, never filled in.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from pydantic import ValidationError

from orchestrator.arms import expand_arms
from orchestrator.calibration.asked import Figures
from orchestrator.config import StudyConfig
from orchestrator.metrics import Requests, read_requests
from orchestrator.records import ArmSpec, RunMetrics, RunRecord

Rate = Callable[[Figures], float | None]


@dataclass(frozen=True)
class Run:
    """One run's record with its metrics."""

    record: RunRecord
    metrics: RunMetrics

    @cached_property
    def requests(self) -> Requests:
        return read_requests(self.record)

    @cached_property
    def study(self) -> StudyConfig | None:
        """The study as it was when the run was made; None where this version cannot read it."""
        try:
            return StudyConfig.model_validate_json(json.dumps(self.record.config["study"]))
        except ValidationError:
            return None

    @property
    def name(self) -> str:
        return f"{self.record.arm.label} seed {self.record.seed}"


@dataclass(frozen=True)
class Evidence:
    """All runs of the study's own seeds and arms; ``strays`` are the others."""

    study: StudyConfig
    arms: tuple[ArmSpec, ...]
    runs: dict[tuple[str, int], Run]
    strays: tuple[str, ...]

    def complete(self, label: str, seed: int) -> Run | None:
        """The run if it is complete."""
        run = self.runs.get((label, seed))
        return run if run is not None and run.record.status == "complete" else None

    @property
    def judged_otherwise(self) -> tuple[str, ...]:
        """Runs that were made when thresholds, family or regime were others than the study's."""
        fixed = (self.study.gate, self.study.judge, self.study.regime)
        return tuple(
            run.name
            for run in self.runs.values()
            if (then := run.study) is not None and (then.gate, then.judge, then.regime) != fixed
        )

    def labels(self, kind: str, *, of: str | None = None) -> tuple[str, ...]:
        """Arm labels of a kind (and of a policy), in the study's order."""
        return tuple(a.label for a in self.arms if a.kind == kind and (of is None or a.of == of))

    def completed(self, labels: Iterable[str], seed: int) -> tuple[Run, ...]:
        """The complete ones among these arms of a seed."""
        found = (self.complete(label, seed) for label in labels)
        return tuple(run for run in found if run is not None)


def gather(
    study: StudyConfig, records: Sequence[RunRecord], metrics: Sequence[RunMetrics]
) -> Evidence:
    """Pair records with their metrics; ValueError when they do not belong together."""
    by_run = {(m.arm, m.seed): m for m in metrics}
    keys = [(r.arm.label, r.seed) for r in records]
    doubles = sorted(
        {f"{label} seed {seed}" for label, seed in keys if keys.count((label, seed)) > 1}
    )
    if doubles:
        raise ValueError(
            f"{', '.join(doubles)}: measured twice in one study folder; keep one run of each"
        )
    if set(keys) != set(by_run) or len(metrics) != len(records):
        raise ValueError(f"metrics of {len(metrics)} runs do not match {len(records)} records")
    for m in metrics:
        _refuse_no_number(m)
    arms = expand_arms(study)
    wanted = {(a.label, seed) for a in arms for seed in study.seeds}
    runs = {
        key: Run(record=record, metrics=by_run[key])
        for key, record in zip(keys, records, strict=True)
    }
    return Evidence(
        study=study,
        arms=arms,
        runs={key: run for key, run in runs.items() if key in wanted},
        strays=tuple(sorted(run.name for key, run in runs.items() if key not in wanted)),
    )


def _refuse_no_number(m: RunMetrics) -> None:
    """An unknown figure is None: nan and infinity would slip through comparisons."""
    for name, value in _flat(asdict(m)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(
                f"{m.arm} seed {m.seed}: {name}={value} is no finite number; repair or remove the "
                "run: an unknown figure is None and cannot count"
            )


def _flat(figures: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{k}", v) for k, v in _flat(value))
        elif isinstance(value, tuple):
            yield from ((name, v) for v in value)
        else:
            yield name, value


def violation_rate(m: Figures) -> float | None:
    """Share of the counted requests that violate."""
    return m.violation_rate


def not_yet_arrived_rate(m: Figures) -> float | None:
    """Violations of requests that were not in flight when a window began, over all counted ones."""
    if m.violations_not_yet_arrived is None or not m.requests_scheduled:
        return None
    return m.violations_not_yet_arrived / m.requests_scheduled
