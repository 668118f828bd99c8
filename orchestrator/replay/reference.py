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
    paces: Sequence[float] = (),
    until_s: float = math.inf,
    answered: Answered = never_again,
) -> list[Sequenced]:
    """Fill in the tokens of all requests, and of those that ``answered`` adds, by request.

    windows: (start_s, end_s, factor), in order; paces: one for each pace_slot_s from 0 on.
    """
    everyone = list(requests)
    queue = sorted(requests, key=lambda one: one.enter_s)
    edges = all_edges(plant, windows, paces)
    running: list[Sequenced] = []
    now_s, merging, pace = 0.0, 1.0, 1.0
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
        while edges and edges[0].at_s < now_s:
            merging, pace = edges.pop(0).after(merging, pace)
        factor = slowed(plant, merging, work_s) * pace

        # the step's end, past any edges inside it
        cut = False
        left_s, end_s = work_s, anchor_s + (steps + 1) * (work_s * factor)
        while edges and edges[0].at_s < end_s and edges[0].at_s < until_s:
            edge = edges.pop(0)
            edge_s = edge.at_s
            done_s = (edge_s - (anchor_s + steps * (left_s * factor))) / factor
            cut = cut or done_s > 0.0
            left_s = max(left_s - done_s, 0.0) if done_s > 0.0 else left_s
            merging, pace = edge.after(merging, pace)
            anchor_s, steps, factor = edge_s, 0, slowed(plant, merging, work_s) * pace
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """When a merge's slow-down or the server's pace becomes another one."""

    at_s: float
    merging: float | None = None
    pace: float | None = None

    def after(self, merging: float, pace: float) -> tuple[float, float]:
        """Both from then on."""
        return (
            merging if self.merging is None else self.merging,
            pace if self.pace is None else self.pace,
        )


def slowed(plant: PlantConfig, merging: float, whole_s: float) -> float:
    """How much longer a merge of this factor makes a step of this work."""
    if merging == 1.0 or plant.merge_step_s == 0.0 or whole_s == 0.0:
        return merging
    return 1.0 + (merging - 1.0) * ((whole_s + plant.merge_step_s) / whole_s)


def all_edges(
    plant: PlantConfig, windows: Sequence[tuple[float, float, float]], paces: Sequence[float]
) -> list[Edge]:
    """In order; of two at one time the window's is first."""
    edges = [Edge(at_s=at_s, merging=factor) for at_s, factor in window_edges(plant, windows)]
    if paces:
        steps = [*paces, 1.0]
        edges += [Edge(at_s=i * plant.pace_slot_s, pace=p) for i, p in enumerate(steps)]
    return sorted(edges, key=lambda edge: edge.at_s)  # stable


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
