"""Small linear algebra whose bits do not hang on BLAS: not on its threads, not on its kernels.

A logged decision is made again bit for bit, in another process with other threads; `@` and
numpy.linalg sum in the order that the BLAS at hand finds best for so many threads.
"""

import math

import numpy as np

from policies.history import Floats


def product(left: Floats, right: Floats) -> Floats:
    """``left @ right``.  left: [i, j]; right: [j] or [j, k]"""
    # numpy's own loops: c_einsum of two operands calls no BLAS.
    return np.asarray(np.einsum("ij,j...->i...", left, right, optimize=False))


def power(square: Floats, exponent: int) -> Floats:
    """``square`` times itself, ``exponent`` >= 1 factors, by squaring.  square: [i, i]"""
    found: Floats | None = None
    while True:
        if exponent % 2:
            found = square if found is None else product(found, square)
        exponent //= 2
        if not exponent:
            assert found is not None
            return found
        square = product(square, square)


def solved(positive: Floats, right: Floats) -> Floats:
    """x of ``positive @ x = right``, symmetric and positive definite, by Cholesky.

    positive: [i, i]; right: [i]. numpy.linalg.LinAlgError where it is not positive definite.
    """
    number = len(positive)
    rows = positive.tolist()
    lower: list[list[float]] = []
    for i, row in enumerate(rows):
        mine: list[float] = []
        for j in range(i):
            inner = sum([a * b for a, b in zip(mine, lower[j], strict=False)])
            mine.append((row[j] - inner) / lower[j][j])
        left = row[i] - sum([a * a for a in mine])
        if not left > 0.0:
            raise np.linalg.LinAlgError("the matrix is not positive definite")
        lower.append([*mine, math.sqrt(left)])
    found: list[float] = []
    for i, value in enumerate(right.tolist()):
        inner = sum([a * b for a, b in zip(lower[i], found, strict=False)])
        found.append((value - inner) / lower[i][i])
    for i in reversed(range(number)):
        inner = sum([lower[j][i] * found[j] for j in range(i + 1, number)])
        found[i] = (found[i] - inner) / lower[i][i]
    return np.array(found)
