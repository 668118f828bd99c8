"""replay.parquet to the table that `lull replay` prints: rates, gains against matched random.

The judging is `lull gate`'s; nothing here is a claim.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rich import box
from rich.table import Table

from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.placement import CONFIDENCE
from orchestrator.calibration.statistics import Interval, relative_gain
from orchestrator.report.words import UNKNOWN, number, percent
from policies.streams import stream

_COLUMNS = (
    "replicate",
    "arm",
    "kind",
    "policy",
    "of",
    "requests_scheduled",
    "violations",
    "violation_rate",
    "e2e_p95_s",
    "merge_count",
    "excess_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """One arm over its seeds, matched_random draws of one policy together; None where unknown."""

    arm: str
    kind: str
    runs: int
    requests: int
    merges: int
    violation_rate: float | None  # share of the counted requests
    violations_per_merge: float | None
    excess_per_merge_s: float | None  # seconds of latency above no_sync, over all requests
    e2e_p95_median_s: float | None  # of the runs' own p95
    gain: float | None  # (matched random - this) / matched random, rates summed over seeds
    gain_interval: tuple[float, float] | None  # 90 %, the gate's own; None for too few seeds
    gain_seeds: int  # that know both


@dataclass(slots=True)
class _Tally:
    kind: str
    of: str | None
    runs: int = 0
    requests: int = 0
    violations: int = 0
    merges: int = 0
    excess_s: float | None = 0.0
    p95_s: list[float] = field(default_factory=list)
    rates: dict[int, list[float]] = field(default_factory=dict)  # by seed


def summarise(path: Path, *, gate: GateConfig) -> list[ArmSummary]:
    """All arms of a replay.parquet, in the order of their first rows; group by group.

    ``gate``: seed and resamples of the intervals, and from how many seeds on there is one.
    """
    tallies: dict[str, _Tally] = {}
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            for row in file.read_row_group(group, columns=list(_COLUMNS)).to_pylist():
                _count(tallies, row)
    return [_summary(name, tally, tallies, gate=gate) for name, tally in tallies.items()]


def _count(tallies: dict[str, _Tally], row: Mapping[str, object]) -> None:
    kind, of = str(row["kind"]), row["of"]
    name = f"matched_random-of-{of}" if kind == "matched_random" else str(row["arm"])
    of = row["policy"] if kind in ("policy", "aa") else of
    tally = tallies.setdefault(name, _Tally(kind=kind, of=None if of is None else str(of)))
    tally.runs += 1
    tally.requests += _whole(row["requests_scheduled"])
    tally.violations += _whole(row["violations"])
    tally.merges += _whole(row["merge_count"])
    excess_s, p95_s, rate = row["excess_s"], row["e2e_p95_s"], row["violation_rate"]
    tally.excess_s = (
        tally.excess_s + excess_s
        if tally.excess_s is not None and isinstance(excess_s, float)
        else None
    )
    if isinstance(p95_s, float):
        tally.p95_s.append(p95_s)
    if isinstance(rate, float):
        tally.rates.setdefault(_whole(row["replicate"]), []).append(rate)


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def _summary(
    name: str, tally: _Tally, tallies: Mapping[str, _Tally], *, gate: GateConfig
) -> ArmSummary:
    mine, control = _paired(tally, _control(tally, tallies))
    gain = _gain(name, mine, control, gate=gate)
    merges = tally.merges
    return ArmSummary(
        arm=name,
        kind=tally.kind,
        runs=tally.runs,
        requests=tally.requests,
        merges=merges,
        violation_rate=tally.violations / tally.requests if tally.requests else None,
        violations_per_merge=tally.violations / merges if merges else None,
        excess_per_merge_s=tally.excess_s / merges
        if merges and tally.excess_s is not None
        else None,
        e2e_p95_median_s=float(np.median(tally.p95_s)) if tally.p95_s else None,
        gain=None if gain is None else gain.estimate,
        gain_interval=gain.finite
        if gain is not None and len(control) >= gate.min_seeds_for_interval
        else None,
        gain_seeds=len(control),
    )


def _gain(
    name: str, mine: list[float], control: list[float], *, gate: GateConfig
) -> Interval | None:
    """As the gate computes it for the same arm, from the same stream; None without a seed."""
    if not control:
        return None
    return relative_gain(
        mine,
        control,
        confidence=CONFIDENCE,
        draws=gate.resamples,
        rng=stream(gate.seed, f"gain placement {name}"),
    )


def _control(tally: _Tally, tallies: Mapping[str, _Tally]) -> _Tally | None:
    """matched_random of the same policy, else the only one there is: equal budgets, equal law."""
    if tally.kind in ("no_sync", "placebo", "matched_random"):
        return None
    random = [t for t in tallies.values() if t.kind == "matched_random"]
    own = [t for t in random if t.of == tally.of]
    return next(iter(own or random), None)


def _paired(tally: _Tally, control: _Tally | None) -> tuple[list[float], list[float]]:
    """Rates of the seeds that both know, the draws' mean for the control."""
    if control is None:
        return [], []
    both = [seed for seed in tally.rates if seed in control.rates]
    return (
        [float(np.mean(tally.rates[s])) for s in both],
        [float(np.mean(control.rates[s])) for s in both],
    )


def summary_table(arms: list[ArmSummary], *, engine_version: str) -> Table:
    """For a terminal of 80 columns."""
    table = Table(
        title=f"arms (SIMULATED: source: replay, engine: model, {engine_version})",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption="viol.: share of the counted requests, and for each merge; p95: median over runs; "
        f"gain %: against matched random, {percent(CONFIDENCE, digits=0)} interval, over n seeds, "
        "- where they are too few for one; `lull gate` judges",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("arm", overflow="fold")
    for name in ("runs", "merges", "viol.", "/merge", "p95 e2e s", "gain %", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in arms:
        table.add_row(
            f"{arm.arm} (control)" if arm.kind == "oracle" else arm.arm,
            str(arm.runs),
            number(arm.merges / arm.runs, digits=1),
            percent(arm.violation_rate),
            number(arm.violations_per_merge),
            number(arm.e2e_p95_median_s),
            _gain_words(arm),
            str(arm.gain_seeds) if arm.gain_seeds else "-",
        )
    return table


def _gain_words(arm: ArmSummary) -> str:
    """Never a gain without its interval."""
    if arm.gain is None or arm.gain_interval is None:
        return UNKNOWN
    low, high = arm.gain_interval
    return f"{100 * arm.gain:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
