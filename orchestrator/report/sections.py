"""Parts of the report that tell what happened in the runs: costs, training, requests, origin."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.calibration.verdict import Judgement
from orchestrator.config import StudyConfig
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.report.markup import Html, definitions, element, table
from orchestrator.report.words import UNKNOWN, by_arm, heading, number, percent

_FIGURES = (
    "violations",
    "violation_rate",
    "violations_per_merge",
    "violations_in_windows",
    "requests_in_windows",
    "e2e_p50_s",
    "e2e_p95_s",
    "e2e_p99_s",
    "ttft_p95_s",
    "tpot_p95_s",
    "itl_p95_s",
    "goodput_rps",
    "serving_pressure_mean",
    "forced_share",
)


def merge_costs(metrics: Sequence[RunMetrics]) -> list[Html]:
    """Real work and emulated fill, and the parts of the real work."""
    merged = [m for m in metrics if m.merge_count]
    if not merged:
        return [element("p", "No run merged.")]
    found = dict.fromkeys(name for m in merged for name in m.merge_parts_mean_s)
    parts = [name for name in found if name not in ("real", "emulated")]
    rows = [
        [
            m.arm,
            str(m.seed),
            str(m.merge_count),
            number(m.merge_planned_s),
            number(m.merge_real_s),
            f"{number(m.merge_emulated_s)} ({percent(m.merge_emulated_share)})",
            str(m.merge_overran),
            *(number(m.merge_parts_mean_s.get(name), digits=3) for name in parts),
        ]
        for runs in by_arm(merged).values()
        for m in runs
    ]
    names = [heading(f"{p}_s") for p in parts]
    headings = ["arm", "seed", "merges", "planned [s]", "real [s]", "emulated [s]"]
    note = (
        "planned, real, emulated: sums over a run's merges, of the slowest island; from wait on: "
        "means for one merge and island. Emulated seconds are a synthetic load, not merge work; "
        "fill cpu is the CPU time that it got."
    )
    return [
        element("p", note, css="soft"),
        table([*headings, "overran", *names], rows),
    ]


def training(metrics: Sequence[RunMetrics]) -> list[Html]:
    """Did it learn, and are the islands one model after every merge?"""
    islands = sorted({k for m in metrics for k in m.train_loss_by_island}, key=_island_key)
    rows = [
        [
            m.arm,
            str(m.seed),
            *(_start_end(m.train_loss_by_island.get(k)) for k in islands),
            number(m.train_tokens_per_s, digits=0),
            str(m.train_steps),
            str(m.merge_count),
            _equal(m.hashes_equal),
        ]
        for runs in by_arm(metrics).values()
        for m in runs
    ]
    headings = ["arm", "seed", *(f"loss, island {k}" for k in islands)]
    headings += ["tokens/s", "inner steps", "merges", "equal after each merge"]
    return [table(headings, rows)]


def _island_key(name: str) -> tuple[int, str]:
    return (int(name), name) if name.isdigit() else (1 << 30, name)


def _start_end(loss: tuple[float | None, float | None] | None) -> str:
    if loss is None:
        return UNKNOWN
    start, end = loss
    return f"{number(start)} \u2192 {number(end)}"


def _equal(hashes_equal: bool | None) -> str:
    return UNKNOWN if hashes_equal is None else "yes" if hashes_equal else "NO"


def requests_account(records: Sequence[RunRecord], metrics: Sequence[RunMetrics]) -> list[Html]:
    """Scheduled = rows, and counted = ok + failed, for each run."""
    rows_of = {(r.arm.label, r.seed): r.requests.num_rows for r in records}
    rows = [
        _account(m, rows=rows_of.get((m.arm, m.seed)))
        for runs in by_arm(metrics).values()
        for m in runs
    ]
    headings = (
        "arm",
        "seed",
        "scheduled",
        "rows",
        "counted",
        "of them sent",
        "ok",
        "failed",
        "adds up",
        "outcomes",
        "p99 lateness outside / inside windows [s]",
    )
    note = (
        "scheduled: all of the request file, with the warm-up; counted: scheduled in "
        "[warm-up, horizon). Adds up: scheduled = rows, counted = ok + failed."
    )
    return [element("p", note, css="soft"), table(headings, rows, kinds="wnnnnnnnwwn")]


def _account(m: RunMetrics, *, rows: int | None) -> list[str]:
    whole = m.requests_scheduled == m.requests_ok + m.requests_failed
    adds_up = rows == m.requests_scheduled_all and whole
    lateness = (m.lateness_p99_outside_s, m.lateness_p99_inside_s)
    return [
        m.arm,
        str(m.seed),
        str(m.requests_scheduled_all),
        number(rows),
        str(m.requests_scheduled),
        str(m.requests_sent),
        str(m.requests_ok),
        str(m.requests_failed),
        "yes" if adds_up else "NO",
        ", ".join(f"{name} {count}" for name, count in m.outcomes.items()),
        " / ".join(number(value, digits=4) for value in lateness),
    ]


def runs_table(metrics: Sequence[RunMetrics]) -> list[Html]:
    """The figures of each seed."""
    rows = [
        [m.arm, str(m.seed), m.status, *(_figure(name, getattr(m, name)) for name in _FIGURES)]
        for runs in by_arm(metrics).values()
        for m in runs
    ]
    return [table(["arm", "seed", "status", *(heading(n) for n in _FIGURES)], rows, kinds="wnw")]


def _figure(name: str, value: float | None) -> str:
    if name.endswith(("_rate", "_share")):
        return percent(value)
    return number(value, digits=4 if name.startswith(("tpot", "itl")) else 2)


def provenance(
    study: StudyConfig, records: Sequence[RunRecord], judgement: Judgement
) -> list[Html]:
    """Where the runs come from; facts that differ between runs are all shown."""
    facts: dict[str, list[str]] = {}
    for record in records:
        for key, value in flatten(record.provenance):
            seen = facts.setdefault(key, [])
            if value not in seen:
                seen.append(value)
    hashes = spread_of_words(str(r.config.get("request_hash", UNKNOWN))[:12] for r in records)
    own = [
        ("study", study.study),
        ("seeds", ", ".join(str(s) for s in study.seeds)),
        ("request files (first 12 hex)", hashes),
        ("hash of the gate's thresholds", judgement.gate_hash),
    ]
    return [definitions([*own, *((heading(k), _few(v)) for k, v in facts.items())])]


def spread_of_words(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _few(values: Sequence[str], *, most: int = 4) -> str:
    """Not a wall of start times: the first and the last where there are many."""
    if len(values) <= most:
        return ", ".join(values)
    ordered = sorted(values)
    return f"{ordered[0]} to {ordered[-1]} ({len(values)} values)"


def flatten(value: Mapping[str, Any], *, prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as dotted names and words; unknown ones are left out."""
    pairs: list[tuple[str, str]] = []
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping):
            pairs += flatten(inner, prefix=f"{name}.")
        elif inner is not None:
            pairs.append((name, str(inner)))
    return pairs
