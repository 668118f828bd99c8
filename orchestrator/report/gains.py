"""gains.png: each judged policy's gain over matched random in replay, and its spread over seeds."""

from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from orchestrator.calibration.verdict import Judgement, Verdict
from orchestrator.report.canvas import (
    BLUE,
    GREEN,
    INK,
    RULE,
    SKY,
    empty_figure,
    legend,
    name_rows,
    new_figure,
    place,
    save,
    title,
)
from orchestrator.report.words import made_with, percent

_ROW_IN, _HEAD_IN, _FOOT_IN = 0.6, 0.85, 0.7


def plot_gains(judgement: Judgement, *, floor: float, folder: Path) -> Path:
    """Write ``folder/gains.png``. ``floor``: the gain that a claim has to reach."""
    name, path = f"{judgement.study}: gain over matched random, in replay", folder / "gains.png"
    known = [v for v in judgement.verdicts if v.relative_gain is not None]
    if not known:
        return save(empty_figure(name, "no policy has a gain over its control"), path)
    height_in = max(1.0, _ROW_IN * len(known) + 0.2)
    figure = new_figure(height_in=_HEAD_IN + height_in + _FOOT_IN)
    axes = place(figure, top_in=_HEAD_IN, height_in=height_in, left_in=2.2, right_in=3.0)
    axes.spines["left"].set_visible(False)
    for y, verdict in enumerate(known):
        _draw(axes, verdict, y=float(y))
    axes.axvline(0.0, color=INK, linewidth=1.0)
    axes.axvline(100 * floor, color=INK, linewidth=1.0, ls="--")
    axes.set_ylim(len(known) - 0.4, -0.6)
    name_rows(axes, [v.policy for v in known], at=list(range(len(known))))
    axes.grid(axis="x", color=RULE, linewidth=0.6)
    axes.set_xlabel(
        "relative gain in %: (violations of matched random - those of the policy) / the former",
        fontsize=10,
    )
    title(figure, name, made=made_with(judgement))
    legend(figure, _handles())
    return save(figure, path)


def _draw(axes: Axes, verdict: Verdict, *, y: float) -> None:
    gains = _seed_gains(verdict)
    if gains:
        low, first, middle, third, high = 100 * np.quantile(gains, (0.05, 0.25, 0.5, 0.75, 0.95))
        axes.plot([low, high], [y, y], color=SKY, linewidth=1.4, zorder=1)
        axes.barh(y, third - first, left=first, height=0.36, color=SKY, zorder=1)
        axes.plot([middle, middle], [y - 0.18, y + 0.18], color="white", linewidth=1.6, zorder=2)
    exact = exact_gain(verdict)
    if exact is not None:
        axes.plot([100 * exact], [y], color=GREEN, marker="d", ms=7, ls="none", zorder=4)
    assert verdict.relative_gain is not None
    bounds = verdict.relative_gain_interval
    if bounds is not None:
        axes.plot([100 * b for b in bounds], [y, y], color=BLUE, linewidth=3.0, zorder=3)
    axes.plot([100 * verdict.relative_gain], [y], color=BLUE, marker="o", ms=7, ls="none", zorder=5)
    _note(axes, verdict, y=y)


def _note(axes: Axes, verdict: Verdict, *, y: float) -> None:
    p = "p unknown" if verdict.p_holm is None else f"p {verdict.p_holm:.2g} after Holm"
    lines = (
        f"{verdict.verdict.value} (n = {verdict.n_seeds})",
        f"gain {percent(verdict.relative_gain)}, {p}",
    )
    for i, line in enumerate(lines):
        axes.annotate(
            line,
            (1.02, y),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 7 - 14 * i),
            textcoords="offset points",
            va="center",
            fontsize=10 if i == 0 else 9,
            fontweight="bold" if i == 0 else "normal",
            color=INK,
        )


def _seed_gains(verdict: Verdict) -> list[float]:
    found = [row.get("relative_gain") for row in verdict.per_seed]
    return [float(g) for g in found if g is not None]


def exact_gain(verdict: Verdict) -> float | None:
    """Of requests overlapped, against the exact mean of random placement; None where unknown."""
    rows = [(r.get("overlap_policy"), r.get("overlap_random_mean")) for r in verdict.per_seed]
    known = [(a, b) for a, b in rows if a is not None and b is not None]
    control = sum(b for _, b in known)
    if not known or len(known) < len(rows) or not control:
        return None
    return 1.0 - sum(a for a, _ in known) / control


def _handles() -> list[Artist]:
    return [
        Line2D([], [], color=BLUE, marker="o", lw=3.0, ms=7, label="gain with 90 % interval"),
        Line2D([], [], color=GREEN, marker="d", ls="none", ms=7, label="of overlap, exact control"),
        Patch(color=SKY, label="seeds: middle half, 5 to 95 %"),
        Line2D([], [], color=INK, ls="--", lw=1.0, label="asked for"),
    ]
