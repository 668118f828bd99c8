"""Tables for the terminal: the arms, the gate's conditions, and the verdict in one sentence.

Made for 80 columns and readable without colour: no meaning is carried by colour alone.
"""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from orchestrator.calibration.verdict import Condition, Judgement, Status
from orchestrator.records import RunMetrics
from orchestrator.report.words import (
    RATES_TITLE,
    UNKNOWN,
    Cell,
    by_arm,
    cell,
    headline,
    interval,
    is_real,
    made_with,
    merges_per_run,
    no_verdict,
    number,
    percent,
    pooled_rate,
    spread,
)

_STYLES = {
    Status.MET: "green",
    Status.NOT_MET: "bold red",
    Status.NOT_ASSESSABLE: "yellow",
    Status.ABSENT: "yellow",
}


def arms_table(metrics: Sequence[RunMetrics]) -> Table:
    """One row an arm, pooled over its complete runs; what was left out is said."""
    table = Table(
        title=_arms_title(metrics),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption="viol.: share of the counted requests, and for each merge; "
        "p95 e2e and merges per run: least-largest over seeds",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("arm", overflow="fold")
    for name in ("runs", "reqs", "viol.", "/merge", "p95 e2e s", "merges"):
        table.add_column(name, justify="right")
    for arm, runs in by_arm(metrics).items():
        table.add_row(*_arm_row(arm, runs=runs))
    return table


def _arms_title(metrics: Sequence[RunMetrics]) -> str:
    made = sorted({(m.source, m.engine, m.engine_version) for m in metrics})
    what = "; ".join(f"{s}, engine={e} {v}".strip() for s, e, v in made) or "no runs"
    simulated = any(s != "live" or e != "vllm" for s, e, _ in made)
    return f"arms (SIMULATED: {what})" if simulated else f"arms ({what})"


def _arm_row(arm: str, *, runs: list[RunMetrics]) -> list[Text]:
    valid = [m for m in runs if m.status == "complete"]
    count = str(len(valid)) if len(valid) == len(runs) else f"{len(valid)}/{len(runs)}"
    merges = sum(m.merge_count for m in valid)
    per_merge = sum(m.violations for m in valid) / merges if merges else None
    cells = [
        f"{arm} (control)" if runs[0].kind == "oracle" else arm,  # it beats all and cannot be used
        count,
        str(sum(m.requests_scheduled for m in valid)) if valid else UNKNOWN,
        percent(pooled_rate(valid)),
        number(per_merge),
        spread(m.e2e_p95_s for m in valid),
        merges_per_run(valid),
    ]
    style = "" if len(valid) == len(runs) else "red"
    return [Text(c, style=style) for c in cells]


_REPLAY_FIGURES = (
    ("runs", "runs"),
    ("merges", "merges"),
    ("viol.", "violation_rate"),
    ("p95 e2e s", "e2e_p95_middle_s"),
    ("excess s", "excess_per_merge_s"),
)


def replay_table(judgement: Judgement) -> Table:
    """One row an arm of a replay, the draws of matched random together."""
    table = Table(
        title=f"arms ({made_with(judgement)})",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption="viol.: share of the counted requests; p95 e2e: the middle one of the runs; "
        "excess: latency above no_sync over all requests, for each merge",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("arm", overflow="fold")
    for name, _ in _REPLAY_FIGURES:
        table.add_column(name, justify="right")
    for row in judgement.arms:
        draws = row.get("draws")
        name = str(row["arm"]) if draws is None else f"{row['arm']} ({draws} draws)"
        table.add_row(name, *(cell(key, row.get(key)) for _, key in _REPLAY_FIGURES))
    return table


def rates_table(judgement: Judgement) -> Table:
    """Free cadence: what each policy's own rate of merging cost."""
    table = Table(
        title=f"{RATES_TITLE.lower()} ({made_with(judgement)})",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption="merges: in all runs; viol.: share of the counted requests; diff.: minus no_sync "
        "of the same seeds, percentage points, 90 % interval; /merge: violations, and those above "
        "no_sync",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("arm", overflow="fold")
    for name in ("runs", "merges", "viol.", "no_sync", "diff.", "/merge", "above"):
        table.add_column(name, justify="right")
    for row in judgement.rate_effects:
        table.add_row(
            str(row["arm"]),
            cell("runs", row["runs"]),
            cell("merges", row["merges"]),
            cell("violation_rate", row["violation_rate"]),
            cell("no_sync_rate", row["no_sync_rate"]),
            _points(row),
            cell("violations_per_merge", row["violations_per_merge"]),
            cell("excess_per_merge", row["excess_per_merge"]),
        )
    return table


def _points(row: Mapping[str, Cell]) -> str:
    values = [row[k] for k in ("difference", "difference_low", "difference_high")]
    mean, low, high = (f"{100 * v:+.1f}" if isinstance(v, float) else UNKNOWN for v in values)
    return mean if UNKNOWN in (low, high) else f"{mean} [{low}, {high}]"


def conditions_table(judgement: Judgement) -> Table:
    """Every condition of the gate; those equal for all judged policies stand once."""
    table = Table(
        title=f"conditions of the gate ({made_with(judgement)})",
        box=box.SIMPLE,
        title_justify="left",
        leading=1,
    )
    table.add_column("condition", overflow="fold", max_width=20)
    table.add_column("outcome", overflow="fold", max_width=20)
    table.add_column("n", justify="right")
    table.add_column("why, and what was asked", overflow="fold", ratio=1)
    for policy, condition in shared_conditions(judgement):
        name = condition.name if policy is None else f"{condition.name}\n({policy})"
        status = condition.status.value.replace("_", " ")
        outcome = Text(status, style=_STYLES[condition.status])
        if condition.value is not None:
            outcome.append(f"\n{condition.value:.3g}", style="default")
        if condition.interval is not None:
            outcome.append(f"\n{interval(condition.interval)}", style="default")
        why = Text(condition.why).append(f"\nasked: {condition.threshold}", style="dim")
        table.add_row(Text(name), outcome, str(condition.n), why)
    return table


def shared_conditions(judgement: Judgement) -> list[tuple[str | None, Condition]]:
    """Conditions in gate order; policy is None where all verdicts hold the very same one."""
    found: list[tuple[str | None, Condition]] = []
    for verdict in judgement.verdicts:
        for condition in verdict.conditions:
            common = all(condition in other.conditions for other in judgement.verdicts)
            entry = (None if common else verdict.policy, condition)
            if entry not in found:
                found.append(entry)
    return found


def verdict_sentence(judgement: Judgement) -> str:
    """One line for each judged policy: verdict, tier, reason, and what would be needed."""
    if not judgement.verdicts:
        return no_verdict(judgement)
    mark = "" if is_real(judgement) else f"[{made_with(judgement)}] "
    lines = []
    for verdict in judgement.verdicts:
        needed = f" Needed: {verdict.needed.rstrip('. ')}." if verdict.needed else ""
        lines.append(f"{mark}{headline(verdict)}{needed}")
    return "\n".join(lines)
