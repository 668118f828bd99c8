"""Compiled loops of the corridor's dynamic programmes; the only numba of the policies.

A row holds one number per slack sum y and is filled only in its range [lo, hi]. Window sums and
minima over y - reach .. y are formed from prefixes and suffixes of blocks of reach + 1 entries:
two steps an entry however wide the window, and no subtraction that could cancel.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]  # [slack] or [row, slack]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Loop = TypeVar("Loop", bound=Callable[..., object])

TINY = 1e-300  # probabilities below are 0: far too small to matter, and denormals are slow
ABSOLUTE_ERROR = 1e-280  # what TINY can add up to over all rows and entries
_WORD = 2.0**-64


def _compiled(signature: str) -> Callable[[Loop], Loop]:
    """Compiled when this module is first loaded, then kept on disk; IEEE rules stay on."""

    def compiled(loop: Loop) -> Loop:
        return cast(Loop, numba.njit(signature, cache=True)(loop))

    return compiled


@_compiled("(f8[::1], i8, i8, f8[::1], i8, i8, f8[::1], i8, f8, f8[:, ::1])")
def _window_sums(
    src: Floats,
    src_lo: int,
    src_hi: int,
    dst: Floats,
    dst_lo: int,
    dst_hi: int,
    powers: Floats,
    reach: int,
    scale: float,
    suffix: Floats,
) -> None:
    """dst[y] = scale * sum over x = 0..reach of powers[x] * src[y - x], powers[x] = ratio**x."""
    length = reach + 1
    ratio = powers[1]
    block = dst_lo // length
    now, run = 0, 0.0
    suffix[0, length] = suffix[1, length] = 0.0
    for r in range(length):
        z = block * length - 1 - r
        if src_lo <= z <= src_hi:
            run += powers[r] * src[z]
        suffix[0, reach - r] = run
    for base in range(block * length, dst_hi + 1, length):
        prefix = run = 0.0
        for r in range(length):
            z = base + r
            here = src[z] if src_lo <= z <= src_hi else 0.0
            prefix = ratio * prefix + here
            if dst_lo <= z <= dst_hi:
                total = scale * (prefix + powers[r + 1] * suffix[now, r + 1])
                dst[z] = total if abs(total) >= TINY else 0.0
            z = base + reach - r  # and the suffixes of this block, for the next one
            if src_lo <= z <= src_hi:
                run += powers[r] * src[z]
            suffix[1 - now, reach - r] = run
        now = 1 - now


@_compiled("(f8[:, ::1], i8, i8[::1], i8[::1], f8[::1], i8, f8)")
def sum_rows(
    rows: Floats, row: int, lo: Ints, hi: Ints, powers: Floats, reach: int, scale: float
) -> None:
    """Fill rows[1:] from rows[0], which is row number ``row``."""
    suffix = np.empty((2, reach + 2))
    for j in range(1, rows.shape[0]):
        i = row + j
        _window_sums(
            rows[j - 1], lo[i - 1], hi[i - 1], rows[j], lo[i], hi[i], powers, reach, scale, suffix
        )


@_compiled("(f8[:, ::1], i8, i8[::1], i8[::1], i8, f8[::1], i8, i8, i8)")
def min_rows(
    rows: Floats,
    row: int,
    lo: Ints,
    hi: Ints,
    reach: int,
    cost: Floats,
    first: int,
    step: int,
    sign: int,
) -> None:
    """rows[i][y] = cost of a start at y + the least rows[i - 1] within reach below y."""
    length = reach + 1
    suffix = np.empty((2, reach + 2))
    suffix[:, length] = np.inf
    for j in range(1, rows.shape[0]):
        i = row + j
        src, src_lo, src_hi = rows[j - 1], lo[i - 1], hi[i - 1]
        block = lo[i] // length
        start = first + (i - 1) * step
        now, run = 0, np.inf
        for r in range(length):
            z = block * length - 1 - r
            if src_lo <= z <= src_hi:
                run = min(run, src[z])
            suffix[0, reach - r] = run
        for base in range(block * length, hi[i] + 1, length):
            prefix = run = np.inf
            for r in range(length):
                z = base + r
                if src_lo <= z <= src_hi:
                    prefix = min(prefix, src[z])
                if lo[i] <= z <= hi[i]:
                    rows[j, z] = min(prefix, suffix[now, r + 1]) + cost[start + sign * z]
                z = base + reach - r
                if src_lo <= z <= src_hi:
                    run = min(run, src[z])
                suffix[1 - now, reach - r] = run
            now = 1 - now


@_compiled(
    "i8(f8[:, ::1], i8, i8[::1], i8[::1], f8[::1], i8, f8[::1], u8[:, ::1], i8[::1], i8[::1],"
    " i8[:, ::1], i8)"
)
def draw_rows(
    rows: Floats,
    row: int,
    lo: Ints,
    hi: Ints,
    powers: Floats,
    reach: int,
    errors: Floats,
    words: Words,
    at: Ints,
    below: Ints,
    drawn: Ints,
    sign: int,
) -> int:
    """Choose y_i for every draw, from row at[draw] down to row + 1; how many had to stop.

    The choice is the cell of the cumulative weights in which a uniform real with the leading bits
    words[draw, i] lies, cells in the order of start ticks. errors[i] bounds the relative error of
    every cumulative weight of row i. Where that leaves two cells possible, the draw stops there.
    """
    stopped = 0
    last = row + rows.shape[0] - 1
    for draw in range(at.shape[0]):
        while at[draw] > row:
            i = at[draw]
            weights, error = rows[i - row], errors[i]
            a, b = lo[i], hi[i]
            if i < lo.shape[0] - 1:  # the last sum is free, every other bound to the one after
                a, b = max(a, below[draw] - reach), min(b, below[draw])
            total = 0.0
            for z in range(a, b + 1):
                total += weights[z] * powers[b - z]
            word = np.float64(words[draw, last - i])
            target = total * (word * _WORD)
            least = target * (1.0 - 3.0 * error) - ABSOLUTE_ERROR
            most = total * ((word + 1.0) * _WORD) * (1.0 + 3.0 * error) + ABSOLUTE_ERROR
            z = a if sign > 0 else b
            end = b if sign > 0 else a
            before, upto = 0.0, weights[z] * powers[b - z]
            while upto <= target and z != end:
                z += sign
                before = upto
                upto += weights[z] * powers[b - z]
            first = a if sign > 0 else b
            if (z != first and before > least) or (z != end and upto < most):
                stopped += 1
                break
            drawn[draw, i - 1] = z
            below[draw] = z
            at[draw] = i - 1
    return stopped


@_compiled(
    "i8(f8[:, ::1], i8, i8[::1], i8[::1], f8[::1], i8, f8, f8[:, ::1], i8, f8, f8[::1], i8, i8, i8)"
)
def marginal_rows(
    rows: Floats,
    row: int,
    lo: Ints,
    hi: Ints,
    powers: Floats,
    reach: int,
    scale: float,
    back: Floats,
    now: int,
    total: float,
    marginals: Floats,
    first: int,
    step: int,
    sign: int,
) -> int:
    """Add P(y_i = y) to its start tick for the rows from the last down to row + 1.

    back[now] holds the weight of all that may follow y_i, reversed: at top - y.
    """
    suffix = np.empty((2, reach + 2))
    top = hi[-1]
    for j in range(rows.shape[0] - 1, 0, -1):
        i = row + j
        start = first + (i - 1) * step
        for y in range(lo[i], hi[i] + 1):
            marginals[start + sign * y] += rows[j, y] * back[now, top - y] / total
        _window_sums(
            back[now],
            top - hi[i],
            top - lo[i],
            back[1 - now],
            top - hi[i - 1],
            top - lo[i - 1],
            powers,
            reach,
            scale,
            suffix,
        )
        now = 1 - now
    return now


@_compiled("(f8[:, :, ::1], i8[::1], i8[::1], f8[::1], i8, f8, f8[::1], f8[::1], i8, i8, i8)")
def moment_rows(
    sums: Floats,
    lo: Ints,
    hi: Ints,
    powers: Floats,
    reach: int,
    scale: float,
    cost: Floats,
    centres: Floats,
    first: int,
    step: int,
    sign: int,
) -> None:
    """Weight, weight x cost and weight x cost squared of all partial schedules, by y_i.

    sums is [2, 3, slack]; row i ends up in sums[i % 2]. Merge i costs cost[start] - centres[i].
    """
    suffix = np.empty((2, reach + 2))
    for i in range(1, lo.shape[0]):
        src, dst = sums[(i - 1) % 2], sums[i % 2]
        for moment in range(3):
            _window_sums(
                src[moment],
                lo[i - 1],
                hi[i - 1],
                dst[moment],
                lo[i],
                hi[i],
                powers,
                reach,
                scale,
                suffix,
            )
        start = first + (i - 1) * step
        for y in range(lo[i], hi[i] + 1):
            c = cost[start + sign * y] - centres[i]
            dst[2, y] += c * (2.0 * dst[1, y] + c * dst[0, y])
            dst[1, y] += c * dst[0, y]


@_compiled("(f8[::1], i8, i8, i8, f8[::1], i8[::1])")
def chain_minima(
    cost: Floats, floor: int, ceiling: int, width: int, totals: Floats, before: Ints
) -> None:
    """Least cost of a chain of merges that ends with a start at t, and its start before t.

    totals[t] = cost[t] + min of totals over t - width - ceiling .. t - width - floor, or + 0 for
    a first merge (before[t] = -1); infinite where no chain leads. A monotone queue holds the
    candidates of the window, the earliest first.
    """
    queue = np.empty(cost.shape[0], np.int64)
    head = tail = 0
    for t in range(cost.shape[0] - width):
        newest = t - width - floor
        if newest >= 0 and totals[newest] < np.inf:
            while tail > head and totals[queue[tail - 1]] > totals[newest]:
                tail -= 1
            queue[tail] = newest
            tail += 1
        while tail > head and queue[head] < t - width - ceiling:
            head += 1
        totals[t], before[t] = np.inf, -2
        if floor <= t <= ceiling:
            totals[t], before[t] = cost[t], -1
        if tail > head and totals[queue[head]] + cost[t] < totals[t]:
            totals[t], before[t] = totals[queue[head]] + cost[t], queue[head]
