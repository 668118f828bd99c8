"""timeline.png: for each seed the request rate, and under it when every arm merged and violated."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from orchestrator.config import StudyConfig
from orchestrator.records import RunRecord
from orchestrator.report.canvas import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    RULE,
    SHADE,
    SKY,
    empty_figure,
    footnote,
    legend,
    name_rows,
    new_figure,
    place,
    save,
    title,
)
from orchestrator.report.series import (
    Window,
    made_by,
    order_of_arms,
    request_rate,
    violation_marks,
    windows,
)
from orchestrator.report.words import percent

MAX_SEED_PANELS = 4
MAX_ARM_ROWS = 16
_LEFT_IN, _RIGHT_IN, _HEAD_IN, _FOOT_IN = 2.6, 1.85, 1.05, 0.75
_RATE_IN, _ROW_IN, _SEED_GAP_IN = 0.95, 0.3, 0.65


def plot_timeline(study: StudyConfig, records: Sequence[RunRecord], folder: Path) -> Path:
    """Write ``folder/timeline.png``; what is too much to read is counted there, not drawn."""
    name = f"{study.study}: merge windows and SLO violations"
    seeds = sorted({r.seed for r in records})
    if not seeds:
        return save(empty_figure(name, "no run was recorded"), folder / "timeline.png")
    arms = order_of_arms(study, records)
    shown, rows = seeds[:MAX_SEED_PANELS], arms[:MAX_ARM_ROWS]
    arms_in = _ROW_IN * len(rows) + 0.1
    panel_in = _RATE_IN + 0.08 + arms_in + _SEED_GAP_IN
    figure = new_figure(height_in=_HEAD_IN + panel_in * len(shown) - _SEED_GAP_IN + _FOOT_IN)
    sides = {"left_in": _LEFT_IN, "right_in": _RIGHT_IN}
    for i, seed in enumerate(shown):
        here = {r.arm.label: r for r in records if r.seed == seed}
        top_in = _HEAD_IN + i * panel_in
        rate_axes = place(figure, top_in=top_in, height_in=_RATE_IN, **sides)
        _draw_rate(rate_axes, study, record=next(iter(here.values())))
        rate_axes.set_title(f"seed {seed}", loc="left", fontsize=10.5, fontweight="bold", pad=4)
        below_in = top_in + _RATE_IN + 0.08
        arm_axes = place(figure, top_in=below_in, height_in=arms_in, **sides)
        _draw_arms(arm_axes, study, rows=rows, records=here)
    arm_axes.set_xlabel("run time [s], 0 = first tick", fontsize=10)
    title(figure, name, made=made_by(records))
    footnote(figure, _left_out(len(shown), seeds=len(seeds), rows=len(rows), arms=len(arms)))
    legend(figure, _handles([w for r in records for w in windows(r)]))
    return save(figure, folder / "timeline.png")


def _left_out(shown: int, *, seeds: int, rows: int, arms: int) -> str:
    notes = []
    if shown < seeds:
        notes.append(f"first {shown} of {seeds} seeds drawn")
    if rows < arms:
        notes.append(f"first {rows} of {arms} arms drawn")
    return f"{'; '.join(notes)}; all count in the figures" if notes else ""


def _draw_rate(axes: Axes, study: StudyConfig, *, record: RunRecord) -> None:
    rate = request_rate(record, horizon_s=study.horizon_s)
    axes.stairs(rate, [float(i) for i in range(len(rate) + 1)], fill=True, color="#B5B5B5")
    axes.set_ylabel("requests/s", fontsize=9.5)
    axes.set_ylim(0, max(1.0, float(rate.max(initial=0.0))) * 1.1)
    axes.tick_params(labelbottom=False)
    _time_axis(axes, study)


def _draw_arms(
    axes: Axes, study: StudyConfig, *, rows: list[str], records: dict[str, RunRecord]
) -> None:
    axes.set_ylim(len(rows) - 0.4, -0.6)
    name_rows(axes, rows, at=range(len(rows)))
    for y, label in enumerate(rows):
        axes.axhline(y + 0.5, color=RULE, linewidth=0.6, zorder=0)
        record = records.get(label)
        if record is None:
            _row_note(axes, y, text="not run", colour=GREY)
            continue
        for window in windows(record):
            _draw_window(axes, window, y=y)
        _draw_marks(axes, record, y=y)
    _time_axis(axes, study)


def _draw_window(axes: Axes, window: Window, *, y: int) -> None:
    whole = [(window.start_s, window.end_s - window.start_s)]
    band = (y - 0.3, 0.6)
    if window.suppressed or window.real_end_s is None:
        hatch = "////" if window.suppressed else "...."
        axes.broken_barh(whole, band, facecolor="white", edgecolor=GREY, hatch=hatch)
        return
    fill = SKY if window.emulated else "white"
    axes.broken_barh(whole, band, facecolor=fill, edgecolor=BLUE)
    real = [(window.start_s, max(0.0, window.real_end_s - window.start_s))]
    axes.broken_barh(real, band, facecolor=BLUE, edgecolor=BLUE)


def _draw_marks(axes: Axes, record: RunRecord, *, y: int) -> None:
    marks = violation_marks(record)
    slow, failed = marks.slow_at_s, marks.failed_at_s
    axes.plot(slow, [y] * len(slow), color=ORANGE, marker="|", ms=9, mew=1.3, ls="none", zorder=4)
    axes.plot(failed, [y] * len(failed), color=INK, marker="x", ms=5, mew=1.2, ls="none", zorder=4)
    count = len(slow) + len(failed)
    rate = percent(count / marks.counted) if marks.counted else "none counted"
    text = f"{count}/{marks.counted} ({rate})"
    if record.status == "complete":
        _row_note(axes, y, text=text, colour=INK)
    else:
        _row_note(axes, y, text=f"{record.status}: {text}", colour=ORANGE)


def _row_note(axes: Axes, y: int, *, text: str, colour: str) -> None:
    where = axes.get_yaxis_transform()
    axes.text(1.006, y, text, transform=where, va="center", fontsize=8.5, color=colour)


def _time_axis(axes: Axes, study: StudyConfig) -> None:
    axes.set_xlim(0, study.horizon_s)
    if study.warmup_s > 0:
        axes.axvspan(0, study.warmup_s, color=SHADE, zorder=-1)


def _handles(drawn: Sequence[Window]) -> list[Artist]:
    """Entries for what was drawn only."""
    merged = [w for w in drawn if not w.suppressed and w.real_end_s is not None]
    handles: list[Artist] = []

    def patch(label: str, *, edge: str, face: str = "white", hatch: str | None = None) -> None:
        handles.append(Patch(facecolor=face, edgecolor=edge, hatch=hatch, label=label))

    if merged:
        patch("merge: real work", edge=BLUE, face=BLUE)
    if any(w.emulated for w in merged):
        patch("merge: emulated load", edge=BLUE, face=SKY)
    if any(not w.emulated for w in merged):
        patch("rest of the window: idle", edge=BLUE)
    if any(w.suppressed for w in drawn):
        patch("placebo: merge suppressed", edge=GREY, hatch="////")
    if any(not w.suppressed and w.real_end_s is None for w in drawn):
        patch("merge not finished", edge=GREY, hatch="....")
    handles.append(Line2D([], [], ls="none", marker="|", color=ORANGE, ms=9, mew=1.3))
    handles[-1].set_label("too slow")
    handles.append(Line2D([], [], ls="none", marker="x", color=INK, ms=5, label="failed"))
    patch("warm-up, not counted", edge=SHADE, face=SHADE)
    return handles
