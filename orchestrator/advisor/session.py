"""One advice while it lasts: the pace is measured, the advisor answers, the record is written.

It is the transport of learners in the same process (`Learner(session, learner=0, ...)`), and what
stands behind `lull advise` and the Ray actor.
"""

import threading
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from actors.clock import Clock, MonotonicClock
from actors.config import TelemetryConfig
from actors.coordinator.advice import AdvisorSilent, Merged, MergeDecision, Report, Standing
from actors.coordinator.advisor import Advisor, AdvisorSetting, Readings
from actors.coordinator.coordinator import Coordinator
from actors.coordinator.sampling import SampleBuilder
from actors.events import ArmFinished
from actors.telemetry.server_counts import ServerTelemetry
from orchestrator.advisor.config import AdviceConfig
from orchestrator.advisor.pace import PaceMeter
from orchestrator.advisor.record import AdviceWriter, refuse_used
from orchestrator.advisor.setting import (
    AdviceSetting,
    advice_wrapper,
    check_policy,
    setting_at,
)
from orchestrator.provenance import study_provenance, wall_clock_utc
from orchestrator.record_files import RecordFailed
from orchestrator.records import ArmSpec

# Where there is no server nothing is read, so these scales never divide anything.
_UNREAD = TelemetryConfig(
    serving_full_requests=1, network_full_bytes_per_s=1.0, checkpoint_full_bytes_per_s=1.0
)


class Telemetry(Protocol):
    """ServerTelemetry, or what a blind advice or a test puts in its place."""

    def read(self) -> Readings: ...

    def drain_rows(self) -> list[dict[str, Any]]: ...

    def stop(self) -> None: ...


class Blind:
    """There is no server to read."""

    def read(self) -> Readings:
        return Readings(load=None, telemetry=None)

    def drain_rows(self) -> list[dict[str, Any]]:
        return []

    def stop(self) -> None: ...


class AdviceSession:
    """May be called from several threads. ``folder``: of the record; None for none.

    The run clock begins when the pace is known: what the server did before is no part of the run.
    """

    def __init__(
        self,
        config: AdviceConfig,
        *,
        folder: Path | None,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        check_policy(config)
        if folder is not None:
            refuse_used(folder)
        self._config = config
        self._folder = folder
        # Now, not while a learner waits for its first answer.
        self._provenance: dict[str, Any] = {} if folder is None else study_provenance()
        self._clock = clock or MonotonicClock()
        self._opened_s = self._zero_s = self._clock.now_s()
        self._telemetry: Telemetry = telemetry or self._reading()
        self._lock = threading.Lock()
        self._pace = PaceMeter(steps=config.measured_steps)
        self._merged_step: int | None = None  # the last merge of those who have merged before
        self._coordinator: Coordinator | None = None
        self._advisor: Advisor | None = None
        self._writer: AdviceWriter | None = None
        self._problem: str | None = None
        self._finished = False

    def ask(self, report: Report) -> MergeDecision:
        """The decision for this learner; AdviceRefused when it cannot be placed.

        AdvisorSilent once the advice has ended: then each learner has its own H.
        """
        with self._lock:
            if self._finished:
                raise AdvisorSilent("the advice has ended")
            try:
                advisor = self._advisor or self._begin(report)
                return _go_on(report) if advisor is None else advisor.ask(report)
            finally:
                self._write()

    def merged(self, done: Merged) -> None:
        """A learner has merged."""
        with self._lock:
            if self._advisor is not None and not self._finished:
                self._advisor.merged(done)
            self._write()

    def poll(self) -> None:
        """To be called about once a tick where something can: it looks at the server in a merge."""
        with self._lock:
            if self._advisor is not None and not self._finished:
                self._advisor.poll()
            self._write()

    def standing(self) -> Standing:
        """What the advisor says of itself, also before the pace is known."""
        with self._lock:
            problem = "; ".join(filter(None, (self._problem, self._why_blind()))) or None
            if self._advisor is not None:
                return replace(self._advisor.standing(), problem=problem)
            config = self._config
            return Standing(
                policy=_kind(config),
                floor_steps=config.corridor.floor_steps,
                ceiling_steps=config.corridor.ceiling_steps,
                tick_steps=config.tick_steps,
                notice_steps=config.notice_steps,
                step=self._pace.first_step,
                last_merge_step=None,
                merges=0,
                learners=(),
                blind=None,
                problem=problem,
            )

    def finish(self, *, status: str = "complete", why: str | None = None) -> None:
        """Ends the record; a second call does nothing."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            self._telemetry.stop()
            if self._coordinator is not None:
                event_id, at_s = self._coordinator.next_id(), self._now_s()
                self._coordinator.handle(
                    ArmFinished(event_id=event_id, at_s=at_s, status=status, why=why)
                )
            self._write()
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _why_blind(self) -> str | None:
        """Why nothing is known of a server that there should be; None while it is known."""
        read = self._telemetry.read().telemetry
        if read is None or read.serving is not None or read.error is None:
            return None
        return f"blind, nothing is known of the server: {read.error}"

    def _now_s(self) -> float:
        return self._clock.now_s() - self._zero_s

    def _reading(self) -> Telemetry:
        url, telemetry = self._config.vllm_metrics_url, self._config.telemetry
        if url is None or telemetry is None:
            return Blind()
        return ServerTelemetry(telemetry, url=url, zero_monotonic_s=self._zero_s, clock=self._clock)

    def _begin(self, report: Report) -> Advisor | None:
        """The advisor once the pace is known; None before."""
        config = self._config
        self._pace.add(report, at_s=self._now_s())
        if report.last_merge_step is not None:
            self._merged_step = max(self._merged_step or 0, report.last_merge_step)
        step_s = self._pace.step_s if config.step_s is None else config.step_s
        if step_s is None:
            return None
        self._zero_s = self._clock.now_s()
        start_step = self._start_step()
        setting = setting_at(config, step_s=step_s)
        builder = SampleBuilder(config.telemetry or _UNREAD, zero_s=self._zero_s, offsets_s={})
        before = self._telemetry.read()  # so that the first tick counts from now on
        builder.build(0, now_s=0.0, load=before.load, telemetry=before.telemetry, islands=[])
        self._coordinator = Coordinator(
            advice_wrapper(config, setting),
            tick_s=setting.tick_s,
            width_ticks=setting.corridor.width_ticks,
            horizon_ticks=setting.corridor.horizon_ticks,
        )
        self._advisor = Advisor(
            self._coordinator,
            setting=_advisor_setting(config, setting, start_step=start_step),
            builder=builder,
            read=self._telemetry.read,
            now_s=self._now_s,
        )
        self._open_record(setting, start_step=start_step)
        return self._advisor

    def _start_step(self) -> int:
        """The last merge: where learners say it was, or the advice; else before the first report.

        An advisor that is started again goes on from there, so that the corridor holds meanwhile.
        """
        said = [s for s in (self._config.start_step, self._merged_step) if s is not None]
        return max(said, default=max(0, (self._pace.first_step or 0) - 1))

    def _open_record(self, setting: AdviceSetting, *, start_step: int) -> None:
        if self._folder is None:
            return
        started = {"source": "advice", "started_at_utc": wall_clock_utc()}
        try:
            self._writer = AdviceWriter(
                self._folder,
                config=_recorded_config(self._config, setting, start_step=start_step),
                provenance={**self._provenance, **started},
            )
        except (OSError, RecordFailed) as error:
            self._give_up(error)

    def _write(self) -> None:
        """What has come in since; a record that cannot be written does not stop a training."""
        rows = self._telemetry.drain_rows()
        if self._advisor is None:
            return
        events, notes = self._advisor.drain_events(), self._advisor.drain_notes()
        if self._writer is None:
            return
        try:
            self._writer.events(events)
            self._writer.notes(notes)
            self._writer.pressure(self._on_run_clock(rows))
        except (OSError, RecordFailed, ValueError) as error:  # ValueError: no strict JSON
            self._give_up(error)

    def _on_run_clock(self, rows: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
        """The telemetry counts from its own start."""
        later_s = self._zero_s - self._opened_s
        return ({**row, "at_s": row["at_s"] - later_s} for row in rows)

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        self._problem = f"the record ends here: {error}"


def _go_on(report: Report) -> MergeDecision:
    return MergeDecision(
        merge=False,
        reason="measuring_pace",
        merge_at_step=None,
        ask_at_step=report.step + 1,
        round=report.merges,
    )


def _kind(config: AdviceConfig) -> str:
    return str(getattr(config.policy, "kind", type(config.policy).__name__))


def _recorded_config(
    config: AdviceConfig, setting: AdviceSetting, *, start_step: int
) -> dict[str, Any]:
    """config.json: the advice and its pace, which decide it again, and what follows from them."""
    kind = _kind(config)
    arm = ArmSpec(kind="policy", label=config.name, policy=kind, of=None, draw=None, position=None)
    return {
        "advice": config.model_dump(mode="json"),
        "step_s": setting.step_s,
        "step_s_measured": config.step_s is None,
        "tick_s": setting.tick_s,
        "start_step": start_step,
        "arm": asdict(arm),
        "corridor": {**asdict(setting.corridor), "budget": config.corridor.budget_merges},
    }


def _advisor_setting(
    config: AdviceConfig, setting: AdviceSetting, *, start_step: int
) -> AdvisorSetting:
    return AdvisorSetting(
        name=config.name,
        policy=_kind(config),
        learners=config.learners,
        start_step=start_step,
        least_step=config.start_step or 0,
        floor_steps=config.corridor.floor_steps,
        ceiling_steps=config.corridor.ceiling_steps,
        tick_steps=config.tick_steps,
        tick_s=setting.tick_s,
        width_ticks=setting.corridor.width_ticks,
        window_s=config.window_s,
        notice_steps=config.notice_steps,
        silence_s=config.silence_s,
    )
