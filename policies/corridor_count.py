"""Exact counts of slack vectors in whole numbers of any size, by inclusion and exclusion."""

import math


def at_most(number: int, total: int, *, reach: int) -> int:
    """How many x_1..x_number in 0..reach have a sum of at most ``total``.

    sum over j of (-1)**j C(number, j) C(total - j * (reach + 1) + number, number): j of the x are
    above reach. The binomials follow from one another, so thousands of merges take milliseconds.
    """
    every = number * reach
    if total < 0:
        return 0
    if total >= every:
        return int((reach + 1) ** number)
    if 2 * total > every:  # x -> reach - x: fewer terms
        return int((reach + 1) ** number) - at_most(number, every - total - 1, reach=reach)
    length = reach + 1
    pool = total + number
    ways, chosen, found = math.comb(pool, number), 1, 0
    for j in range(total // length + 1):
        found += -chosen * ways if j % 2 else chosen * ways
        chosen = chosen * (number - j) // (j + 1)
        if pool - length < number:
            break
        if length > number:
            ways = math.comb(pool - length, number)
        else:
            ways = ways * math.perm(pool - number, length) // math.perm(pool, length)
        pool -= length
    return found


def between(number: int, low: int, high: int, *, reach: int) -> int:
    """How many have a sum in low..high."""
    return at_most(number, high, reach=reach) - at_most(number, low - 1, reach=reach)
