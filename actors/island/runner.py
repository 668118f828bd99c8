"""An island at work: paced training, and the merge window around the island's part in a merge.

    command      start_s                          ended_at_s                     end_s
       |  pause, meet peers | codec, all-reduce, outer step, checkpoint | fill, hash |  train on

The island's own steps run at low priority; from the command to the end it has nice 0, because
a starved merge would measure the starvation. The fill burns in other processes.
"""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from actors.clock import Clock
from actors.config import IslandsConfig, MergeConfig
from actors.events import MergePart
from actors.island.comm import join_group
from actors.island.fill import Burners
from actors.island.island import Island
from actors.island.loop import PacedLoop, Pacer
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
    ) -> None:
        torch.set_num_threads(config.torch_threads)
        self._config = config
        self._merge = merge
        self._number = island
        self._clock = clock
        self._priority = priority
        self._island = Island(config, merge, island, clock=clock)
        self._burners = Burners(merge.fill, island=island)
        self._arm: _Arm | None = None
        self._turn = threading.Lock()  # one of reset, start, merge, finish at a time
        self._stopping = threading.Event()
        self._warnings: list[str] = []
        self._warn(priority.warning)

    def join(
        self, *, master_addr: str, master_port: int, world_size: int, timeout_s: float
    ) -> None:
        """Meet the other islands; ``timeout_s`` bounds the meeting, merge.timeout_s each call."""
        if world_size != self._config.count:
            raise ValueError(
                f"island {self._number}: world_size={world_size} but islands.count="
                f"{self._config.count}; join all islands"
            )
        with self._taking_turn("join"):
            self._island.connect(
                lambda: join_group(
                    rank=self._number,
                    world_size=world_size,
                    master_addr=master_addr,
                    master_port=master_port,
                    join_timeout_s=timeout_s,
                    call_timeout_s=self._merge.timeout_s,
                    device=torch.device(self._config.device),
                )
            )

    def reset(self, *, seed: int, checkpoint_dir: Path | None) -> str:
        """Ready for a new arm, whatever became of the last one; returns the parameter hash."""
        with self._taking_turn("reset"):
            self._end_arm()
            self._burners.start()
            self._warn(self._burners.warning)
            return self._island.reset(seed=seed, checkpoint_dir=checkpoint_dir)

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

    def merge(self, *, round_: int, start_s: float, end_s: float) -> MergePart:
        """Blocks to the end of the window; training goes on after it, whatever happened."""
        if not start_s < end_s:
            raise ValueError(f"round {round_}: merge window [{start_s}, {end_s}) s is empty")
        with self._taking_turn(f"merge of round {round_}"):
            arm = self._started()
            self._warn(self._priority.raised())
            try:
                arm.loop.pause(timeout_s=self._merge.timeout_s)
                return self._window(arm, round_=round_, start_s=start_s, end_s=end_s)
            finally:
                self._warn(self._priority.lowered())
                arm.loop.resume(at_s=arm.zero_s + end_s)

    def _window(self, arm: _Arm, *, round_: int, start_s: float, end_s: float) -> MergePart:
        self._wait_until(arm.zero_s + start_s)  # no-op when the command came in time or late
        loss = self._island.last_loss
        prepared = self._island.prepare()
        met_at_s = self._now_s(arm)
        work = self._island.perform(prepared, round_=round_, end_s=end_s)
        ended_at_s = self._now_s(arm)
        emulated_s = self._begin_fill(arm, ended_at_s=ended_at_s, end_s=end_s)
        # The proof is no part of a merge: it is made while the burners burn.
        digest = self._island.parameter_hash()
        # Waiting takes no CPU; the priority is kept to the end, so that the end is told in time.
        fill_cpu_s = self._burners.collect()
        self._wait_until(arm.zero_s + end_s)
        return MergePart(
            island=self._number,
            round=round_,
            wait_s=met_at_s - start_s,
            codec_s=work.codec_s,
            all_reduce_s=work.all_reduce_s,
            outer_step_s=work.outer_step_s,
            checkpoint_s=work.checkpoint_s,
            real_s=ended_at_s - start_s,
            emulated_s=emulated_s,
            fill_cpu_s=fill_cpu_s,
            ended_at_s=ended_at_s,
            weight=prepared.weight,
            tokens=prepared.tokens,
            bytes_reduced=work.bytes_reduced,
            pseudo_gradient_norm=work.pseudo_gradient_norm,
            parameter_hash=digest,
            loss=loss,
        )

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
                self._island.disconnect()

    def _end_arm(self) -> None:
        arm, self._arm = self._arm, None
        if arm is not None:
            arm.loop.stop(timeout_s=self._merge.timeout_s)

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
