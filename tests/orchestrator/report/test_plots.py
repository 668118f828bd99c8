"""The plots: readable whatever the number of arms and seeds, honest about what they leave out."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text

from orchestrator.report import envelope, timeline
from orchestrator.report.plots import plot_envelope, plot_timeline

LONG = "a_policy_with_quite_a_long_name"
EWMA = {"kind": "wa_ewma", "half_life_s": 2.0, "mean_half_life_s": 20.0}
CONTROLS = [
    {"kind": "matched_random", "of": LONG, "draws": 4},
    {"kind": "placebo", "of": LONG},
    {"kind": "oracle", "of": LONG},
    {"kind": "aa", "of": LONG},
]
SIZES = {
    "one arm": ({LONG: EWMA}, [{"kind": "policy", "policy": LONG}], [7]),
    "no sync alone": ({}, [{"kind": "no_sync"}], [0, 1]),
    "twenty seeds": (
        {LONG: EWMA},
        [{"kind": "policy", "policy": LONG}, {"kind": "matched_random", "of": LONG, "draws": 2}],
        list(range(20)),
    ),
    "thirteen arms": (
        {LONG: EWMA, **{f"p{i}": EWMA for i in range(3)}},
        [
            {"kind": "no_sync"},
            {"kind": "policy", "policy": LONG},
            *({"kind": "policy", "policy": f"p{i}"} for i in range(3)),
            *CONTROLS,
        ],
        [0, 1],
    ),
    "thirty draws": (
        {LONG: EWMA},
        [{"kind": "policy", "policy": LONG}, {"kind": "matched_random", "of": LONG, "draws": 30}],
        [0],
    ),
}

pytestmark = pytest.mark.slow  # each draws whole figures


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure, laid out instead of saved."""
    kept: list[Figure] = []

    def keep(figure: Figure, path: Path) -> Path:
        figure.draw_without_rendering()
        kept.append(figure)
        return path

    monkeypatch.setattr(timeline, "save", keep)
    monkeypatch.setattr(envelope, "save", keep)
    return kept


def words(figure: Figure) -> list[Text]:
    return [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_text().strip()]


def said(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in words(figure))


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_cut_off_and_no_row_names_touch_at_any_size(
    size: str, make_made: Callable[..., Any], figures: list[Figure], tmp_path: Path
) -> None:
    policies, arms, seeds = SIZES[size]
    judge = [LONG] if LONG in policies else []
    made = make_made(policies=policies, arms=arms, seeds=seeds, judge=judge)
    plot_timeline(made.study, made.records, tmp_path)
    plot_envelope(made.study, made.metrics, made.judgement, tmp_path)
    assert len(figures) == 2
    for figure in figures:
        for text in words(figure):
            assert inside(figure, text), text.get_text()
        for axes in figure.axes:
            names = [t for t in axes.get_yticklabels() if not t.get_text().isdigit()]
            boxes = sorted((t.get_window_extent() for t in names), key=lambda b: b.y0)
            assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))


def inside(figure: Figure, text: Text) -> bool:
    """Or a tick label beyond the axis limits, which matplotlib keeps and does not draw."""
    if text.axes is not None and text in text.axes.get_xticklabels() + text.axes.get_yticklabels():
        x, y = text.axes.transAxes.inverted().transform(text.get_transform().transform((0, 0)))
        return True if not (0 <= x <= 1 or 0 <= y <= 1) else _fits(figure, text)
    return _fits(figure, text)


def _fits(figure: Figure, text: Text) -> bool:
    box, page = text.get_window_extent(), figure.bbox
    return page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1


def test_the_timeline_draws_four_seeds_and_says_how_many_there_are(
    make_made: Callable[..., Any], figures: list[Figure], tmp_path: Path
) -> None:
    made = make_made(seeds=list(range(6)))
    plot_timeline(made.study, made.records, tmp_path)
    assert "first 4 of 6 seeds drawn" in said(figures[0])
    assert len(figures[0].axes) == 8


def test_counts_beside_the_rows_are_those_of_the_metrics(
    make_made: Callable[..., Any], figures: list[Figure], tmp_path: Path
) -> None:
    made = make_made(broken={("fixed_h", 2): "invalid"})
    plot_timeline(made.study, made.records, tmp_path)
    text = said(figures[0])
    for m in made.metrics:
        assert f"{m.violations}/{m.requests_scheduled} (" in text
    broken = next(m for m in made.metrics if (m.arm, m.seed) == ("fixed_h", 2))
    assert f"invalid: {broken.violations}/{broken.requests_scheduled}" in text


def test_an_arm_that_was_not_run_keeps_its_row(
    make_made: Callable[..., Any], figures: list[Figure], tmp_path: Path
) -> None:
    made = make_made()
    records = [r for r in made.records if (r.arm.label, r.seed) != ("wa_ewma", 2)]
    plot_timeline(made.study, records, tmp_path)
    assert said(figures[0]).count("not run") == 1


def test_the_envelope_shows_the_verdict_the_denominator_and_n(
    make_made: Callable[..., Any], figures: list[Figure], tmp_path: Path
) -> None:
    made = make_made()
    plot_envelope(made.study, made.metrics, made.judgement, tmp_path)
    text = said(figures[0])
    assert "INCONCLUSIVE (n = 2)" in text
    assert "requests scheduled in [4, 38) s" in text
    assert "n = 2, 4 draws" in text
    assert "SIMULATED: live, engine=mock" in text
    real = made.on_vllm()
    plot_envelope(real.study, real.metrics, real.judgement, tmp_path)
    assert "SIMULATED" not in said(figures[1])


def test_a_marker_at_zero_is_whole_and_no_line_crosses_a_mean(
    make_made: Callable[..., Any], figures: list[Figure], tmp_path: Path
) -> None:
    made = make_made(seeds=[1])
    none = [replace(m, violation_rate=0.0) for m in made.metrics]
    envelope.plot_envelope(made.study, none, made.judgement, tmp_path)
    (axes,) = figures[0].axes
    edge, zero = (axes.transData.transform((x, 0.0))[0] for x in (axes.get_xlim()[0], 0.0))
    largest_px = max(float(line.get_markersize()) for line in axes.lines) / 72 * figures[0].dpi
    assert zero - edge > largest_px / 2
    means = [text for text in axes.texts if text.get_text().startswith("mean ")]
    assert means
    for text in means:
        backing = text.get_bbox_patch()
        assert backing is not None
        assert to_rgba(backing.get_facecolor())[3] > 0.8
        assert text.get_zorder() > max(line.get_zorder() for line in axes.lines)


def test_a_study_in_which_nothing_ran_or_finished_is_drawn_all_the_same(
    make_made: Callable[..., Any], figures: list[Figure], tmp_path: Path
) -> None:
    made = make_made(
        arms=[{"kind": "policy", "policy": "wa_ewma"}],
        seeds=[1],
        broken={("wa_ewma", 1): "partial"},
    )
    plot_timeline(made.study, [], tmp_path)
    plot_envelope(made.study, made.metrics, made.judgement, tmp_path)
    assert "no run was recorded" in said(figures[0])
    assert "no run is complete" in said(figures[1])


def test_the_same_record_gives_the_same_png_1800_pixels_wide(
    make_made: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_made(seeds=[1])
    for folder in (tmp_path / "a", tmp_path / "b"):
        plot_timeline(made.study, made.records, folder)
        plot_envelope(made.study, made.metrics, made.judgement, folder)
    for name in ("timeline.png", "envelope.png"):
        data = (tmp_path / "a" / name).read_bytes()
        assert data == (tmp_path / "b" / name).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(data[16:20], "big") == 1800
