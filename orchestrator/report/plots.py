"""The two plots of a study, by one import: timeline.png and envelope.png."""

from orchestrator.report.envelope import plot_envelope
from orchestrator.report.timeline import plot_timeline

__all__ = ["plot_envelope", "plot_timeline"]
