"""The trainers' pace from their own reports: the median seconds of an inner step."""

from statistics import median

from actors.coordinator.advice import Report

LEAST_S = 1e-6  # of a step: a clock that stood still is no pace


class PaceMeter:
    """Known once a learner has shown ``steps`` steps, or stands at the last that may be measured.

    The median, so that the first steps, which compile and load, count for little.
    """

    def __init__(self, *, steps: int) -> None:
        self._steps = steps
        self._last: dict[int, tuple[int, float]] = {}  # step and moment of a learner's last report
        self._took_s: dict[int, list[float]] = {}
        self.first_step: int | None = None  # the least that any learner has reported
        self.step_s: float | None = None

    def add(self, report: Report, *, at_s: float) -> None:
        """A learner has reported at ``at_s``."""
        first = report.step if self.first_step is None else min(report.step, self.first_step)
        self.first_step = first
        last = self._last.get(report.learner)
        self._last[report.learner] = (report.step, at_s)
        if last is None or report.step <= last[0]:
            return
        took_s = self._took_s.setdefault(report.learner, [])
        took_s.append((at_s - last[1]) / (report.step - last[0]))
        if len(took_s) >= self._steps or report.step - first >= self._steps - 1:
            self.step_s = max(LEAST_S, median(took_s))
