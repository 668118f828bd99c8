"""A closed loop by concurrency: each user asks, waits for the answer, pauses, asks again.

For a replay, where the answers come from a model. What a user asks next and how long it pauses is
drawn from that user's own stream, so it is the same whatever the others do. A crowd of more users
may come and go: in a burst each of them asks, outside they ask for nothing.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from actors.load.request import Request
from orchestrator.workload.config import ClosedLoopConfig
from orchestrator.workload.drafts import PROMPT_SEEDS
from orchestrator.workload.slices import US_PER_S
from policies.streams import stream

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one user does next: pause, then ask."""

    pause_s: float
    prompt_tokens: int
    output_tokens: int
    prompt_seed: int


def draw_turn(config: ClosedLoopConfig, *, rng: np.random.Generator) -> Turn:
    """The next turn of the user whose stream this is."""
    pause_s = float(rng.exponential(config.mean_think_s)) if config.mean_think_s else 0.0
    prompt = rng.integers(config.prompt_tokens.low, config.prompt_tokens.high, endpoint=True)
    output = rng.integers(config.output_tokens.low, config.output_tokens.high, endpoint=True)
    return Turn(
        pause_s=pause_s,
        prompt_tokens=int(prompt),
        output_tokens=int(output),
        prompt_seed=int(rng.integers(PROMPT_SEEDS)),
    )


def user_streams(
    config: ClosedLoopConfig, *, seed: int, sidecar: int
) -> tuple[np.random.Generator, ...]:
    """The stream of each user of a sidecar."""
    return tuple(stream(seed, "closed", sidecar, user) for user in range(config.all_users))


def presence(config: ClosedLoopConfig) -> Floats:
    """When each user may ask: period, first moment and length of its stays.  # [3, user], us

    A period of 0: always.
    """
    stays = np.zeros((3, config.all_users))
    if config.crowd is not None:
        crowd = config.crowd
        times_s = (crowd.period_s, crowd.phase_s % crowd.period_s, crowd.burst_s)
        stays[:, config.users :] = np.array([[round(t * US_PER_S)] for t in times_s])
    return stays


def next_present_us(at_us: float, stay: Floats) -> float:
    """The first whole microsecond from ``at_us`` on at which the user may ask; ``stay`` [3]."""
    period_us, from_us, for_us = (float(t) for t in stay)
    if period_us == 0.0:
        return at_us
    into_us = (at_us - from_us) % period_us
    return at_us if into_us < for_us else at_us - into_us + period_us


@dataclass(slots=True, kw_only=True)
class ClosedLoop:
    """The users of one sidecar; request ids count up in the order in which they are asked for."""

    config: ClosedLoopConfig
    seed: int
    sidecar: int = 0
    _users: tuple[np.random.Generator, ...] = field(init=False)
    _presence: Floats = field(init=False)  # [3, user]
    _asked: int = field(init=False, default=0)
    _user_of: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._users = user_streams(self.config, seed=self.seed, sidecar=self.sidecar)
        self._presence = presence(self.config)

    def start(self) -> tuple[Request, ...]:
        """The first request of every user, each after its own pause from 0."""
        return tuple(self._ask(user, free_at_s=0.0) for user in range(self.config.all_users))

    def after(self, request_id: int, *, done_at_s: float) -> Request:
        """The next request of the user whose request was answered; ValueError for a request that
        is not under way.
        """
        user = self._user_of.pop(request_id, None)
        if user is None:
            raise ValueError(f"request {request_id} is not under way; answer each request once")
        return self._ask(user, free_at_s=done_at_s)

    def _ask(self, user: int, *, free_at_s: float) -> Request:
        turn = draw_turn(self.config, rng=self._users[user])
        ready_us = float(np.ceil((free_at_s + turn.pause_s) * US_PER_S))
        request = Request(
            request_id=self._asked,
            sidecar=self.sidecar,
            scheduled_at_s=next_present_us(ready_us, self._presence[:, user]) / US_PER_S,
            prompt_tokens=turn.prompt_tokens,
            output_tokens=turn.output_tokens,
            prompt_seed=turn.prompt_seed,
        )
        self._asked += 1
        self._user_of[request.request_id] = user
        return request
