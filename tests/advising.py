"""Trainers on a virtual clock, each at its own pace, that merge together when they are told to."""

import asyncio
import heapq
import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from actors.clock import VirtualClock
from actors.coordinator.advice import Learner, Progress, Transport
from orchestrator.advisor.config import AdviceConfig, AdviceFile
from orchestrator.advisor.http import serve
from orchestrator.advisor.session import AdviceSession

LIMIT_S = 30.0

ADVICE: dict[str, Any] = {
    "name": "mine",
    "learners": 2,
    "vllm_metrics_url": None,
    "corridor": {"floor_steps": 10, "ceiling_steps": 40, "target_steps": 20, "budget_merges": None},
    "policy": {"kind": "fixed_h", "h_steps": 20},
    "tick_steps": 5,
    "step_s": 0.5,
    "window_s": 4.0,
}
SERVER: dict[str, Any] = {
    "vllm_metrics_url": "http://127.0.0.1:1/metrics",
    "telemetry": {
        "serving_full_requests": 10,
        "network_full_bytes_per_s": 1e9,
        "checkpoint_full_bytes_per_s": 1e9,
    },
}


def advice(**changes: Any) -> AdviceConfig:
    """ADVICE with keys replaced; ``corridor`` is merged into."""
    raw = dict(ADVICE)
    for key, value in changes.items():
        raw[key] = {**raw[key], **value} if key == "corridor" else value
    return AdviceFile.model_validate_json(json.dumps({"advice": raw})).advice


def train(
    transport: Transport,
    clock: VirtualClock,
    *,
    step_s: Sequence[float],
    steps: int,
    merge_s: float = 1.0,
    own_h_steps: int = 30,
    tell: bool = True,
) -> list[list[int]]:
    """Steps at which each learner merged; a merge starts when the last has come to it.

    ``tell``: whether the trainers report that they have merged.
    """
    learners = [Learner(transport, learner=i, own_h_steps=own_h_steps) for i in range(len(step_s))]
    due = [(seconds, i) for i, seconds in enumerate(step_s)]
    heapq.heapify(due)
    done, waiting = [0] * len(step_s), set[int]()
    merges: list[list[int]] = [[] for _ in step_s]
    while due:
        at_s, i = heapq.heappop(due)
        clock.advance(max(0.0, at_s - clock.now_s()))
        done[i] += 1
        progress = Progress(tokens=100 * done[i], loss=1.0 / done[i])
        going = [i]
        if learners[i].ready_to_merge(done[i], progress):
            merges[i].append(done[i])
            waiting.add(i)
            going = []
            if len(waiting) == len(step_s):
                clock.advance(merge_s)
                going = sorted(waiting)
                waiting.clear()
                for j in going if tell else []:
                    learners[j].merged(done[j], seconds=merge_s)
        for j in going:
            if done[j] < steps:
                heapq.heappush(due, (clock.now_s() + step_s[j], j))
    assert not waiting, "some learners wait for others that never come"
    return merges


@contextmanager
def serving(session: AdviceSession, *, port: int = 0) -> Iterator[str]:
    """The endpoint of ``session`` in a thread of its own; its URL."""
    urls: queue.SimpleQueue[str] = queue.SimpleQueue()
    stopping: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    async def live() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        stopping.put(lambda: loop.call_soon_threadsafe(stop.set))
        await serve(
            session, host="127.0.0.1", port=port, stop=stop, ready=urls.put, say=lambda _: None
        )

    thread = threading.Thread(target=lambda: asyncio.run(live()), name="advise", daemon=True)
    thread.start()
    try:
        yield urls.get(timeout=LIMIT_S)
    finally:
        stopping.get(timeout=LIMIT_S)()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
