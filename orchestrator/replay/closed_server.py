"""One sidecar of the plant in a closed loop: its users ask again after each answer and a pause.

The users, their turns and the order of request ids are those of workload/closed.py.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orchestrator.replay import kernel
from orchestrator.replay.config import PlantConfig
from orchestrator.replay.state import NO_PACES, Floats, Ints, Served, ServerState
from orchestrator.workload.closed import draw_turn, presence, user_streams
from orchestrator.workload.config import ClosedLoopConfig
from policies.streams import stream

FIRST_TURNS = 16  # drawn for each user; doubled whenever one has used them up


class Turns:
    """What the users of one sidecar do, turn by turn: the same in every arm, so drawn only once.

    More turns change none of the earlier ones.
    """

    def __init__(
        self, config: ClosedLoopConfig, *, seed: int, sidecar: int, overhead_log_sd: float
    ) -> None:
        self._config, self._log_sd = config, overhead_log_sd
        self._users = user_streams(config, seed=seed, sidecar=sidecar)
        self._noise = [
            stream(seed, "closed_overhead", sidecar, user) for user in range(config.all_users)
        ]
        users = config.all_users
        self.pauses_s = np.empty((users, 0))  # [user, turn], as the others
        self.overhead_noise = np.empty((users, 0))
        self.tokens = np.empty((2, users, 0), np.int64)  # prompt, output
        self.prompt_seeds = np.empty((users, 0), np.int64)

    def draw(self, turns: int) -> None:
        """Draw until every user has so many turns."""
        more = turns - self.pauses_s.shape[1]
        if more <= 0:
            return
        drawn = [[draw_turn(self._config, rng=rng) for _ in range(more)] for rng in self._users]
        noise = [rng.lognormal(0.0, self._log_sd, more) for rng in self._noise]
        tokens = [
            [[turn.prompt_tokens for turn in row] for row in drawn],
            [[turn.output_tokens for turn in row] for row in drawn],
        ]
        pauses_s = [[turn.pause_s for turn in row] for row in drawn]
        seeds = [[turn.prompt_seed for turn in row] for row in drawn]
        self.pauses_s = np.hstack([self.pauses_s, np.array(pauses_s)])
        self.overhead_noise = np.hstack([self.overhead_noise, np.array(noise)])
        self.tokens = np.dstack([self.tokens, np.array(tokens)])
        self.prompt_seeds = np.hstack([self.prompt_seeds, np.array(seeds)])


@lru_cache(maxsize=16)
def turns_of(config: ClosedLoopConfig, *, seed: int, sidecar: int, overhead_log_sd: float) -> Turns:
    """Kept for the arms of a seed, which follow one another."""
    return Turns(config, seed=seed, sidecar=sidecar, overhead_log_sd=overhead_log_sd)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedServed(Served):
    """Every request that was asked for so far, in the order of ids, also those still to come.

    A request is scheduled at at_s, its user's pause after the answer before.
    """

    at_s: Floats  # [request]
    prompt_tokens: Ints
    output_tokens: Ints
    prompt_seeds: Ints


class ClosedServer(ServerState):
    """`Server` with a fixed number of users instead of a list of arrivals.

    Overheads are drawn by user and turn, as everything that a user does.
    """

    def __init__(
        self,
        plant: PlantConfig,
        *,
        config: ClosedLoopConfig,
        seed: int,
        sidecar: int = 0,
        paces: Floats = NO_PACES,
    ) -> None:
        super().__init__(
            plant,
            times=np.empty((4, 0)),
            asked=np.empty((5, 0), np.int64),
            known=0,
            paces=paces,
        )
        self._overhead_s = plant.overhead_s
        self._drawn = turns_of(
            config, seed=seed, sidecar=sidecar, overhead_log_sd=plant.overhead_log_sd
        )
        users = config.all_users
        self._stays_us = presence(config)
        self._turns = np.zeros(users, np.int64)
        self._turn_s = np.empty((2, users, 0))
        self._draw_turns()
        for user in range(users):
            self._ask(user, free_at_s=0.0)

    def advance(self, until_s: float) -> None:
        """As `Server.advance`; ValueError for an endless run."""
        if until_s == math.inf:
            raise ValueError("until_s=inf: a closed loop never ends; give the time to stop at")
        super().advance(until_s)

    def served(self) -> ClosedServed:
        """First and last tokens so far, and what was asked for, by request."""
        times = self._times[:, : self._counts[kernel.KNOWN]]
        asked = self._asked[:, : self._counts[kernel.KNOWN]]
        return ClosedServed(
            first_token_at_s=times[kernel.FIRST].copy(),
            done_at_s=times[kernel.LAST].copy(),
            at_s=times[kernel.AT].copy(),
            prompt_tokens=asked[kernel.PROMPT].copy(),
            output_tokens=asked[kernel.OUTPUT].copy(),
            prompt_seeds=self._drawn.prompt_seeds[asked[kernel.USER], asked[kernel.TURN]],
        )

    def _ask(self, user: int, *, free_at_s: float) -> None:
        kernel.ask_again(
            free_at_s,
            user,
            self._counts,
            self._times,
            self._asked,
            self._turn_s,
            self._turn_tokens,
            self._turns,
            self._stays_us,
        )

    def _draw_turns(self) -> None:
        """Twice as many turns for every user, and room for the requests that they may make."""
        _, users, known = self._turn_s.shape
        turns = 2 * known or FIRST_TURNS
        self._drawn.draw(turns)
        overheads_s = self._overhead_s * self._drawn.overhead_noise[:, :turns]
        self._turn_s = np.stack([self._drawn.pauses_s[:, :turns], overheads_s])
        self._turn_tokens = np.ascontiguousarray(self._drawn.tokens[:, :, :turns])
        room = users * (turns - known)
        self._times = np.hstack([self._times, np.full((4, room), np.nan)])
        self._asked = np.hstack([self._asked, np.empty((5, room), np.int64)])
