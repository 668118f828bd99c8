"""A closed loop: never more requests under way than users, each user's stream its own."""

import pytest

from actors.load.request import Request
from orchestrator.workload.closed import ClosedLoop
from orchestrator.workload.config import ClosedLoopConfig, TokenRange

TOKENS = TokenRange(low=8, high=64)


def loop_of(users: int, *, think_s: float = 0.0, seed: int = 1) -> ClosedLoop:
    config = ClosedLoopConfig(
        kind="closed", users=users, mean_think_s=think_s, prompt_tokens=TOKENS, output_tokens=TOKENS
    )
    return ClosedLoop(config=config, seed=seed)


def served(loop: ClosedLoop, *, service_s: float, requests: int) -> list[Request]:
    """Answer the earliest request again and again."""
    waiting = list(loop.start())
    done: list[Request] = []
    while len(done) < requests:
        first = min(waiting, key=lambda r: (r.scheduled_at_s, r.request_id))
        waiting.remove(first)
        done.append(first)
        waiting.append(loop.after(first.request_id, done_at_s=first.scheduled_at_s + service_s))
    return done


def test_without_pauses_the_rate_is_users_over_service_time() -> None:
    done = served(loop_of(4), service_s=0.5, requests=400)
    assert done[-1].scheduled_at_s == pytest.approx(99 * 0.5)
    assert {r.request_id for r in done} == set(range(400))


def test_pauses_have_their_mean() -> None:
    done = served(loop_of(20, think_s=2.0), service_s=0.5, requests=4000)
    cycle_s = done[-1].scheduled_at_s / (4000 / 20)
    assert cycle_s == pytest.approx(2.5, rel=0.05)


def test_what_a_user_asks_does_not_depend_on_the_others() -> None:
    def asked(service_s: tuple[float, float]) -> list[tuple[int, int, int]]:
        loop = loop_of(2)
        one, other = loop.start()
        found = []
        for i in range(20):
            found.append((one.prompt_tokens, one.output_tokens, one.prompt_seed))
            if i % 2:
                other = loop.after(other.request_id, done_at_s=other.scheduled_at_s + service_s[1])
            one = loop.after(one.request_id, done_at_s=one.scheduled_at_s + service_s[0])
        return found

    assert asked((1.0, 0.1)) == asked((0.2, 5.0))


def test_an_answer_counts_once() -> None:
    loop = loop_of(1)
    (first,) = loop.start()
    loop.after(first.request_id, done_at_s=1.0)
    with pytest.raises(ValueError, match="request 0 is not under way"):
        loop.after(first.request_id, done_at_s=2.0)
