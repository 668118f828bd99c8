"""A closed loop: never more requests under way than users, each user's stream its own."""

import pytest

from actors.load.request import Request
from orchestrator.workload.closed import ClosedLoop
from orchestrator.workload.config import ClosedLoopConfig, CrowdConfig, TokenRange

TOKENS = TokenRange(low=8, high=64)
CROWD = CrowdConfig(users=3, period_s=10.0, burst_s=2.5, phase_s=14.0)  # present at 4 to 6.5 s, ...


def loop_of(
    users: int, *, think_s: float = 0.0, seed: int = 1, crowd: CrowdConfig | None = None
) -> ClosedLoop:
    config = ClosedLoopConfig(
        kind="closed",
        users=users,
        mean_think_s=think_s,
        prompt_tokens=TOKENS,
        output_tokens=TOKENS,
        crowd=crowd,
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


def test_a_crowd_asks_in_its_bursts_alone() -> None:
    """1 user and 3 more, 0.5 s an answer: 20 + 3 * 5 requests in each period of 10 s."""
    done = served(loop_of(1, crowd=CROWD), service_s=0.5, requests=400)
    per_period = [sum(10.0 * k <= r.scheduled_at_s < 10.0 * (k + 1) for r in done) for k in (1, 2)]
    assert per_period == [35, 35]
    quiet = [r for r in done if not 4.0 <= r.scheduled_at_s % 10.0 < 6.5]
    always = served(loop_of(1), service_s=0.5, requests=400)
    assert {r.prompt_seed for r in quiet} <= {r.prompt_seed for r in always}


def test_a_crowd_asks_again_at_the_microsecond_at_which_its_burst_begins() -> None:
    loop = loop_of(1, crowd=CROWD)
    first = loop.start()[1]
    assert first.scheduled_at_s == 4.0
    late = loop.after(first.request_id, done_at_s=6.4999999)  # in the last microsecond of it: over
    assert late.scheduled_at_s == 14.0
    again = loop.after(late.request_id, done_at_s=16.499999)
    assert again.scheduled_at_s == 16.499999


def test_a_load_without_a_crowd_is_written_as_before() -> None:
    config = loop_of(2).config
    assert "crowd" not in config.model_dump_json()
    crowded = loop_of(2, crowd=CROWD).config
    assert ClosedLoopConfig.model_validate_json(crowded.model_dump_json()) == crowded
    with pytest.raises(ValueError, match="burst_s=3 is above period_s=2"):
        CrowdConfig(users=1, period_s=2.0, burst_s=3.0)
