"""Compiled loop of the plant; the only numba of the replay. See reference.py for it in plain words.

Between two events (an admission, a first or last token, a window's edge) the batch is constant:
step k ends at anchor + k * step, and no step in between is visited. Nothing is kept but the last
event's state, so where a run pauses cannot change a bit of what follows.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Loop = TypeVar("Loop", bound=Callable[..., object])

# law [5]: seconds of work in a step, of what a merge finds in it besides its work, of a pace's slot
BASE, PER_SEQ, PER_PROMPT_TOKEN, MERGE_STEP, PACE_SLOT = 0, 1, 2, 3, 4
# clock [5]: the end of the last event, work of the step that begins there, a merge's slow-down now,
# work of that step before an edge cut it, the server's own pace now
ANCHOR, WORK, FACTOR, WHOLE, PACE = 0, 1, 2, 3, 4
# counts [11]
SLOTS = 0
ADMITTED = 1  # requests that left the queue; the queue is queue[admitted:known]
KNOWN = 2  # requests there are: all in an open loop, those asked for in a closed one
FRESH = 3  # queue[fresh:admitted] have no token yet
RUNNING = 4
SINGLE = 5  # 1 where only the step under way has this work: it prefills, or an edge cut it
STEPS = 6  # steps that ended
EDGE = 7  # window edges that were passed, two a window
WINDOWS = 8
DONE = 9
SLOT = 10  # paces that were entered; paces[SLOT - 1] holds now, and 1 before the first
# times [4, request]; entries of ENTER are in the order of the queue, the others by request
AT, ENTER, FIRST, LAST = 0, 1, 2, 3
# asked [3, request], [5, request] in a closed loop; QUEUE holds requests in the order of the queue
QUEUE, PROMPT, OUTPUT, USER, TURN = 0, 1, 2, 3, 4
# windows [3, window]
START, END, SLOW = 0, 1, 2
# turn_s [2, user, turn]; turn_tokens [2, user, turn]: prompt, output; no users in an open loop
PAUSE, OVERHEAD = 0, 1
# stays_us [3, user]: when a user may ask; a period of 0 is always
PERIOD, FROM, FOR = 0, 1, 2

PAUSED, TURNS_USED_UP = 0, 1
US_PER_S = 1e6


def _compiled(signature: str) -> Callable[[Loop], Loop]:
    """Compiled when this module is first loaded, then kept on disk; IEEE rules stay on."""

    def compiled(loop: Loop) -> Loop:
        return cast(Loop, numba.njit(signature, cache=True)(loop))

    return compiled


@_compiled("i8(f8, f8, f8)")
def steps_to(anchor_s: float, step_s: float, at_s: float) -> int:
    """The first step, counted from 1, that ends at ``at_s`` or later."""
    k = max(int(np.ceil((at_s - anchor_s) / step_s)), 1)
    while k > 1 and anchor_s + (k - 1) * step_s >= at_s:
        k -= 1
    while anchor_s + k * step_s < at_s:
        k += 1
    return k


@_compiled("(i8[:, ::1], i8, i8, i8)")
def push(heap: Ints, size: int, step: int, place: int) -> None:
    """Add a sequence that ends with ``step``; ties leave by their place in the queue."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if heap[0, above] < step or (heap[0, above] == step and heap[1, above] < place):
            break
        heap[0, at], heap[1, at] = heap[0, above], heap[1, above]
        at = above
    heap[0, at], heap[1, at] = step, place


@_compiled("(i8[:, ::1], i8)")
def pop(heap: Ints, size: int) -> None:
    """Take the top away."""
    last = size - 1
    step, place = heap[0, last], heap[1, last]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= last:
            break
        right = below + 1
        if right < last and (
            heap[0, right] < heap[0, below]
            or (heap[0, right] == heap[0, below] and heap[1, right] < heap[1, below])
        ):
            below = right
        if step < heap[0, below] or (step == heap[0, below] and place < heap[1, below]):
            break
        heap[0, at], heap[1, at] = heap[0, below], heap[1, below]
        at = below
    heap[0, at], heap[1, at] = step, place


@_compiled("f8(f8, f8, f8)")
def slowed(factor: float, whole_s: float, merge_step_s: float) -> float:
    """How much longer a merge of this factor makes a step of this work."""
    if factor == 1.0 or merge_step_s == 0.0 or whole_s == 0.0:
        return factor
    return 1.0 + (factor - 1.0) * ((whole_s + merge_step_s) / whole_s)


@_compiled(
    "b1(f8, i8, i8[::1], f8[:, ::1], i8[:, ::1], f8[:, :, ::1], i8[:, :, ::1], i8[::1], f8[:, ::1])"
)
def ask_again(
    free_at_s: float,
    user: int,
    counts: Ints,
    times: Floats,
    asked: Ints,
    turn_s: Floats,
    turn_tokens: Ints,
    turns: Ints,
    stays_us: Floats,
) -> bool:
    """The user's next request, put into the queue by the time it gets there; was it the last drawn?

    workload/closed.py: scheduled at the first whole microsecond after the pause at which the user
    may ask.
    """
    turn, request = turns[user], counts[KNOWN]
    turns[user] = turn + 1
    at_us = np.ceil((free_at_s + turn_s[PAUSE, user, turn]) * US_PER_S)
    if stays_us[PERIOD, user] > 0.0:
        into_us = (at_us - stays_us[FROM, user]) % stays_us[PERIOD, user]
        if into_us >= stays_us[FOR, user]:
            at_us = at_us - into_us + stays_us[PERIOD, user]
    at_s = at_us / US_PER_S
    enter_s = at_s + turn_s[OVERHEAD, user, turn]
    times[AT, request] = at_s
    asked[PROMPT, request] = turn_tokens[0, user, turn]
    asked[OUTPUT, request] = turn_tokens[1, user, turn]
    asked[USER, request] = user
    asked[TURN, request] = turn
    place = request
    while place > counts[ADMITTED] and times[ENTER, place - 1] > enter_s:
        times[ENTER, place] = times[ENTER, place - 1]
        asked[QUEUE, place] = asked[QUEUE, place - 1]
        place -= 1
    times[ENTER, place] = enter_s
    asked[QUEUE, place] = request
    counts[KNOWN] = request + 1
    return bool(turn + 1 == turn_s.shape[2])


@_compiled(
    "i8(f8, f8[::1], f8[::1], i8[::1], f8[:, ::1], i8[:, ::1], i8[:, ::1], f8[:, ::1],"
    " f8[::1], f8[:, :, ::1], i8[:, :, ::1], i8[::1], f8[:, ::1])"
)
def run_until(
    until_s: float,
    law: Floats,
    clock: Floats,
    counts: Ints,
    times: Floats,
    asked: Ints,
    heap: Ints,
    windows: Floats,
    paces: Floats,
    turn_s: Floats,
    turn_tokens: Ints,
    turns: Ints,
    stays_us: Floats,
) -> int:
    """Carry out every event before ``until_s``; why it stopped.

    A step's end at an edge (of a window, or where the pace changes) comes before the edge; the
    state between the two is the same. Of two edges at one time the window's is first.
    """
    used_up = False
    while not used_up:
        anchor_s, work_s = clock[ANCHOR], clock[WORK]
        factor = slowed(clock[FACTOR], clock[WHOLE], law[MERGE_STEP]) * clock[PACE]
        running, admitted, known = counts[RUNNING], counts[ADMITTED], counts[KNOWN]
        waits = admitted < known and running < counts[SLOTS]
        edge = counts[EDGE]
        edge_s = np.inf
        if edge < 2 * counts[WINDOWS]:
            edge_s = windows[END if edge % 2 else START, edge // 2]
        slot = counts[SLOT]
        pace_s = slot * law[PACE_SLOT] if 0 < paces.shape[0] >= slot else np.inf
        next_pace = pace_s < edge_s
        edge_s = min(edge_s, pace_s)
        step_s = work_s * factor
        steps = 0
        if running == 0:
            at_s = times[ENTER, admitted] if waits else np.inf
        else:
            steps = 1
            if counts[SINGLE] == 0:
                steps = heap[0, 0] - counts[STEPS]
                if waits and times[ENTER, admitted] < anchor_s + steps * step_s:
                    steps = min(steps, steps_to(anchor_s, step_s, times[ENTER, admitted]))
            at_s = anchor_s + steps * step_s
        if min(at_s, edge_s) >= until_s or (at_s == np.inf and edge_s == np.inf):
            break

        if edge_s < at_s:
            if running > 0:  # whole steps up to the edge, and a part of one
                k = steps_to(anchor_s, step_s, edge_s)
                if anchor_s + k * step_s > edge_s:
                    k -= 1
                done_s = (edge_s - (anchor_s + k * step_s)) / factor
                if done_s > 0.0:
                    clock[WORK] = max(work_s - done_s, 0.0)
                    counts[SINGLE] = 1
                counts[STEPS] += k
                clock[ANCHOR] = edge_s
            if next_pace:
                clock[PACE] = paces[slot] if slot < paces.shape[0] else 1.0
                counts[SLOT] = slot + 1
            else:
                clock[FACTOR] = 1.0 if edge % 2 else windows[SLOW, edge // 2]
                counts[EDGE] = edge + 1
            continue

        if running > 0:  # a step ends: first tokens, last tokens
            counts[STEPS] += steps
            for place in range(counts[FRESH], admitted):
                times[FIRST, asked[QUEUE, place]] = at_s
            while running > 0 and heap[0, 0] == counts[STEPS]:
                request = asked[QUEUE, heap[1, 0]]
                pop(heap, running)
                running -= 1
                times[LAST, request] = at_s
                counts[DONE] += 1
                if turns.shape[0] > 0:
                    user = asked[USER, request]
                    if ask_again(
                        at_s, user, counts, times, asked, turn_s, turn_tokens, turns, stays_us
                    ):
                        used_up = True
            known = counts[KNOWN]
        counts[FRESH] = admitted  # a step begins: admissions
        prompts = 0
        while admitted < known and running < counts[SLOTS] and times[ENTER, admitted] <= at_s:
            request = asked[QUEUE, admitted]
            push(heap, running, counts[STEPS] + asked[OUTPUT, request], admitted)
            prompts += asked[PROMPT, request]
            running += 1
            admitted += 1
        counts[SINGLE] = 1 if admitted > counts[FRESH] else 0
        counts[ADMITTED], counts[RUNNING] = admitted, running
        clock[ANCHOR] = at_s
        clock[WORK] = law[BASE] + law[PER_SEQ] * running + law[PER_PROMPT_TOKEN] * prompts
        clock[WHOLE] = clock[WORK]
    return TURNS_USED_UP if used_up else PAUSED
