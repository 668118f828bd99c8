"""Plots of a sweep: importance.png, and response.png with the gain against each parameter.

A half-life is also shown as the EWMA's alpha a tick, a target in steps also as the gap in seconds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from orchestrator.config import StudyConfig
from orchestrator.report.canvas import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    RULE,
    empty_figure,
    footnote,
    legend,
    name_rows,
    new_figure,
    place,
    save,
    title,
)
from orchestrator.sweep.config import SpaceConfig
from orchestrator.sweep.result import SettingRow, SweepResult

MADE = "SIMULATED: replay, engine=model"
_ROW_IN, _HEAD_IN = 2.3, 0.85
Scale = tuple[str, Any, Any]  # label, there and back: matplotlib calls them with arrays


def plot_importance(result: SweepResult, shares: Mapping[str, float] | None, path: Path) -> Path:
    """A bar a parameter; says so where there are too few settings."""
    name = f"{result.study}: what decides the gain of {result.policy}"
    if shares is None:
        return save(empty_figure(name, "too few settings with different gains"), path)
    height_in = max(0.6, 0.42 * len(shares))
    figure = new_figure(height_in=0.6 + height_in + 1.05)
    axes = place(figure, top_in=0.6, height_in=height_in, left_in=3.2, right_in=0.6)
    names, values = list(shares), list(shares.values())
    at = list(range(len(names)))
    axes.barh(at, values, color=BLUE, height=0.6)
    for y, value in zip(at, values, strict=True):
        axes.text(value + 0.01, y, f"{100 * value:.0f} %", va="center", fontsize=9.5, color=INK)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, max(1.0, 1.1 * max(values)))
    axes.set_xlabel("share of the variance of the gain", fontsize=10)
    name_rows(axes, names, at=at)
    title(figure, name, made=MADE)
    footnote(figure, "functional ANOVA over the settings tried, on the tuning blocks; no claim")
    return save(figure, path)


def plot_response(study: StudyConfig, space: SpaceConfig, result: SweepResult, path: Path) -> Path:
    """The gain of every setting against each of its parameters, a row of axes a parameter."""
    name = f"{result.study}: gain of {result.policy} over matched random"
    rows = [r for r in result.settings if r.gain is not None]
    if not rows:
        return save(empty_figure(name, "no setting has a known gain"), path)
    count = len(space.parameters)
    figure = new_figure(height_in=_HEAD_IN + 0.25 + (_ROW_IN + 1.1) * count)
    for i, parameter in enumerate(space.parameters):
        axes = place(
            figure,
            top_in=_HEAD_IN + 0.4 + i * (_ROW_IN + 1.1),
            height_in=_ROW_IN,
            left_in=0.9,
            right_in=0.4,
        )
        _response(axes, study, space, parameter, rows, result=result)
    title(figure, name, made=MADE)
    legend(figure, _handles(result))
    return save(figure, path)


def _response(
    axes: Axes,
    study: StudyConfig,
    space: SpaceConfig,
    parameter: str,
    rows: Sequence[SettingRow],
    *,
    result: SweepResult,
) -> None:
    values = [r.values[parameter] for r in rows]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    places = {v: float(i) for i, v in enumerate(dict.fromkeys(sorted(values, key=str)))}
    for row, value in zip(rows, values, strict=True):
        assert row.gain is not None
        x = float(value) if numeric else places[value]
        stopped = row.state == "stopped"
        if row.gain_interval is not None:
            low, high = (100 * end for end in row.gain_interval)
            axes.plot([x, x], [low, high], color=RULE, linewidth=1.2, zorder=1)
        best = result.tuned is not None and row.setting == result.tuned.setting
        axes.plot(
            x,
            100 * row.gain,
            marker="*" if best else "x" if stopped else "o",
            color=ORANGE if best else GREY if stopped else BLUE,
            markersize=13 if best else 5,
            linestyle="",
            zorder=3 if best else 2,
        )
    axes.axhline(0.0, color=INK, linewidth=0.8)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.set_ylabel("gain [%]", fontsize=10)
    axes.set_xlabel(parameter, fontsize=10)
    if not numeric:
        axes.set_xticks(list(places.values()), [str(v) for v in places])
        return
    if space.parameters[parameter].scale == "log":
        axes.set_xscale("log")
    scale = second_scale(study, parameter)
    if scale is not None:
        label, there, back = scale
        top = axes.secondary_xaxis("top", functions=(there, back))
        top.set_xlabel(label, fontsize=9.5)
        top.tick_params(labelsize=8)


def second_scale(study: StudyConfig, parameter: str) -> Scale | None:
    """What else a parameter says: alpha = 1 - 2^(-tick / half-life); gap = steps * step time."""
    tick_s, step_s = study.tick_s, study.islands.step_interval_s
    if parameter.endswith("half_life_s"):
        return (
            f"EWMA alpha a tick of {tick_s:g} s",
            lambda x: 1.0 - 2.0 ** (-tick_s / np.maximum(x, 1e-9)),
            lambda a: -tick_s / np.log2(1.0 - np.clip(a, 1e-12, 1 - 1e-12)),
        )
    if parameter.startswith("corridor.") and parameter.endswith("_steps") and step_s > 0:
        return "gap between merges [s]", lambda x: x * step_s, lambda x: x / step_s
    return None


def _handles(result: SweepResult) -> list[Line2D]:
    def marker(shape: str, colour: str, label: str, size: int) -> Line2D:
        return Line2D(
            [], [], marker=shape, color=colour, linestyle="", label=label, markersize=size
        )

    handles = [
        marker("o", BLUE, "every tuning block", 5),
        marker("x", GREY, "stopped early", 5),
        Line2D([], [], color=RULE, linewidth=1.2, label="95 % interval over seeds"),
    ]
    if result.tuned is not None:
        handles.append(marker("*", ORANGE, "chosen", 11))
    return handles
