"""A closed loop by concurrency: each user asks, waits for the answer, pauses, asks again.

For a replay, where the answers come from a model. What a user asks next and how long it pauses is
drawn from that user's own stream, so it is the same whatever the others do.
"""

from dataclasses import dataclass, field

import numpy as np

from actors.load.request import Request
from orchestrator.workload.config import ClosedLoopConfig
from orchestrator.workload.drafts import PROMPT_SEEDS
from orchestrator.workload.slices import US_PER_S
from policies.streams import stream


@dataclass(slots=True, kw_only=True)
class ClosedLoop:
    """The users of one sidecar; request ids count up in the order in which they are asked for."""

    config: ClosedLoopConfig
    seed: int
    sidecar: int = 0
    _users: list[np.random.Generator] = field(init=False)
    _asked: int = field(init=False, default=0)
    _user_of: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._users = [
            stream(self.seed, "closed", self.sidecar, user) for user in range(self.config.users)
        ]

    def start(self) -> tuple[Request, ...]:
        """The first request of every user, each after its own pause from 0."""
        return tuple(self._ask(user, free_at_s=0.0) for user in range(self.config.users))

    def after(self, request_id: int, *, done_at_s: float) -> Request:
        """The next request of the user whose request was answered; ValueError for a request that
        is not under way.
        """
        user = self._user_of.pop(request_id, None)
        if user is None:
            raise ValueError(f"request {request_id} is not under way; answer each request once")
        return self._ask(user, free_at_s=done_at_s)

    def _ask(self, user: int, *, free_at_s: float) -> Request:
        rng, config = self._users[user], self.config
        pause_s = float(rng.exponential(config.mean_think_s)) if config.mean_think_s else 0.0
        prompt = rng.integers(config.prompt_tokens.low, config.prompt_tokens.high, endpoint=True)
        output = rng.integers(config.output_tokens.low, config.output_tokens.high, endpoint=True)
        request = Request(
            request_id=self._asked,
            sidecar=self.sidecar,
            scheduled_at_s=int(np.ceil((free_at_s + pause_s) * US_PER_S)) / US_PER_S,
            prompt_tokens=int(prompt),
            output_tokens=int(output),
            prompt_seed=int(rng.integers(PROMPT_SEEDS)),
        )
        self._asked += 1
        self._user_of[request.request_id] = user
        return request
