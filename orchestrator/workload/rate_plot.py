"""The request rate of a trace over time as a PNG."""

from pathlib import Path
from typing import Any

from orchestrator.report.canvas import BLUE, ORANGE, footnote, new_figure, place, save, title
from orchestrator.workload.describe import rate_bins
from orchestrator.workload.trace import Trace

BINS = 600


def plot_rate(trace: Trace, found: dict[str, Any], path: Path) -> Path:
    """Rate in equal bins of at least 1 s, and its mean; ValueError when it cannot be written."""
    bins = max(1, min(BINS, int(trace.duration_s)))
    edges, rate = rate_bins(trace.at_ns, bins=bins)
    figure = new_figure(height_in=3.4)
    title(figure, f"Requests of {trace.path.name}", made=f"{found['format']}")
    axes = place(figure, top_in=0.55, height_in=2.0, left_in=0.9, right_in=0.3)
    axes.stairs(rate, edges, fill=True, color=BLUE)
    axes.set(xlim=(0, float(edges[-1])), xlabel="s after the first request", ylabel="requests/s")
    mean = found["mean_rate_per_s"]
    if mean is not None:
        axes.axhline(mean, color=ORANGE, linewidth=1)
    shown = "no mean rate" if mean is None else f"line: mean {mean:.3g} /s"
    width_s = float(edges[1] - edges[0])
    footnote(figure, f"{found['requests']} requests, bins of {width_s:.3g} s; {shown}")
    try:
        return save(figure, path)
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be written ({error.strerror or error}); give another --plot"
        ) from error
