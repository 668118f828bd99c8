"""The plant in plain Python, one step after another: what the compiled loop must equal bit by bit.

No jumps, no heap, no state kept over pauses. Times come from the same sums, so bits can agree.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.replay.config import PlantConfig


@dataclass(slots=True, kw_only=True)
class Sequenced:
    """One request on its way through the server."""

    request: int
    enter_s: float  # when it reaches the queue
    prompt_tokens: int
    tokens_left: int
    first_token_at_s: float = math.nan
    done_at_s: float = math.nan


Answered = Callable[[Sequenced], Sequenced | None]


def never_again(_: Sequenced) -> None:
    """The answer in an open loop: nobody asks again."""


def step_by_step(
    plant: PlantConfig,
    requests: Sequence[Sequenced],
    *,
    windows: Sequence[tuple[float, float, float]],
    until_s: float = math.inf,
    answered: Answered = never_again,
) -> list[Sequenced]:
    """Fill in the tokens of all requests, and of those that ``answered`` adds, by request.

    windows: (start_s, end_s, factor), in order.
    """
    everyone = list(requests)
    queue = sorted(requests, key=lambda one: one.enter_s)
    edges = window_edges(plant, windows)
    running: list[Sequenced] = []
    now_s, factor = 0.0, 1.0
    anchor_s, steps, work_s = 0.0, 0, 0.0  # steps since the anchor have this much work each
    changed = True  # the batch, since the anchor
    while running or queue:
        # a step's start: who joins
        if not running:
            now_s = max(now_s, queue[0].enter_s)
            if now_s >= until_s:
                break
            changed = True
        joining: list[Sequenced] = []
        while queue and len(running) < plant.slots and queue[0].enter_s <= now_s:
            joining.append(queue.pop(0))
            running.append(joining[-1])
        if joining or changed:
            anchor_s, steps = now_s, 0
            work_s = plant.step_base_s + plant.step_per_seq_s * len(running)
            work_s += plant.prefill_per_token_s * sum(one.prompt_tokens for one in joining)
        while edges and edges[0][0] < now_s:
            factor = edges.pop(0)[1]

        # the step's end, past any edges inside it
        cut = False
        left_s, end_s = work_s, anchor_s + (steps + 1) * (work_s * factor)
        while edges and edges[0][0] < end_s and edges[0][0] < until_s:
            edge_s, next_factor = edges.pop(0)
            done_s = (edge_s - (anchor_s + steps * (left_s * factor))) / factor
            cut = cut or done_s > 0.0
            left_s = max(left_s - done_s, 0.0) if done_s > 0.0 else left_s
            anchor_s, steps, factor = edge_s, 0, next_factor
            end_s = anchor_s + left_s * factor
        if end_s >= until_s:
            break
        now_s, steps = end_s, steps + 1

        # tokens
        for one in joining:
            one.first_token_at_s = now_s
        for one in running:
            one.tokens_left -= 1
        done = [one for one in running if one.tokens_left == 0]
        running = [one for one in running if one.tokens_left > 0]
        for one in done:
            one.done_at_s = now_s
            more = answered(one)
            if more is not None:
                everyone.append(more)
                queue.append(more)
                queue.sort(key=lambda one: one.enter_s)  # stable
        changed = bool(joining or done) or cut
    return everyone


def window_edges(
    plant: PlantConfig, windows: Sequence[tuple[float, float, float]]
) -> list[tuple[float, float]]:
    """(when, slow-down from then on), in order; what follows a window gives way to the next."""
    edges: list[tuple[float, float]] = []
    for i, (start_s, end_s, factor) in enumerate(windows):
        end_s += plant.after_window_s
        if i + 1 < len(windows):
            end_s = min(end_s, windows[i + 1][0])
        edges += [(start_s, factor), (end_s, 1.0)]
    return edges
