"""The other processes of an island that has several (one for each of its GPUs), seen by its lead.

They hold the same parameters, train on batches of their own and average gradients with the lead;
in a merge the lead acts for all and sends the result round. What is lost with one of them is the
island.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from actors.config import IslandsConfig
from actors.deadlines import ANSWER, START
from actors.island.comm import free_port
from actors.island.gradients import ReplicaGroup, ReplicaLost


class Replicas:
    """The lead's side; ``config.replicas`` processes in all, this one among them."""

    def __init__(self, config: IslandsConfig, *, island: int, timeout_s: float) -> None:
        self._config = config
        self._island = island
        self._timeout_s = timeout_s
        self._processes: list[subprocess.Popen[bytes]] = []
        self._group: ReplicaGroup | None = None

    @property
    def processes(self) -> tuple[subprocess.Popen[bytes], ...]:
        return tuple(self._processes)

    def start(self, *, device: torch.device) -> None:
        """Have all of them up, in one group; nothing to do when they are."""
        if self._group is not None:
            return
        port = free_port("127.0.0.1")
        size = self._config.replicas
        self._processes = [self._spawn(rank, port) for rank in range(1, size)]
        self._group = ReplicaGroup(
            rank=0, size=size, port=port, device=device, timeout_s=self._timeout_s
        )
        self._answers(limit_s=START.limit_s)

    def reset(self, *, seed: int, shards: tuple[int, ...]) -> None:
        """The model and optimizer of ``seed``, as the lead has them."""
        self._tell({"do": "reset", "seed": seed, "shards": list(shards)})
        self._answers(limit_s=START.limit_s)

    def begin_step(self, *, cursor: int, tokens: int) -> None:
        """They compute their gradients while the lead computes its own."""
        self._tell({"do": "step", "cursor": cursor, "tokens": tokens})

    def average(self, parameters: list[nn.Parameter], loss: Tensor) -> float:
        """The lead's gradients become the mean over all; returns the mean loss."""
        return self._met().average(parameters, loss)

    def end_step(self) -> None:
        """All have taken the step."""
        self._answers(limit_s=self._timeout_s)

    def take_over(self, vector: Tensor) -> None:
        """Everybody's parameters become the lead's flat vector [numbers]."""
        self._tell({"do": "receive"})
        self._met().send(vector)
        self._answers(limit_s=self._timeout_s)

    def load(self, path: Path) -> None:
        """Optimizer state from the lead's file; parameters come by ``take_over``."""
        self._tell({"do": "load", "path": str(path)})
        self._answers(limit_s=ANSWER.limit_s)

    def close(self) -> None:
        """End them all."""
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._processes, self._group = [], None

    def _met(self) -> ReplicaGroup:
        assert self._group is not None  # start comes first
        return self._group

    def _spawn(self, rank: int, port: int) -> subprocess.Popen[bytes]:
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "actors.island.replica", str(os.getpid())),
                *(self._config.model_dump_json(), str(self._island), str(rank), str(port)),
                str(self._timeout_s),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )

    def _tell(self, command: dict[str, Any]) -> None:
        line = (json.dumps(command) + "\n").encode()
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except OSError as error:
                raise ReplicaLost(self._death(process)) from error

    def _answers(self, *, limit_s: float) -> None:
        until_s = time.monotonic() + limit_s
        for process in self._processes:
            self._answer(process, until_s=until_s)

    def _answer(self, process: subprocess.Popen[bytes], *, until_s: float) -> None:
        assert process.stdout is not None
        wait_s = max(0.0, until_s - time.monotonic())
        if not select.select([process.stdout], [], [], wait_s)[0]:
            raise ReplicaLost(
                f"island {self._island}: its process {process.pid} did not answer in time"
            )
        line = process.stdout.readline()
        if not line:
            raise ReplicaLost(self._death(process))
        told = json.loads(line)
        if told.get("error"):
            raise ReplicaLost(f"island {self._island}, process {process.pid}: {told['error']}")

    def _death(self, process: subprocess.Popen[bytes]) -> str:
        return f"island {self._island}: its process {process.pid} is gone (exit {process.poll()})"
