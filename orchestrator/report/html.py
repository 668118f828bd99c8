"""report.html: one self-contained page with the verdict, the conditions, the figures, the doubts.

Every number comes from the judgement or the metrics, so ``lull gate`` gives each of them again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from orchestrator.calibration.verdict import Condition, Judgement, Verdict, VerdictKind
from orchestrator.config import StudyConfig
from orchestrator.record_files import write_atomic
from orchestrator.records import RunMetrics, RunRecord
from orchestrator.report.markup import (
    Html,
    bullets,
    definitions,
    element,
    generic_table,
    page,
    picture,
    section,
    table,
    text,
)
from orchestrator.report.mirror import short_hash
from orchestrator.report.plots import plot_envelope, plot_timeline
from orchestrator.report.sections import (
    merge_costs,
    provenance,
    requests_account,
    runs_table,
    training,
)
from orchestrator.report.style import CSS
from orchestrator.report.tables import shared_conditions
from orchestrator.report.words import (
    RATES_TITLE,
    UNKNOWN,
    Cell,
    by_arm,
    cell,
    heading,
    interval,
    is_real,
    made_with,
    merges_per_run,
    no_verdict,
    number,
    percent,
    tier_words,
)


def write_report(
    study_dir: Path,
    study: StudyConfig,
    records: Sequence[RunRecord],
    metrics: Sequence[RunMetrics],
    judgement: Judgement,
) -> Path:
    """Write ``study_dir/report.html``; plots that are not there yet are drawn first."""
    timeline, envelope = study_dir / "timeline.png", study_dir / "envelope.png"
    if not timeline.exists():
        plot_timeline(study, records, study_dir)
    if not envelope.exists():
        plot_envelope(study, metrics, judgement, study_dir)
    document = page(
        f"{study.study}: report",
        *head(study, judgement),
        *rates(judgement),
        section("Arms", *_arms(metrics, judgement)),
        section("Conditions of the gate", *conditions_blocks(judgement)),
        section("Each policy against its controls", picture(envelope, alt=_ENVELOPE_ALT)),
        *_placement(judgement),
        section("When the arms merged", picture(timeline, alt=_TIMELINE_ALT)),
        section("Effect of a merge window", *_effects(judgement)),
        section("Cost of a merge, by part", *merge_costs(metrics)),
        section("Training", *training(metrics)),
        section("Requests", *requests_account(records, metrics)),
        section("Every run", *runs_table(metrics)),
        section("Caveats", _caveats(judgement, metrics)),
        section("Provenance", *provenance(study, records, judgement)),
        section("How to compute this again", *_again(study_dir)),
        style=CSS,
        made_from=_digest(metrics, judgement),
    )
    path = study_dir / "report.html"
    write_atomic(path, document.encode())
    return path


def shows(path: Path, metrics: Sequence[RunMetrics], judgement: Judgement) -> bool:
    """Whether the report at ``path`` was written from these very figures."""
    return _digest(metrics, judgement) in path.read_text(encoding="utf-8")


def _digest(metrics: Sequence[RunMetrics], judgement: Judgement) -> str:
    return f"figures-{short_hash([asdict(judgement), [asdict(m) for m in metrics]])}"


_ENVELOPE_ALT = "Violation rate of each policy, its matched-random draws, placebo and no-sync line"
_TIMELINE_ALT = "Request rate, merge windows and violations of every arm over run time"


def head(study: StudyConfig, judgement: Judgement) -> list[Html]:
    """What was asked, on what, and each verdict."""
    made = made_with(judgement)
    blocks = [
        element("p", f"{made}; regime {judgement.regime}", css="soft"),
        element("h1", study.study),
        element("p", study.question),
    ]
    if not is_real(judgement):
        blocks.append(element("p", f"{made}. No statement about a real server.", css="simulated"))
    blocks += [_card(v) for v in judgement.verdicts]
    if not judgement.verdicts:
        blocks.append(element("p", f"{no_verdict(judgement).capitalize()}."))
    return blocks


def _card(verdict: Verdict) -> Html:
    claim = "" if verdict.verdict is VerdictKind.PASS else " (no claim)"
    lines = [
        element("p", f"{verdict.policy}: {verdict.verdict.value}{claim}", css="verdict"),
        element("p", f"{verdict.reason.rstrip('. ')}."),
    ]
    if verdict.sentence:
        lines.append(element("p", verdict.sentence))
    lines.append(element("p", f"Evidence: {tier_words(verdict)}.", css="soft"))
    if verdict.needed:
        lines.append(element("p", element("strong", "Needed: "), verdict.needed))
    return element("div", *lines, css=f"card {verdict.verdict.value}")


_ARM_FIGURES = ("e2e_p50_s", "e2e_p95_s", "ttft_p95_s", "tpot_p95_s", "goodput_rps")


def _arms(metrics: Sequence[RunMetrics], judgement: Judgement) -> list[Html]:
    runs = by_arm(metrics)
    rows = [_arm_row(row, runs=runs.get(str(row["arm"]), [])) for row in judgement.arms]
    headings = ("arm", "kind", "runs", "requests", "violations", "rate", "per merge")
    note = (
        "Pooled over complete runs (runs: complete of all). A violation is a counted request that "
        "failed or broke the SLO, from its scheduled time. Percentiles are of the pooled "
        "successful requests. Controls are never deployable."
    )
    figures = [*(heading(name) for name in _ARM_FIGURES), "merges per run"]
    return [table([*headings, *figures], rows, kinds="ww"), element("p", note, css="soft")]


def _arm_row(row: Mapping[str, Cell], *, runs: Sequence[RunMetrics]) -> list[str]:
    merges, violations = row.get("merges"), row.get("violations")
    per_merge = UNKNOWN
    if isinstance(merges, int) and isinstance(violations, int) and merges:
        per_merge = number(violations / merges)
    return [
        str(row["arm"]),
        "control" if "(control)" in str(row.get("kind")) else cell("kind", row.get("kind")),
        f"{cell('runs', row.get('runs'))} of {len(runs)}",
        *(cell(name, row.get(name)) for name in ("requests", "violations", "violation_rate")),
        per_merge,
        *(cell(name, row.get(name)) for name in _ARM_FIGURES),
        merges_per_run(runs),
    ]


def conditions_blocks(judgement: Judgement) -> list[Html]:
    """Every condition of the gate."""
    rows = [_condition_row(policy, c) for policy, c in shared_conditions(judgement)]
    headings = (
        "condition",
        "policy",
        "status",
        "value",
        "interval",
        "n",
        "why, and what was asked",
    )
    intro = "All are computed; the first that is not met names the verdict."
    return [element("p", intro, css="soft"), table(headings, rows, kinds="wwwnnnt")]


def _condition_row(policy: str | None, condition: Condition) -> list[str]:
    status = condition.status.value
    return [
        condition.name,
        policy or "all judged",
        element("span", status.replace("_", " "), css=status),
        UNKNOWN if condition.value is None else f"{condition.value:.3g}",
        interval(condition.interval),
        str(condition.n),
        Html(text(condition.why) + element("div", f"asked: {condition.threshold}", css="soft")),
    ]


def _placement(judgement: Judgement) -> list[Html]:
    return [
        section(comparison_title(v), comparison(v), generic_table(v.per_seed))
        for v in judgement.verdicts
    ]


def comparison_title(verdict: Verdict) -> str:
    return f"{verdict.policy} minus matched random, {verdict.n_seeds} seeds"


def comparison(v: Verdict) -> Html:
    """The figures of one judged policy against its control."""
    return definitions(
        [
            ("violation rate, policy", percent(v.violation_rate_policy)),
            ("violation rate, matched random", percent(v.violation_rate_control)),
            ("difference", _difference(v)),
            ("relative gain", _gain(v)),
            ("p, one-sided; after Holm", _two(v.p_value, v.p_holm)),
            ("least attainable p", number(v.least_attainable_p, digits=4)),
            ("p, labels permuted within a seed", number(v.permutation_p, digits=4)),
        ]
    )


def rates(judgement: Judgement) -> list[Html]:
    """Rate effects of free cadence; nothing where the budget is fixed."""
    if not judgement.rate_effects:
        return []
    note = (
        "Free cadence: each policy merged as often as it liked. difference: violation rate minus "
        "that of the same seeds' no_sync, with a 90 % interval over seeds; excess per merge: "
        "violations above no_sync for each merge."
    )
    return [
        section(RATES_TITLE, element("p", note, css="soft"), generic_table(judgement.rate_effects))
    ]


def _difference(verdict: Verdict) -> str:
    """Of two shares, so in percentage points."""
    if verdict.difference is None:
        return UNKNOWN
    text = f"{100 * verdict.difference:+.1f} percentage points"
    bounds = verdict.difference_interval
    if bounds is None:
        return f"{text} (no interval: too few seeds)"
    return f"{text}, interval [{100 * bounds[0]:+.1f}, {100 * bounds[1]:+.1f}]"


def _two(first: float | None, second: float | None) -> str:
    return f"{number(first, digits=4)}; {number(second, digits=4)}"


def _gain(verdict: Verdict) -> str:
    gain, bounds = percent(verdict.relative_gain), verdict.relative_gain_interval
    if verdict.relative_gain is None:
        return gain
    if bounds is None:
        return f"{gain} (no interval: too few seeds)"
    return f"{gain}, interval {interval(bounds, as_percent=True)}"


def _effects(judgement: Judgement) -> list[Html]:
    if not judgement.effects:
        return [element("p", "Not computed: it needs matched_random and no_sync of the same seed.")]
    note = (
        "p95 of the requests scheduled inside the windows of matched random, over p95 of the same "
        "request ids in that seed's no_sync; the placebo's windows hold no merge. The real part "
        "leaves out what a synthetic load filled."
    )
    return [element("p", note, css="soft"), generic_table(judgement.effects)]


def _caveats(judgement: Judgement, metrics: Sequence[RunMetrics]) -> Html:
    items = list(judgement.caveats)
    items += [f"{m.arm}, seed {m.seed}: {m.status}: {m.why}" for m in metrics if m.why]
    items += [f"{m.arm}, seed {m.seed}: {fault}" for m in metrics for fault in m.faults]
    return bullets(dict.fromkeys(items)) if items else element("p", "None were noted.")


def _again(study_dir: Path) -> list[Html]:
    name = study_dir.name
    commands = (
        f"lull gate {name} --json     # metrics and verdicts from the run folders alone\n"
        f"lull report {name}          # this page and the plots\n"
        f"lull track {name}           # the MLflow mirror"
    )
    note = (
        "Run from the folder that holds the study run. metrics.json and verdicts.json may be "
        "deleted first: nothing is read back from them."
    )
    return [element("pre", element("code", commands)), element("p", note, css="soft")]
