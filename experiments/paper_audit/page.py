"""The audit as one page: the answer, what was published against recomputed, every condition."""

from collections.abc import Sequence

from experiments.paper_audit.document import Document, Section, Table
from experiments.paper_audit.finding import Finding
from experiments.paper_audit.tables import Tables
from orchestrator.calibration.published import pair_name
from orchestrator.calibration.verdict import Condition, Judgement, Status, Verdict
from orchestrator.report.words import UNKNOWN, Cell, number, percent

CITATION = (
    "Twelftree, Lemphers, He, Yang: Calibrating DiLoCo Synchronization Claims: Workload-Aware "
    "Scheduling for Co-Located Training and Serving, 2026. CC BY 4.0. Figures from the result "
    "summaries of github.com/maincodeMax/workload-aware-diloco, commit "
    "bbf7a1c232c280d067ebc3df205d9cdbd649c7e2; reshaped, columns renamed, derived columns added."
)
_QUESTION = (
    "What do the published figures of the paper support under this project's gate? Every figure "
    "here is computed from the copied tables by the gate's own code."
)
_LEGEND = (
    "In the tables below violations, windows and merge seconds are of the policy / of the control, "
    "means over runs. n: seeds of which both are published. p: one-sided sign flip over them, "
    "unknown where seeds lack. Least p: what all seeds could reach at best, after Holm over the "
    "table. Contradicted: conditions that the figures themselves speak against."
)


def write_document(
    judgements: Sequence[Judgement], found: Sequence[Finding], tables: Tables
) -> Document:
    """All of the page but the figure."""
    verdicts = [v for j in judgements for v in j.verdicts]
    return Document(
        title="Audit of the published comparison",
        lead=(_QUESTION, _answer(verdicts)),
        sections=(
            Section(title="Published, and recomputed", blocks=(_findings(found),)),
            Section(title="Comparisons", blocks=(_LEGEND,)),
            *(_comparisons(j) for j in judgements),
            *_arms(judgements),
            _conditions(judgements),
            Section(title="Needed for a claim", blocks=(_needed(verdicts),)),
            Section(title="Caveats", blocks=(_caveats(judgements),)),
            Section(title="Data", blocks=(CITATION, _files(tables))),
        ),
    )


def _answer(verdicts: Sequence[Verdict]) -> str:
    kinds = {kind: sum(v.verdict == kind for v in verdicts) for kind in ("PASS", "FAIL")}
    exposure = sum(_status(v, "exposure_match") is Status.NOT_MET for v in verdicts)
    load = sum(_status(v, "load_match") is Status.NOT_MET for v in verdicts)
    return (
        f"{kinds['PASS']} of {len(verdicts)} comparisons are PASS, {kinds['FAIL']} FAIL, "
        f"{len(verdicts) - sum(kinds.values())} INCONCLUSIVE. In {load} the arms served different "
        f"loads, in {exposure} they merged for different times. That a comparison is INCONCLUSIVE "
        "does not say that the policy is bad: it says that these figures cannot tell."
    )


def _status(verdict: Verdict, name: str) -> Status:
    return next(c.status for c in verdict.conditions if c.name == name)


def _findings(found: Sequence[Finding]) -> Table:
    return Table(
        headings=("published", "recomputed here", "what it supports"),
        rows=tuple((f"{f.subject}: {f.published}", f.recomputed, f.supports) for f in found),
        kinds="ttt",
    )


def _comparisons(judgement: Judgement) -> Section:
    by_arm = {str(row["arm"]): row for row in judgement.arms}
    headings = (
        "policy against control",
        "verdict",
        "contradicted",
        "violations",
        "windows a run",
        "merge seconds",
        "n",
        "p; after Holm",
        "least p",
        "gain; lower bound",
    )
    rows = tuple(_comparison(v, by_arm) for v in judgement.verdicts)
    return Section(
        title=f"{judgement.study}: {judgement.regime}",
        blocks=(Table(headings=headings, rows=rows, kinds="wwwnnnnnnn"),),
    )


def _comparison(verdict: Verdict, by_arm: dict[str, dict[str, Cell]]) -> tuple[str, ...]:
    policy, control = (by_arm[name] for name in _pair(verdict, by_arm))
    known = verdict.p_holm is not None
    refuted = [c.name for c in verdict.conditions if c.status is Status.NOT_MET]
    return (
        verdict.policy,
        verdict.verdict.value,
        ", ".join(refuted) or "nothing",
        f"{_percent(policy['violation_rate'])} / {_percent(control['violation_rate'])}",
        f"{_number(policy['windows'])} / {_number(control['windows'])}",
        f"{_number(policy['merge_s'], 0)} / {_number(control['merge_s'], 0)}",
        str(verdict.n_seeds),
        f"{number(verdict.p_value, digits=3)}; {number(verdict.p_holm, digits=3)}"
        if known
        else UNKNOWN,
        number(verdict.least_attainable_p, digits=3),
        _gain(verdict) if known else UNKNOWN,
    )


def _pair(verdict: Verdict, by_arm: dict[str, dict[str, Cell]]) -> tuple[str, str]:
    return next((a, b) for a in by_arm for b in by_arm if pair_name(a, b) == verdict.policy)


def _percent(value: Cell) -> str:
    return percent(value) if isinstance(value, float) else UNKNOWN


def _number(value: Cell, digits: int = 1) -> str:
    return number(value, digits=digits) if isinstance(value, int | float) else UNKNOWN


def _gain(verdict: Verdict) -> str:
    bounds = verdict.relative_gain_interval
    low = UNKNOWN if bounds is None else percent(bounds[0])
    return f"{percent(verdict.relative_gain)}; {low}"


def _arms(judgements: Sequence[Judgement]) -> tuple[Section, ...]:
    """Arms of the steady and of the bursty load, each once."""
    shown: dict[str, Judgement] = {}
    for judgement in judgements:
        shown.setdefault(judgement.regime, judgement)
    headings = (
        "arm",
        "runs",
        "violations",
        "requests a run",
        "requests a second",
        "windows a run",
        "merge seconds",
        "violations a window",
        "requests in windows, a window",
        "violation share a window",
    )
    return tuple(
        Section(
            title=f"Arms, {regime}",
            blocks=(
                Table(
                    headings=headings,
                    rows=tuple(_arm(row) for row in judgement.arms),
                    kinds="w" + "n" * (len(headings) - 1),
                ),
            ),
        )
        for regime, judgement in shown.items()
    )


def _arm(row: dict[str, Cell]) -> tuple[str, ...]:
    share = row["violation_rate_per_window"]
    return (
        str(row["arm"]),
        str(row["runs"]),
        _percent(row["violation_rate"]),
        _number(row["requests"], 0),
        _number(row["requests_per_s"], 2),
        _number(row["windows"]),
        _number(row["merge_s"], 0),
        _number(row["violations_per_window"]),
        _number(row["requests_in_windows_per_window"]),
        percent(share, digits=2) if isinstance(share, float) else UNKNOWN,
    )


def _conditions(judgements: Sequence[Judgement]) -> Section:
    """In the gate's order; those that are equal stand once."""
    groups: dict[tuple[str, ...], list[tuple[Judgement, Verdict]]] = {}
    order: list[str] = []
    for judgement in judgements:
        for verdict in judgement.verdicts:
            for condition in verdict.conditions:
                order += [condition.name] if condition.name not in order else []
                groups.setdefault(_cells(condition), []).append((judgement, verdict))
    rows = sorted(groups.items(), key=lambda item: order.index(item[0][0]))
    return Section(
        title="Conditions of the gate",
        blocks=(
            "The first that the figures contradict names the verdict. What no summary of a run "
            "can tell is not assessable, whatever the figures are.",
            Table(
                headings=("condition", "outcome", "value", "why", "comparison"),
                rows=tuple((*cells, _whose(owners, judgements)) for cells, owners in rows),
                kinds="wwntt",
            ),
        ),
    )


def _cells(condition: Condition) -> tuple[str, ...]:
    return (
        condition.name,
        condition.status.value.replace("_", " "),
        UNKNOWN if condition.value is None else f"{condition.value:.3g}",
        condition.why,
    )


def _whose(owners: Sequence[tuple[Judgement, Verdict]], judgements: Sequence[Judgement]) -> str:
    """Comparisons that share a condition: all, whole tables, or each by name."""
    if len(owners) == sum(len(j.verdicts) for j in judgements):
        return "all"
    words = []
    for judgement in judgements:
        mine = [v.policy for j, v in owners if j is judgement]
        if len(mine) == len(judgement.verdicts):
            words.append(f"{judgement.study}: all")
        else:
            words += [f"{judgement.study}: {policy}" for policy in mine]
    return "; ".join(words)


def _needed(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    return tuple(f"{v.policy}: {v.needed}" for v in verdicts)


def _caveats(judgements: Sequence[Judgement]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(c for j in judgements for c in j.caveats))


def _files(tables: Tables) -> tuple[str, ...]:
    return tuple(f"{name}: sha256 {digest}" for name, digest in tables.sha256.items())
