"""What both plots share: size, colours, title line, legend, saving. Agg only, no pyplot state.

Colours are Okabe and Ito's (safe for colour-blind eyes); shape and hatching say the same again.
"""

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from orchestrator.record_files import write_atomic

WIDTH_IN, DPI = 12.0, 150
BLUE, SKY, ORANGE, GREEN, PURPLE = "#0072B2", "#9CCBEA", "#D55E00", "#009E73", "#CC79A7"
GREY, INK, RULE, SHADE = "#7F7F7F", "#222222", "#DDDDDD", "#EFEFEF"


def new_figure(*, height_in: float) -> Figure:
    """A white figure of the common width, with its own canvas."""
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def place(
    figure: Figure, *, top_in: float, height_in: float, left_in: float, right_in: float
) -> Axes:
    """Axes by distances from the figure's top, left and right edges, in inches."""
    total = float(figure.get_size_inches()[1])
    axes = figure.add_axes(
        (
            left_in / WIDTH_IN,
            1 - (top_in + height_in) / total,
            1 - (left_in + right_in) / WIDTH_IN,
            height_in / total,
        )
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    return axes


def name_rows(axes: Axes, names: Sequence[str], *, at: Sequence[float]) -> None:
    """Row names left of the axes, smaller where the longest would not fit there."""
    axes.set_yticks(list(at), list(names), fontsize=9.5)
    axes.tick_params(axis="y", length=0)
    labels = axes.get_yticklabels()
    room = axes.get_position().x0 * WIDTH_IN * DPI - 0.12 * DPI  # pixels, less gap and margin
    widest = max((label.get_window_extent().width for label in labels), default=0.0)
    if widest > room:
        for label in labels:
            label.set_fontsize(9.5 * room / widest)


def title(figure: Figure, text: str, *, made: str) -> None:
    """What is shown on the left, what it was made with on the right."""
    top = 1 - 0.12 / float(figure.get_size_inches()[1])
    figure.text(0.015, top, text, ha="left", va="top", fontsize=13, fontweight="bold", color=INK)
    colour = ORANGE if made.startswith("SIMULATED") else INK
    figure.text(0.985, top, made, ha="right", va="top", fontsize=10.5, color=colour)


def footnote(figure: Figure, text: str) -> None:
    bottom = 0.1 / float(figure.get_size_inches()[1])
    figure.text(0.015, bottom, text, ha="left", va="bottom", fontsize=9.5, color=INK)


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """One line of entries under the title."""
    figure.legend(
        handles=list(handles),
        loc="upper left",
        bbox_to_anchor=(0.008, 1 - 0.4 / float(figure.get_size_inches()[1])),
        ncols=len(handles),
        frameon=False,
        fontsize=9.5,
        handletextpad=0.5,
        columnspacing=1.4,
    )


def empty_figure(text: str, why: str) -> Figure:
    """A figure that says why nothing is drawn: a failed study is reported all the same."""
    figure = new_figure(height_in=1.6)
    title(figure, text, made="")
    figure.text(0.5, 0.35, why, ha="center", va="center", fontsize=11, color=INK)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """A whole PNG or the one before, also when the disk is full."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, png.getvalue())
    return path
