"""A study measured live, for `lull run` and `lull calibrate STUDY.yaml`: run, judge, report."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.console import user_input, warn
from orchestrator.endings import StageFailed
from orchestrator.signals import Signals

if TYPE_CHECKING:
    from actors.load.request import Request
    from orchestrator.calibration.verdict import Judgement
    from orchestrator.cluster.arm_run import Reporter
    from orchestrator.config import StudyConfig


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What became of it."""

    judgement: "Judgement"
    whole: bool  # nothing failed and nobody interrupted it
    interrupted: str | None  # in words


def run_live(
    study: Path,
    config: "StudyConfig",
    requests: "dict[int, tuple[Request, ...]]",
    study_dir: Path,
    *,
    reporter: "Reporter",
    track: bool,
    most_runs: int | None = None,
) -> Ran:
    """Run what is not yet recorded; faults are warned of. StageFailed when no run was begun."""
    from orchestrator.finish import finish_study, hold_study
    from orchestrator.plan import study_histories

    with hold_study(study_dir), Signals().installed() as signals:
        from orchestrator.live import run_study

        with user_input(study):
            outcome = run_study(
                config,
                requests,
                study_dir,
                histories=study_histories(config, study.parent),
                reporter=reporter,
                signals=signals,
                most_runs=most_runs,
            )
        if not any(study_dir.glob("*/config.json")):
            raise StageFailed("; ".join(outcome.faults) or "no run was begun")
        signals.held = True
        if outcome.left:
            warn(f"{outcome.left} runs are not measured yet; the same command goes on with them")
        for fault in outcome.faults:
            warn(fault)
        judgement = finish_study(study_dir, track=track, say=reporter.say, warn=warn)
    asked = signals.asked
    return Ran(
        judgement=judgement,
        whole=asked is None and not outcome.faults,
        interrupted=None if asked is None else f"interrupted by {asked}; what was recorded is kept",
    )
