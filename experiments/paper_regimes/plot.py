"""Left: violation rate against realised merge seconds. Right: the same at equal exposure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.lines import Line2D

from experiments.paper_regimes.effects import BURSTY, STEADY, Arm
from experiments.paper_regimes.matched import Matched
from orchestrator.report.canvas import (
    BLUE,
    ORANGE,
    RULE,
    SHADE,
    footnote,
    legend,
    name_rows,
    new_figure,
    place,
    save,
    title,
)

LOOKS = {STEADY: (BLUE, "o"), BURSTY: (ORANGE, "s")}


def draw(
    published: Mapping[str, Mapping[str, Arm]],
    replayed: Mapping[str, Mapping[str, Arm]],
    matched: Mapping[str, Sequence[Matched]],
    *,
    window_s: float,
    path: Path,
) -> Path:
    figure = new_figure(height_in=5.6)
    left = place(figure, top_in=0.9, height_in=3.9, left_in=0.8, right_in=6.4)
    for load, (colour, marker) in LOOKS.items():
        for label, arm in published[load].items():
            other = replayed[load][label]
            at = [a.windows * window_s for a in (arm, other)]
            rates = [100 * a.rate for a in (arm, other)]
            left.plot(at, rates, color=colour, lw=0.8, zorder=1.5)
            for i, fill in enumerate((colour, "white")):
                left.scatter(
                    [at[i]], [rates[i]], marker=marker, s=44, edgecolors=colour, facecolors=fill
                )
    left.set_xlim(left=0)
    left.set_ylim(bottom=0)
    left.grid(color=RULE, lw=0.6)
    left.set_xlabel("merge seconds of a run")
    left.set_ylabel("requests above the limit, %")
    right = place(figure, top_in=0.9, height_in=3.9, left_in=8.2, right_in=0.3)
    names: list[str] = []
    for load, own in matched.items():
        low, high = next(m for m in own if m.arm == "random").middle
        first = len(names) - 0.5
        names += [f"{load}: {m.arm}" for m in own]
        right.fill_betweenx([first, len(names) - 0.5], 100 * low, 100 * high, color=SHADE)
        colour, marker = LOOKS[load]
        for i, m in enumerate(own):
            right.scatter([100 * m.rate], [first + 0.5 + i], color=colour, marker=marker, s=40)
    name_rows(right, names, at=range(len(names)))
    right.set_ylim(len(names) - 0.4, -0.6)
    right.set_xlim(left=0)
    right.grid(axis="x", color=RULE, lw=0.6)
    right.set_xlabel("requests above the limit, %, equal exposure")
    title(figure, "The paper's loads", made="SIMULATED: replay, engine=model")
    handles = [
        Line2D([], [], ls="none", marker=m, color=c, label=f"{load}, published")
        for load, (c, m) in LOOKS.items()
    ]
    handles += [
        Line2D(
            [], [], ls="none", marker=m, color=c, markerfacecolor="white", label=f"{load}, replay"
        )
        for load, (c, m) in LOOKS.items()
    ]
    legend(figure, handles)
    footnote(
        figure,
        "Left, open marks: as many windows as published, placed at random, no policy. Right: as "
        "many for all; shaded: 90 % of the random schedules.",
    )
    return save(figure, path)
