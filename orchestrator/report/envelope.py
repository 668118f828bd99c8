"""envelope.png: the violation rate of each policy beside its own controls, seed by seed."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from orchestrator.calibration.verdict import Judgement, Verdict
from orchestrator.config import StudyConfig
from orchestrator.records import RunMetrics
from orchestrator.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RULE,
    empty_figure,
    legend,
    name_rows,
    new_figure,
    place,
    save,
    title,
)
from orchestrator.report.envelope_rows import Row, envelope_rows, no_sync_rates
from orchestrator.report.words import interval, made_with, percent

_HEAD_IN, _FOOT_IN, _ROW_IN, _GROUP_GAP = 0.85, 0.7, 0.52, 0.35
_LEFT_OF_ZERO = 0.02  # of the axis, so that a marker at 0 is seen whole
STYLES = {
    "policy": (BLUE, "o", "policy"),
    "matched_random": (ORANGE, "D", "matched random (draws)"),
    "placebo": (PURPLE, "^", "placebo"),
    "oracle": (INK, "*", "oracle (control)"),
    "aa": (GREEN, "s", "A/A"),
}


def plot_envelope(
    study: StudyConfig, metrics: Sequence[RunMetrics], judgement: Judgement, folder: Path
) -> Path:
    """Write ``folder/envelope.png``; only complete runs are drawn."""
    name, path = f"{study.study}: each policy against its controls", folder / "envelope.png"
    groups, base = envelope_rows(metrics), no_sync_rates(metrics)
    if not groups and not base:
        return save(empty_figure(name, "no run is complete"), path)
    rows = _positions(groups)
    height_in = _ROW_IN * (len(rows) + _GROUP_GAP * max(0, len(groups) - 1)) + 0.2
    height_in = max(height_in, 1.0)
    figure = new_figure(height_in=_HEAD_IN + height_in + _FOOT_IN)
    axes = place(figure, top_in=_HEAD_IN, height_in=height_in, left_in=2.7, right_in=3.3)
    axes.spines["left"].set_visible(False)
    for y, row in rows:
        _draw_row(axes, row, y=y)
    _draw_groups(axes, groups, judgement=judgement)
    _no_sync_line(axes, base)
    axes.set_ylim((rows[-1][0] if rows else 0.0) + 0.65, -0.65)
    right = 1.22 * max(100 * _largest(rows, base), 1.0)
    axes.set_xlim(-_LEFT_OF_ZERO * right, right)
    name_rows(axes, [row.label for _, row in rows], at=[y for y, _ in rows])
    axes.grid(axis="x", color=RULE, linewidth=0.6)
    axes.set_xlabel(
        "violation rate: violations in % of the requests scheduled in "
        f"[{study.warmup_s:g}, {study.horizon_s:g}) s; one point a seed",
        fontsize=10,
    )
    title(figure, name, made=made_with(judgement))
    legend(figure, _handles([row for _, row in rows], lined=bool(base)))
    return save(figure, path)


def _positions(groups: list[list[Row]]) -> list[tuple[float, Row]]:
    found, y = [], 0.0
    for group in groups:
        for row in group:
            found.append((y, row))
            y += 1.0
        y += _GROUP_GAP
    return found


def _largest(rows: list[tuple[float, Row]], base: list[float]) -> float:
    return max([*base, *(r for _, row in rows for rates in row.rates.values() for r in rates)])


def _draw_row(axes: Axes, row: Row, *, y: float) -> None:
    colour, marker, _ = STYLES[row.role]
    xs = [100 * rate for rates in row.rates.values() for rate in rates]
    axes.plot(
        xs, [y] * len(xs), color=colour, marker=marker, ls="none", ms=6.5, alpha=0.75, clip_on=False
    )
    mean = 100 * row.mean()
    axes.plot([mean, mean], [y - 0.3, y + 0.3], color=colour, linewidth=2.6)
    _note(axes, f"mean {mean:.1f} %", at=(mean, y - 0.3), offset=(4, 0), size=8.5)


def _draw_groups(axes: Axes, groups: list[list[Row]], *, judgement: Judgement) -> None:
    verdicts = {v.policy: v for v in judgement.verdicts}
    y = 0.0
    for group in groups:
        _join_seeds(axes, group, top=y)
        _verdict_note(axes, verdicts.get(group[0].policy), y=y)
        y += len(group) + _GROUP_GAP
        if group is not groups[-1]:
            axes.axhline(y - 0.5 - _GROUP_GAP / 2, color=RULE, linewidth=0.8)


def _join_seeds(axes: Axes, group: list[Row], *, top: float) -> None:
    """A thin line a seed, from the policy to the mean of that seed's draws."""
    at = {row.role: (i, row) for i, row in enumerate(group)}
    if "policy" not in at or "matched_random" not in at:
        return
    (i, policy), (j, control) = at["policy"], at["matched_random"]
    for seed in policy.rates.keys() & control.rates.keys():
        xs = [100 * sum(r) / len(r) for r in (policy.rates[seed], control.rates[seed])]
        axes.plot(xs, [top + i, top + j], color=GREY, linewidth=0.7, zorder=1)


def _no_sync_line(axes: Axes, rates: list[float]) -> None:
    if rates:
        axes.axvspan(100 * min(rates), 100 * max(rates), color="#E2E2E2", zorder=0)
        axes.axvline(100 * sum(rates) / len(rates), color=INK, ls="--", lw=1.2, zorder=1)


def _verdict_note(axes: Axes, verdict: Verdict | None, *, y: float) -> None:
    if verdict is None:
        return
    lines = [f"{verdict.verdict.value} (n = {verdict.n_seeds})"]
    if verdict.relative_gain is not None:
        gain = f"gain over control {percent(verdict.relative_gain)}"
        bounds = verdict.relative_gain_interval
        lines.append(gain if bounds is None else f"{gain} {interval(bounds, as_percent=True)}")
    if verdict.p_value is not None:
        lines.append(f"p {verdict.p_value:.3g} (least possible {verdict.least_attainable_p:.3g})")
    for i, line in enumerate(lines):
        axes.annotate(
            line,
            (1.02, y),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 6 - 14 * i),
            textcoords="offset points",
            va="center",
            fontsize=10 if i == 0 else 9,
            fontweight="bold" if i == 0 else "normal",
            color=INK,
        )


def _note(
    axes: Axes, text: str, *, at: tuple[float, float], offset: tuple[float, float], size: float
) -> None:
    axes.annotate(
        text,
        at,
        xytext=offset,
        textcoords="offset points",
        va="center",
        fontsize=size,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.9, "pad": 0.8},  # over lines
    )


def _handles(rows: list[Row], *, lined: bool) -> list[Artist]:
    roles = {row.role for row in rows}
    handles: list[Artist] = [
        Line2D([], [], ls="none", marker=marker, color=colour, ms=6.5, label=label)
        for role, (colour, marker, label) in STYLES.items()
        if role in roles
    ]
    if lined:
        label = "no sync: mean, band = all its runs"
        handles.append(Line2D([], [], color=INK, ls="--", lw=1.2, label=label))
    if {"policy", "matched_random"} <= roles:
        handles.append(Line2D([], [], color=GREY, lw=0.7, label="same seed (mean of its draws)"))
    return handles
