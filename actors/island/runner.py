"""An island at work: paced training, and the merge window around the island's part in a merge.

    command   start_s                                                ended_at_s     end_s
       |  pause  | codec, all-reduce, outer step, export, checkpoint | fill, hash |  train on
         ready     reduce              commit

The island's own steps run at low priority; from the command to the end it has nice 0, because
a starved merge would measure the starvation (while it stands still only, where a merge overlaps
with training). The fill burns in other processes.
"""

import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from actors.clock import Clock
from actors.config import IslandsConfig, MergeConfig
from actors.deadlines import CHECKPOINT
from actors.events import MergePart
from actors.island.fill import Burners
from actors.island.island import Island
from actors.island.loop import PacedLoop, Pacer
from actors.island.state_file import DiskFull
from actors.island.writer import Writer
from actors.merge_messages import (
    SERVED,
    Formation,
    Introduction,
    Ready,
    Reduced,
    RoundPlan,
    SegmentName,
    ServeExport,
)
from actors.priority import Priority
from policies.observation import IslandProgress


class IslandStopped(RuntimeError):
    """Shut down in the middle of a merge window."""


@dataclass(slots=True)
class _Arm:
    """Training between ``start`` and ``finish``."""

    loop: PacedLoop
    zero_s: float
    cpu_before_s: float


@dataclass(slots=True)
class _Window:
    """A merge from ready to commit or abort."""

    start_s: float
    ready: Ready
    steps: int  # inner steps at the moment when it was ready
    met_s: float = 0.0  # from the command to the peers: all were ready
    plan: RoundPlan | None = None
    reduced: Reduced | None = None
    training: bool = False  # again, since the commit


class IslandRunner:
    """What the Ray shell calls; plain threads, so it runs without Ray as well."""

    def __init__(
        self,
        config: IslandsConfig,
        merge: MergeConfig,
        island: int,
        *,
        clock: Clock,
        priority: Priority,
        export: ServeExport | None = None,
    ) -> None:
        torch.set_num_threads(config.torch_threads)
        self._config = config
        self._merge = merge
        self._number = island
        self._clock = clock
        self._priority = priority
        self._export = export
        self._island = Island(config, merge, island, clock=clock)
        self._burners = Burners(merge.fill, island=island)
        self._writer = Writer(limit_s=CHECKPOINT.limit_s)
        self._arm: _Arm | None = None
        self._window: _Window | None = None  # from ready to commit or abort
        self._turn = threading.Lock()  # one of reset, start, merge, finish at a time
        self._stopping = threading.Event()
        self._warnings: list[str] = []
        self._warn(priority.warning)

    def introduce(self, *, address: str) -> Introduction:
        """What the other islands have to know of this one."""
        return self._island.introduce(address=address)

    def can_share_with(self, segments: tuple[SegmentName, ...]) -> bool:
        return self._island.can_share_with(segments)

    def form(self, formation: Formation) -> SegmentName | None:
        """Take the place in a new group; merge.timeout_s bounds each of its calls."""
        with self._taking_turn("forming a group"):
            return self._island.form(formation)

    def reset(self, *, seed: int, folder: Path | None) -> str:
        """Ready for a new arm, whatever became of the last one; returns the parameter hash."""
        with self._taking_turn("reset"):
            self._end_arm()
            self._window = None
            self._warn(self._priority.lowered())
            self._burners.start()
            self._warn(self._burners.warning)
            return self._island.reset(seed=seed, folder=folder)

    def start(self, *, zero_monotonic_s: float) -> None:
        """Train from ``zero_monotonic_s`` on, which is 0 on the run clock."""
        with self._taking_turn("start"):
            if self._arm is not None:
                raise RuntimeError(f"island {self._number}: started twice; call reset before")
            self._island.begin(zero_monotonic_s=zero_monotonic_s)
            pacer = Pacer(interval_s=self._config.step_interval_s, first_s=zero_monotonic_s)
            loop = PacedLoop(
                self._island.step, pacer=pacer, clock=self._clock, name=f"island {self._number}"
            )
            self._arm = _Arm(loop=loop, zero_s=zero_monotonic_s, cpu_before_s=time.process_time())
            loop.start()

    def progress(self) -> IslandProgress:
        """Raises what ended the training thread, if something did."""
        arm = self._arm
        if arm is not None:
            arm.loop.check()
        return self._island.progress()

    def ready(self, *, round_: int, fragment: int, start_s: float) -> Ready:
        """Stand at a step boundary from ``start_s`` on, until a commit or an abort."""
        with self._taking_turn(f"merge of round {round_}"):
            arm = self._started()
            self._warn(self._priority.raised())
            try:
                arm.loop.pause(timeout_s=self._merge.timeout_s)
                self._wait_until(arm.zero_s + start_s)  # no-op when the command came late
                ready = self._island.ready(
                    round_=round_, fragment=fragment, wait_s=self._now_s(arm) - start_s
                )
            except BaseException:
                self._go_on(arm, at_s=self._clock.now_s())
                raise
            self._window = _Window(start_s=start_s, ready=ready, steps=self._island.steps)
            if self._merge.overlap_steps:
                self._go_on(arm, at_s=None)
            return ready

    def reduce(self, plan: RoundPlan) -> Reduced:
        """Compute the merge beside the present parameters; nothing changes yet."""
        arm, window = self._started(), self._in_window(plan.round)
        window.met_s = self._now_s(arm) - window.start_s
        window.plan, window.reduced = plan, self._island.reduce(plan)
        return window.reduced

    def rescale(self, plan: RoundPlan) -> None:
        self._in_window(plan.round).plan = plan
        self._island.rescale(plan)

    def commit(self, plan: RoundPlan, *, end_s: float) -> MergePart:
        """Take the merge over, and fill the window; training goes on at its end."""
        with self._taking_turn(f"merge of round {plan.round}"):
            arm, window = self._started(), self._in_window(plan.round)
            try:
                if self._merge.overlap_steps:
                    self._wait_for_steps(arm, window.steps + self._merge.overlap_steps)
                    arm.loop.pause(timeout_s=self._merge.timeout_s)
                    self._warn(self._priority.raised())
                return self._finish_window(arm, window, plan, end_s=end_s)
            finally:
                self._window = None
                if not window.training:
                    overlapped = self._merge.overlap_steps > 0
                    self._go_on(arm, at_s=None if overlapped else arm.zero_s + end_s)

    def abort(self, *, round_: int) -> None:
        """The round does not take place; training goes on now.

        Nothing where the island does not stand ready for this round, whatever came of it.
        """
        with self._taking_turn(f"abort of round {round_}"):
            self._island.abort(round_=round_)
            if self._window is None or self._window.ready.round != round_:
                return
            self._window = None
            if self._arm is not None and not self._merge.overlap_steps:  # else it never stopped
                self._go_on(self._arm, at_s=self._clock.now_s())

    def _finish_window(
        self, arm: _Arm, window: _Window, plan: RoundPlan, *, end_s: float
    ) -> MergePart:
        began_s = self._clock.now_s()
        self._island.commit(plan, end_s=end_s)
        committed_s = self._clock.now_s()
        export_s = self._leave_for_server(plan)  # first: a server waits for it inside the window
        checkpoint_s = self._checkpoint(plan)
        ended_at_s = self._now_s(arm)
        if self._merge.overlap_steps:
            window.training = True
            self._go_on(arm, at_s=None)
        emulated_s = self._begin_fill(arm, ended_at_s=ended_at_s, end_s=end_s)
        # The proof is no part of a merge: it is made while the burners burn.
        digest = self._island.merged_hash()
        # Waiting takes no CPU; the priority is kept to the end, so that the end is told in time.
        fill_cpu_s = self._burners.collect()
        self._wait_until(arm.zero_s + end_s)
        reduced = window.reduced
        assert reduced is not None  # commit follows reduce
        rank = self._island.rank
        return MergePart(
            island=self._number,
            round=plan.round,
            wait_s=window.met_s,
            codec_s=reduced.codec_s,
            all_reduce_s=reduced.all_reduce_s,
            outer_step_s=reduced.outer_step_s + committed_s - began_s,
            checkpoint_s=checkpoint_s,
            real_s=ended_at_s - window.start_s,
            emulated_s=emulated_s,
            fill_cpu_s=fill_cpu_s,
            ended_at_s=ended_at_s,
            weight=plan.weights[rank],
            tokens=window.ready.tokens,
            bytes_reduced=reduced.bytes_reduced,
            pseudo_gradient_norm=0.0,  # all islands' parts together: the coordinator's to say
            parameter_hash=digest,
            loss=window.ready.loss,
            codec_error=reduced.codec_error,
            missed_rounds=window.ready.missed_rounds,
            export_s=export_s,
        )

    def _checkpoint(self, plan: RoundPlan) -> float:
        """Seconds that the first island took to store the merged model, inside the window."""
        folder = self._island.run.folder
        due = self._merge.checkpoint and (plan.round + 1) % self._merge.checkpoint_every_merges == 0
        if not due or folder is None or self._island.rank != 0:
            return 0.0
        began_s = self._clock.now_s()
        tensors = self._island.merged_tensors()  # copies: training may go on meanwhile
        self._writer.submit(partial(self._island.write_merged, folder, tensors, round_=plan.round))
        if not self._merge.checkpoint_in_background:
            self._writer.wait()
        return self._clock.now_s() - began_s

    def _leave_for_server(self, plan: RoundPlan) -> float:
        """Seconds that the first island took to export the merged model, inside the window."""
        folder, export = self._island.run.folder, self._export
        if export is None or folder is None or self._island.rank != 0:
            return 0.0
        if export.every_merges is None or (plan.round + 1) % export.every_merges:
            return 0.0
        began_s = self._clock.now_s()
        self._island.export_merged(folder / SERVED, export, round_=plan.round)
        return self._clock.now_s() - began_s

    def export_start(self, folder: Path, *, seed: int) -> Path:
        """The weights that every island of ``seed`` starts from, for a server."""
        assert self._export is not None  # asked only where the study serves the islands' model
        return self._island.export_start(folder, self._export, seed=seed)

    def _go_on(self, arm: _Arm, *, at_s: float | None) -> None:
        """The next step at ``at_s``; None: at its usual pace, because the halt was a short one."""
        self._warn(self._priority.lowered())
        arm.loop.resume(at_s=at_s)

    def _wait_for_steps(self, arm: _Arm, steps: int) -> None:
        """Training goes on until the overlap is over; the loop says when a step has ended."""
        arm.loop.wait_for(lambda: self._island.steps >= steps, timeout_s=self._merge.timeout_s)

    def _in_window(self, round_: int) -> _Window:
        window = self._window
        if window is None or window.ready.round != round_:
            now = "none" if window is None else window.ready.round
            raise RuntimeError(
                f"island {self._number}: merge {round_}, but it stands ready for {now}"
            )
        return window

    def _begin_fill(self, arm: _Arm, *, ended_at_s: float, end_s: float) -> float:
        """Set the burners off for what is left of the window; how long that is."""
        if self._merge.fill.kind == "none" or ended_at_s >= end_s:
            return 0.0
        self._burners.begin(arm.zero_s + end_s)
        return end_s - ended_at_s

    def finish(self) -> dict[str, Any]:
        """Stop training; everything that this arm leaves for the record."""
        with self._taking_turn("finish"):
            arm = self._started()
            arm.loop.stop(timeout_s=self._merge.timeout_s)
            self._writer.wait()
            cpu_s = time.process_time() - arm.cpu_before_s
            self._arm = None
            arm.loop.check()
            return {
                **self._island.summary(),
                "late_steps": arm.loop.late_steps,
                "cpu_s": cpu_s,
                "warnings": list(self._warnings),
            }

    def shutdown(self) -> None:
        """End everything this island started; safe to call again, and during a merge."""
        self._stopping.set()
        self._burners.kill()
        with self._taking_turn("shutdown"):
            try:
                self._end_arm()
            finally:
                self._burners.close()
                self._island.close()

    def _end_arm(self) -> None:
        arm, self._arm = self._arm, None
        if arm is None:
            return
        arm.loop.stop(timeout_s=self._merge.timeout_s)
        try:
            self._writer.wait()
        except (DiskFull, OSError) as error:
            # The arm that it belongs to has failed already: the next one is none the worse for it.
            self._warn(f"island {self._number}: a checkpoint of the arm before was lost: {error}")

    def _started(self) -> _Arm:
        if self._arm is None:
            raise RuntimeError(f"island {self._number}: not started; call reset and start before")
        return self._arm

    def _now_s(self, arm: _Arm) -> float:
        return self._clock.now_s() - arm.zero_s

    def _wait_until(self, at_monotonic_s: float) -> None:
        while (left_s := at_monotonic_s - self._clock.now_s()) > 0:
            if self._stopping.wait(left_s):
                raise IslandStopped(f"island {self._number}: shut down in a merge window")

    def _warn(self, warning: str | None) -> None:
        if warning is not None and warning not in self._warnings:
            self._warnings.append(warning)

    def _taking_turn(self, doing: str) -> "_Turn":
        # A merge holds the turn for its window at most, plus the time limits of its two calls.
        return _Turn(
            self._turn,
            timeout_s=self._merge.window_s + 3 * self._merge.timeout_s,
            what=f"island {self._number}: {doing}",
        )


class _Turn:
    """A lock that says what waited for it in vain."""

    def __init__(self, lock: threading.Lock, *, timeout_s: float, what: str) -> None:
        self._lock = lock
        self._timeout_s = timeout_s
        self._what = what

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._timeout_s):
            raise RuntimeError(f"{self._what} waited {self._timeout_s:g} s for a merge to end")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
