"""Traffic before the run that policies are told of: the same law or trace, never sent to a server.

A policy that learns from the traffic needs more of it than a run of minutes holds; a coordinator
in production has seen it. Ticks are negative: the last one, -1, is one tick before the run.
"""

from pathlib import Path

import numpy as np

from actors.events import HistoryTold
from actors.load.request import Request
from orchestrator.config import StudyConfig
from orchestrator.workload.requests import earlier_arrivals, make_requests
from orchestrator.workload.slices import US_PER_S


def seed_requests(study: StudyConfig, *, seed: int, study_dir: Path) -> tuple[Request, ...]:
    """The request file of ``seed``, in order of time: the traffic that follows its history."""
    return make_requests(
        study.load,
        seed=seed,
        horizon_s=study.horizon_s,
        sidecars=study.sidecars.count,
        study_dir=study_dir,
        history_s=0.0 if study.history is None else study.history.length_s,
    )


def told_history(study: StudyConfig, *, seed: int, study_dir: Path) -> HistoryTold | None:
    """Arrivals and requests in flight of each earlier tick; None where the study asks for none.

    A request counts as in flight for ``history.service_s``: it was never served, so that is an
    assumption. ValueError when a trace does not reach back so far.
    """
    history = study.history
    if history is None:
        return None
    at_us = earlier_arrivals(
        study.load,
        seed=seed,
        horizon_s=study.horizon_s,
        history_s=history.length_s,
        sidecars=study.sidecars.count,
        study_dir=study_dir,
    )
    ticks = int(history.length_s / study.tick_s)
    ends_us = np.round(np.arange(-ticks, 0) * study.tick_s * US_PER_S)
    before = np.searchsorted(at_us, ends_us, side="right")
    since = np.searchsorted(at_us, ends_us - study.tick_s * US_PER_S, side="right")
    done = np.searchsorted(at_us, ends_us - history.service_s * US_PER_S, side="right")
    return HistoryTold(
        event_id=0,  # numbered by the coordinator's shell
        first_tick=-ticks,
        arrivals=tuple(int(n) for n in before - since),
        in_flight=tuple(int(n) for n in before - done),
        service_s=history.service_s,
    )
