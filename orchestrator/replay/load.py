"""Where a replayed seed's requests come from, and the columns of what became of them.

In an open loop they stand beforehand, equal in every arm; in a closed one they follow the answers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from actors.load.request import Request
from orchestrator.config import StudyConfig
from orchestrator.replay.closed_server import ClosedServer
from orchestrator.replay.plant import PlantConfig, Server, overheads, paces
from orchestrator.replay.state import ServerState
from orchestrator.workload.config import ClosedLoopConfig
from orchestrator.workload.history import seed_requests
from orchestrator.workload.requests import check_requests, request_hash

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CLOSED_PIECE_S = 10.0  # a closed loop is run on by so much until all that counts is answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """A run's requests and when they were answered; the client waits for every answer.

    [request], in order of scheduled time.
    """

    requests: tuple[Request, ...]
    request_hash: str
    at_s: Floats
    output_tokens: Ints
    first_token_at_s: Floats
    done_at_s: Floats

    @property
    def e2e_s(self) -> Floats:
        return self.done_at_s - self.at_s


class ReplayLoad(Protocol):
    """One seed's load."""

    @property
    def scheduled_at_s(self) -> list[float]:
        """What an oracle looks at; ValueError where it is not known beforehand."""
        ...

    def servers(self) -> Sequence[ServerState]:
        """A fresh server for each sidecar, at time 0."""
        ...

    def end(self, servers: Sequence[ServerState]) -> Answers:
        """Run them on until everything scheduled before the horizon is answered."""
        ...


def make_load(study: StudyConfig, *, seed: int, plant: PlantConfig, study_dir: Path) -> ReplayLoad:
    """ValueError for a load that the seed cannot have."""
    if isinstance(study.load, ClosedLoopConfig):
        return ClosedLoad(study, study.load, seed=seed, plant=plant)
    return OpenLoad(study, seed=seed, plant=plant, study_dir=study_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One sidecar's requests, in order of time.  # [request of the sidecar]"""

    index: Ints  # their places in the run's columns
    at_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    overheads_s: Floats


class OpenLoad:
    """The request file of a seed."""

    def __init__(
        self, study: StudyConfig, *, seed: int, plant: PlantConfig, study_dir: Path
    ) -> None:
        self._plant = plant
        self._requests = requests = seed_requests(study, seed=seed, study_dir=study_dir)
        self._hash = request_hash(requests)
        self._at_s = np.array([r.scheduled_at_s for r in requests], dtype=np.float64)
        self._output = _column(requests, "output_tokens")
        self._paces = paces(plant, seed=seed, horizon_s=study.horizon_s)
        overheads_s = overheads(plant, seed=seed, request_ids=_column(requests, "request_id"))
        prompt, sidecar = _column(requests, "prompt_tokens"), _column(requests, "sidecar")
        limit_tokens = study.sidecars.engine.max_model_len_tokens
        if (prompt + self._output).max() > limit_tokens:  # as before a live run
            check_requests(requests, max_model_len_tokens=limit_tokens)
        self._parts = [
            _Part(
                index=index,
                at_s=self._at_s[index],
                prompt_tokens=prompt[index],
                output_tokens=self._output[index],
                overheads_s=overheads_s[index],
            )
            for index in (np.flatnonzero(sidecar == s) for s in range(study.sidecars.count))
        ]

    @property
    def scheduled_at_s(self) -> list[float]:
        found: list[float] = self._at_s.tolist()
        return found

    def servers(self) -> list[Server]:
        return [
            Server(
                self._plant,
                at_s=part.at_s,
                prompt_tokens=part.prompt_tokens,
                output_tokens=part.output_tokens,
                overheads_s=part.overheads_s,
                paces=self._paces,
            )
            for part in self._parts
        ]

    def end(self, servers: Sequence[ServerState]) -> Answers:
        first_s, done_s = np.empty_like(self._at_s), np.empty_like(self._at_s)
        for part, server in zip(self._parts, servers, strict=True):
            server.advance(math.inf)
            served = server.served()
            first_s[part.index] = served.first_token_at_s
            done_s[part.index] = served.done_at_s
        return Answers(
            requests=self._requests,
            request_hash=self._hash,
            at_s=self._at_s,
            output_tokens=self._output,
            first_token_at_s=first_s,
            done_at_s=done_s,
        )


class ClosedLoad:
    """A fixed number of users to each sidecar; they ask until the horizon.

    Requests are numbered in order of scheduled time. Users go on after the horizon until all that
    was asked before it is answered, as the load on those last answers; these are not counted.
    """

    def __init__(
        self, study: StudyConfig, config: ClosedLoopConfig, *, seed: int, plant: PlantConfig
    ) -> None:
        self._config = config
        self._seed = seed
        self._plant = plant
        self._sidecars = study.sidecars.count
        self._horizon_s = study.horizon_s
        self._paces = paces(plant, seed=seed, horizon_s=study.horizon_s)

    @property
    def scheduled_at_s(self) -> list[float]:
        raise ValueError(
            "arms: an oracle needs all arrivals beforehand, and in load.kind='closed' they follow "
            "the answers; leave it out"
        )

    def servers(self) -> list[ClosedServer]:
        return [
            ClosedServer(
                self._plant, config=self._config, seed=self._seed, sidecar=i, paces=self._paces
            )
            for i in range(self._sidecars)
        ]

    def end(self, servers: Sequence[ServerState]) -> Answers:
        served = [self._finished(server) for server in servers]
        at_s, prompt, output, seeds, first_s, done_s = (
            np.concatenate([columns[i] for columns in served]) for i in range(6)
        )
        sidecar = np.repeat(np.arange(len(served)), [len(columns[0]) for columns in served])
        order = np.lexsort((sidecar, at_s))  # stable: by time, then by sidecar, then as asked
        requests = tuple(
            Request(
                request_id=request_id,
                sidecar=int(sidecar[i]),
                scheduled_at_s=float(at_s[i]),
                prompt_tokens=int(prompt[i]),
                output_tokens=int(output[i]),
                prompt_seed=int(seeds[i]),
            )
            for request_id, i in enumerate(order)
        )
        return Answers(
            requests=requests,
            request_hash=request_hash(requests),
            at_s=at_s[order],
            output_tokens=output[order],
            first_token_at_s=first_s[order],
            done_at_s=done_s[order],
        )

    def _finished(self, server: ServerState) -> tuple[Floats | Ints, ...]:
        """Columns of what was scheduled before the horizon, all of it answered."""
        assert isinstance(server, ClosedServer)
        until_s = self._horizon_s
        while True:
            server.advance(until_s)
            served = server.served()
            mine = served.at_s < self._horizon_s
            if np.isfinite(served.done_at_s[mine]).all():
                break
            until_s += CLOSED_PIECE_S
        return tuple(
            column[mine]
            for column in (
                served.at_s,
                served.prompt_tokens,
                served.output_tokens,
                served.prompt_seeds,
                served.first_token_at_s,
                served.done_at_s,
            )
        )


def _column(requests: Sequence[Request], name: str) -> Ints:
    return np.array([getattr(r, name) for r in requests], dtype=np.int64)
