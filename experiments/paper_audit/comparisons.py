"""The published runs as the gate's comparisons: arms with realised windows, and what is judged.

Traces of merges shorter than the replay were repeated, so realised windows are
sync_events x duration / length of the trace, not the listed sync_events.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.paper_audit.tables import Row, Tables
from orchestrator.calibration.config import GateConfig
from orchestrator.calibration.published import PublishedArm, PublishedRun, PublishedStudy

CONTROL = "random_matched"
FILL = "matmul"  # stages 11 and 13: a synthetic GPU load ran in the windows, nothing merged
UNREPEATED = (CONTROL, "stage12_calibrated_replay")  # stage 13: starts drawn over the whole replay
_CAVEATS = (
    "figures only: no events, no requests, no starts of merges were published",
    "a closed loop: a batch is sent when the one before has ended, so slow service lowers the "
    "load, and every request of a batch has the batch's latency",
    "one traffic pattern serves all seeds, so seeds are no replicates of traffic",
)
_STEADY = "in stage 11 the control is a training run with random deferral, repeated like the others"
_BURSTY = (
    "in stage 13 the control's seeds are means of 5 draws with a least distance of starts; runs "
    "of single seeds are published for few policies; windows of the repeated traces are those of "
    "stage 11, of online_calibrated_wa those of the seeds given; stage12_calibrated_replay chose "
    "its starts with the burst pattern known"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """All comparisons, and the arms that they share."""

    steady: PublishedStudy  # every policy against the random control
    baselines: PublishedStudy  # the workload-aware policy against fixed and gated ones
    bursty: PublishedStudy
    contrasts: PublishedStudy  # against other policies, as published

    @property
    def studies(self) -> tuple[PublishedStudy, ...]:
        return self.steady, self.baselines, self.bursty, self.contrasts


def comparisons(tables: Tables, gate: GateConfig) -> Published:
    """Every comparison that the paper makes, ready for ``judge_published``."""
    engine_version = tables.config("stages 10 11 13", "vllm_version").text("value")
    steady = tuple(_steady_arm(tables, name) for name in _names(tables["stage11"]))
    bursty = tuple(_bursty_arm(tables, row, steady) for row in tables["stage13_summary"])
    seeds = tuple(sorted({r.count("seed") for r in tables["stage11"]}))
    others = [a.label for a in steady if a.label not in (CONTROL, "wa_diloco")]

    def study(
        name: str, regime: str, arms: tuple[PublishedArm, ...], pairs: Sequence[tuple[str, str]]
    ) -> PublishedStudy:
        return PublishedStudy(
            study=name,
            regime=regime,
            gate=gate,
            seeds=seeds,
            arms=arms,
            pairs=tuple(pairs),
            engine="vllm",
            engine_version=engine_version,
            fill=FILL,
            caveats=(*_CAVEATS, _STEADY if arms is steady else _BURSTY),
        )

    load = "steady closed loop"
    bursts = "closed loop in bursts"
    published = [(r.text("policy"), r.text("comparator")) for r in tables["stage13_contrasts"]]
    return Published(
        steady=study("stage 11", load, steady, _against_random(steady)),
        baselines=study("stage 11, baselines", load, steady, [("wa_diloco", o) for o in others]),
        bursty=study("stage 13", bursts, bursty, _against_random(bursty)),
        contrasts=study(
            "stage 13, contrasts", bursts, bursty, [p for p in published if p[1] != CONTROL]
        ),
    )


def _names(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(r.text("policy") for r in rows))


def _against_random(arms: Sequence[PublishedArm]) -> list[tuple[str, str]]:
    return [(a.label, CONTROL) for a in arms if a.label != CONTROL]


def realised_windows(row: Row) -> float:
    """Windows in a replay that repeats its trace of merges."""
    return (
        row.number("sync_events") * row.number("duration_s") / row.positive("sync_trace_duration_s")
    )


def _kind(label: str) -> str:
    return "matched_random" if label == CONTROL else "policy"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _steady_arm(tables: Tables, label: str) -> PublishedArm:
    rows = [r for r in tables["stage11"] if r.text("policy") == label]
    runs = tuple(_run(r) for r in rows)
    return PublishedArm(
        label=label,
        kind=_kind(label),
        n=len(rows),
        violation_rate=_mean([r.violation_rate for r in runs]),
        requests_per_s=_mean([_served(r) for r in rows]),
        requests=_mean([r.count("requests") for r in rows]),
        violations=_mean([r.count("slo_violations") for r in rows]),
        requests_in_windows=_mean([r.count("sync_active_count") for r in rows]),
        windows=_mean([realised_windows(r) for r in rows]),
        window_s=_one(rows, "sync_window_s"),
        effect_ratio=_mean([r.number("sync_p95_ratio") for r in rows]),
        runs=runs,
    )


def _run(row: Row) -> PublishedRun:
    requests, violations = row.count("requests"), row.count("slo_violations")
    if not 0 < requests >= violations:
        raise ValueError(f"{row.where}: {violations} violations among {requests} requests")
    return PublishedRun(
        seed=row.count("seed"),
        violation_rate=violations / requests,
        requests=requests,
        violations=violations,
        requests_in_windows=row.count("sync_active_count"),
        windows=realised_windows(row),
        effect_ratio=row.positive("sync_p95_ratio"),
    )


def _served(row: Row) -> float:
    """Requests a second, from tokens a second: every request makes as many tokens."""
    return row.number("tokens_per_s") / row.positive("max_new_tokens")


def _one(rows: Sequence[Row], column: str) -> float:
    values = {r.positive(column) for r in rows}
    if len(values) != 1:
        raise ValueError(f"{rows[0].where}: {column} is not one value: {sorted(values)}")
    return values.pop()


def _bursty_arm(tables: Tables, row: Row, steady: Sequence[PublishedArm]) -> PublishedArm:
    label = row.text("policy")
    given = [r for r in tables["stage13"] if r.text("policy") == label]
    whole = [r for r in tables["stage13"] if r.text("origin") == "reported"]
    return PublishedArm(
        label=label,
        kind=_kind(label),
        n=row.count("n"),
        violation_rate=row.number("slo_violation_pct_mean") / 100,
        requests_per_s=row.number("tokens_per_s_mean") / _one(whole, "max_new_tokens"),
        requests=None,
        violations=None,
        requests_in_windows=row.number("sync_active_count_mean"),
        windows=_bursty_windows(row, [r for r in given if r in whole], steady),
        window_s=_one(whole, "sync_window_s"),
        effect_ratio=row.positive("sync_p95_ratio_mean"),
        runs=tuple(_run(r) if r in whole else _derived_run(r) for r in given),
    )


def _bursty_windows(
    row: Row, reported: Sequence[Row], steady: Sequence[PublishedArm]
) -> float | None:
    """Of the schedule itself, of the same traces in stage 11, or of the runs given singly."""
    label = row.text("policy")
    if label in UNREPEATED:
        return row.number("sync_events_mean")
    same = [a.windows for a in steady if a.label == label]
    if same:
        return same[0]
    return _mean([realised_windows(r) for r in reported]) if reported else None


def _derived_run(row: Row) -> PublishedRun:
    """Only the violation share is known, from the published differences of seeds."""
    return PublishedRun(
        seed=row.count("seed"),
        violation_rate=row.number("slo_violation_pct") / 100,
        requests=None,
        violations=None,
        requests_in_windows=None,
        windows=None,
        effect_ratio=None,
    )
