"""Islands in processes of their own, driven from a test; a process that was killed is replaced.

Starting one takes seconds (torch), so that a module's tests share them: ``Pool.take`` makes new
islands in processes that are there already.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from actors.config import IslandsConfig, MergeConfig, OuterConfig
from actors.coordinator.quorum import merge_weights
from actors.merge_messages import Formation, RoundPlan, SegmentName

PEER = Path(__file__).with_name("merge_peer.py")
ANSWER_S = 60.0  # a process that has just started imports torch


class PeerError(RuntimeError):
    """What the island raised: ``kind`` is the name of its type."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Process:
    """One merge_peer.py."""

    def __init__(self, checkout: Path) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, str(PEER)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.put(line)

    def tell(self, do: str, **arguments: Any) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._popen.stdin.flush()

    def hear(self) -> Any:
        told = json.loads(self._lines.get(timeout=ANSWER_S))
        if "error" in told:
            raise PeerError(told["error"], told["message"])
        return told["ok"]

    def send(self, number: int) -> None:
        self._popen.send_signal(number)

    def end(self) -> None:
        """Killed, frozen or well: it is gone afterwards."""
        self._popen.kill()
        self._popen.wait()
        self._reader.join(10)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Peers:
    """Islands 0 .. n - 1; commands by number."""

    def __init__(
        self,
        processes: Sequence[Process],
        config: IslandsConfig,
        *,
        replace_: Callable[[Process], None],
    ) -> None:
        self.processes = list(processes)
        self._outer: OuterConfig = config.outer
        self._epoch = 0
        self._replace = replace_
        self._ready: dict[int, Any] = {}

    def ask(self, island: int, do: str, **arguments: Any) -> Any:
        self.processes[island].tell(do, **arguments)
        return self.processes[island].hear()

    def train(self, steps: Mapping[int, int]) -> None:
        """So many inner steps of each, at the same time."""
        for island, count in steps.items():
            self.processes[island].tell("steps", count=count)
        for island in steps:
            self.processes[island].hear()

    def each(self, islands: Sequence[int], do: str, **arguments: Any) -> dict[int, Any]:
        """At the same time; the first error is raised."""
        for island in islands:
            self.processes[island].tell(do, **arguments)
        return {island: self.processes[island].hear() for island in islands}

    def errors(self, islands: Sequence[int], do: str, **arguments: Any) -> dict[int, PeerError]:
        """At the same time, and all of them fail."""
        for island in islands:
            self.processes[island].tell(do, **arguments)
        found = {}
        for island in islands:
            try:
                told = self.processes[island].hear()
            except PeerError as error:
                found[island] = error
            else:
                raise AssertionError(f"{do} of island {island} did not fail but gave {told}")
        return found

    def form(self, islands: Sequence[int], transport: str) -> Formation:
        """A new group of these."""
        told = [self.ask(island, "introduce") for island in islands]
        self._epoch = max([self._epoch, *(one["epoch"] for one in told)]) + 1
        shared = transport == "shared_memory"
        formation = Formation(
            epoch=self._epoch,
            members=tuple(islands),
            transport=transport,  # type: ignore[arg-type]
            segments=tuple(SegmentName(**one["segment"]) for one in told) if shared else (),
            master_addr="127.0.0.1",
            master_port=told[0]["port"],
            join_timeout_s=30.0,
        )
        if not shared:
            self.each(islands, "form", formation=asdict(formation))
            return formation
        banks = self.ask(islands[0], "form", formation=asdict(formation))
        following = replace(formation, banks=SegmentName(**banks))
        self.each(islands[1:], "form", formation=asdict(following))
        return following

    def ready(self, islands: Sequence[int], *, round_: int) -> dict[str, Any]:
        """All stand; the plan of the round, for the present group."""
        self._ready = self.each(islands, "ready", round_=round_, fragment=0)
        return self.plan(islands, round_=round_)

    def plan(self, islands: Sequence[int], *, round_: int) -> dict[str, Any]:
        """For those of the islands that are ready, in the present group."""
        told = [self._ready[island] for island in islands]
        weights = merge_weights(
            [one["tokens"] for one in told], [one["missed_rounds"] for one in told], self._outer
        )
        return asdict(RoundPlan(round=round_, epoch=self._epoch, weights=weights, fragment=0))

    def finish(self, islands: Sequence[int], plan: dict[str, Any]) -> tuple[str, dict[int, Any]]:
        """Reduce and commit: what every island proved in the end, and the parts."""
        parts = self.each(islands, "reduce", plan=plan)
        return self.commit(islands, plan), parts

    def commit(self, islands: Sequence[int], plan: dict[str, Any]) -> str:
        (digest,) = set(self.each(islands, "commit", plan=plan).values())
        told: str = digest
        return told

    def merge(self, islands: Sequence[int], *, round_: int) -> tuple[str, dict[int, Any]]:
        return self.finish(islands, self.ready(islands, round_=round_))

    def hashes(self, islands: Sequence[int]) -> dict[int, Any]:
        return self.each(islands, "parameter_hash")

    def kill(self, island: int) -> None:
        """As a node that is lost; the pool starts another process at once, for the next test."""
        self.processes[island].end()
        self._replace(self.processes[island])

    def freeze(self, island: int) -> None:
        self.processes[island].send(signal.SIGSTOP)

    def thaw(self, island: int) -> None:
        self.processes[island].send(signal.SIGCONT)


class Pool:
    """Processes for the tests of a module."""

    def __init__(self, checkout: Path, *, size: int) -> None:
        self._checkout = checkout
        self._processes = [Process(checkout) for _ in range(size)]

    def take(self, config: IslandsConfig, merge: MergeConfig, *, seed: int = 7) -> Peers:
        """New islands, all at the start of their run."""
        processes = self._processes[: config.count]
        made = {"config": config.model_dump_json(), "merge": merge.model_dump_json(), "seed": seed}
        for island, process in enumerate(processes):
            process.tell("make", island=island, **made)
        hashes = {process.hear() for process in processes}
        assert len(hashes) == 1
        return Peers(processes, config, replace_=self._replace)

    def _replace(self, process: Process) -> None:
        self._processes[self._processes.index(process)] = Process(self._checkout)

    def close(self) -> None:
        for process in self._processes:
            process.end()
