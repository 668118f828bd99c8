"""Violation rate of every steady run against its realised merge seconds."""

from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.lines import Line2D

from orchestrator.calibration.published import PublishedStudy
from orchestrator.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RULE,
    SKY,
    footnote,
    legend,
    new_figure,
    place,
    save,
    title,
)

ALT = "Violation rate against realised merge seconds, all runs of stage 11, by policy"
_LOOKS = ((BLUE, "o"), (SKY, "s"), (GREEN, "^"), (PURPLE, "v"), (GREY, "D"), (ORANGE, "P"))


def plot_exposure(study: PublishedStudy, path: Path) -> Path:
    """PNG at ``path``; the line is the violation rate of one merge second, over all runs."""
    figure = new_figure(height_in=5.2)
    axes = place(figure, top_in=0.85, height_in=3.55, left_in=0.8, right_in=0.3)
    handles: list[Artist] = []
    seconds_all, rates_all = [], []
    for i, arm in enumerate(study.arms):
        colour, marker = _LOOKS[i % len(_LOOKS)]
        known = [(r.windows * arm.window_s, r.violation_rate) for r in arm.runs if r.windows]
        seconds, rates = [s for s, _ in known], [100 * rate for _, rate in known]
        axes.scatter(seconds, rates, color=colour, marker=marker, s=52, zorder=3)
        handles.append(Line2D([], [], color=colour, marker=marker, ls="none", label=arm.label))
        seconds_all += seconds
        rates_all += rates
    slope = sum(rates_all) / sum(seconds_all)
    axes.plot([0, max(seconds_all)], [0, slope * max(seconds_all)], color=INK, lw=1, zorder=2)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(color=RULE, lw=0.8)
    axes.set_xlabel("realised merge seconds of a run (windows x length)")
    axes.set_ylabel("requests above the limit [%]")
    title(figure, "Stage 11: violation rate against time spent merging", made="published, vLLM")
    legend(figure, handles)
    footnote(
        figure,
        f"{len(rates_all)} runs; line through 0: {slope:.3f} percentage points for each merge "
        "second. Synthetic load in the windows, closed loop.",
    )
    return save(figure, path)
