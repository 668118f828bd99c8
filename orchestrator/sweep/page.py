"""sweep.html and sweep.md: the best setting, its held-out verdict, the table, the plots."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.record_files import write_atomic
from orchestrator.replay.conditions import DRAWS_WANTED
from orchestrator.report.markup import (
    Html,
    bullets,
    element,
    page,
    picture,
    section,
    table,
)
from orchestrator.report.mirror import short_hash
from orchestrator.report.style import CSS
from orchestrator.report.words import UNKNOWN, interval, number, percent, percent_within
from orchestrator.sweep.config import Value
from orchestrator.sweep.plots import MADE
from orchestrator.sweep.result import (
    HeldOut,
    SettingRow,
    SweepResult,
    Tuned,
    result_json,
    why_nothing,
)


def write_page(folder: Path, result: SweepResult) -> Path:
    """One self-contained file; importance.png and response.png have been drawn."""
    document = page(
        f"{result.study}: sweep",
        element("p", f"{MADE}; regime {result.regime}", css="soft"),
        element("h1", f"{result.study}: settings of {result.policy}"),
        element("p", f"{MADE}. No statement about a real server.", css="simulated"),
        _card(result),
        section("Corrections", bullets(result.corrections)),
        section(
            "Response of the gain",
            picture(folder / "response.png", alt="Gain of each setting against each parameter"),
        ),
        section(
            "What decides the gain",
            picture(folder / "importance.png", alt="Importance of each parameter"),
        ),
        section("Every setting", table(_headings(result), _cells(result), kinds="nww")),
        section(
            "How to compute this again",
            element(
                "p",
                "results.jsonl holds every block; judging/load-0 is a replay that `lull gate` "
                "judges again.",
            ),
        ),
        style=CSS,
        made_from=f"figures-{short_hash(result_json(result))}",
    )
    path = folder / "sweep.html"
    write_atomic(path, document.encode())
    return path


def _card(result: SweepResult) -> Html:
    verdict = result.verdict
    lines = [element("p", f"{result.policy}: {verdict}", css="verdict")]
    lines += [element("p", line) for line in summary_lines(result)]
    return element("div", *lines, css=f"card {verdict}")


def summary_lines(result: SweepResult) -> list[str]:
    """The result in words, for terminal and page."""
    counts = ", ".join(f"{n} {state}" for state, n in result.counts.items() if n)
    lines = [f"{MADE}; tier 0 at most: no statement about a real server."]
    lines += [f"{len(result.settings)} settings asked for by {result.search}: {counts}."]
    if result.left_behind:
        lines.append(
            f"{result.left_behind} more in results.jsonl count as tries: the search went another "
            "way after a failure."
        )
    if result.tuned is None:
        return [*lines, f"Nothing was judged: {why_nothing(result)}."]
    lines.append(_tuned_line(result.tuned))
    lines += [_held_out_line(h, tried=result.tuned.settings_tried) for h in result.held_out]
    if result.winners_curse is not None:
        lines.append(
            "Winner's curse: gain on the tuning blocks minus gain on the judging blocks "
            f"{100 * result.winners_curse:+.1f} points."
        )
    return lines


def _tuned_line(tuned: Tuned) -> str:
    p = UNKNOWN if tuned.p_value is None else f"{tuned.p_value:.3g}"
    corrected = UNKNOWN if tuned.p_of_the_best is None else f"{tuned.p_of_the_best:.3g}"
    return (
        f"Best on {tuned.seeds} tuning seeds: {_words(tuned.values)} (setting {tuned.number}, "
        f"{tuned.setting}): gain "
        f"{percent_within(tuned.gain, tuned.gain_interval)}, p {p}, times "
        f"{tuned.settings_tried} settings {corrected}; {_draws(tuned.draws)}."
    )


def _draws(draws: int) -> str:
    said = f"{draws} draws of matched random a seed"
    return said if draws >= DRAWS_WANTED else f"{said}, fewer than the {DRAWS_WANTED} wanted"


def _held_out_line(held: HeldOut, *, tried: int) -> str:
    """The second p is stricter than held-out seeds ask for: for a reader who trusts no split."""
    p, strict = UNKNOWN, UNKNOWN
    if held.p_holm is not None:
        p, strict = f"{held.p_holm:.3g}", f"{min(1.0, tried * held.p_holm):.3g}"
    tier = "no tier" if held.tier is None else f"tier {held.tier}"
    return (
        f"Held out, load {held.load}, {held.seeds} seeds: {held.verdict} (SIMULATED, {tier}): gain "
        f"{percent_within(held.gain, held.gain_interval)}, p (Holm over "
        f"{held.family}) {p}, times {tried} settings {strict}; {_draws(held.draws)}. "
        f"{held.reason.rstrip('. ')}."
    )


def _words(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{path} = {_value(value)}" for path, value in values.items())


def _value(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _parameters(result: SweepResult) -> list[str]:
    return list(result.settings[0].values) if result.settings else []


def _headings(result: SweepResult) -> list[str]:
    return [
        "#",
        "setting",
        "state",
        *_parameters(result),
        "seeds",
        "gain",
        "95 % interval",
        "violations",
        "matched random",
        "merges",
    ]


def _cells(result: SweepResult) -> list[list[str]]:
    """By gain, the largest first; unknown ones last, in order of asking."""
    ordered = sorted(
        result.settings,
        key=lambda r: (r.state != "complete", r.gain is None, -(r.gain or 0.0), r.number),
    )
    return [_row(row, _parameters(result)) for row in ordered]


def _row(row: SettingRow, parameters: Sequence[str]) -> list[str]:
    return [
        str(row.number),
        row.setting,
        row.state if row.why is None else f"{row.state}: {row.why}",
        *(_value(row.values[name]) for name in parameters),
        str(row.seeds),
        percent(row.gain),
        interval(row.gain_interval, as_percent=True),
        percent(row.violation_rate_policy),
        percent(row.violation_rate_control),
        number(row.merges, digits=1),
    ]


def write_markdown(folder: Path, result: SweepResult) -> Path:
    """The same words and table for a README."""
    head = _headings(result)
    rows = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head))]
    rows += ["| " + " | ".join(c.replace("|", "/") for c in row) + " |" for row in _cells(result)]
    said = [f"- {line}" for line in (*summary_lines(result), *result.corrections)]
    text = [f"# {result.study}: settings of {result.policy}", "", f"{MADE}.", "", *said, "", *rows]
    path = folder / "sweep.md"
    write_atomic(path, ("\n".join(text) + "\n").encode())
    return path
