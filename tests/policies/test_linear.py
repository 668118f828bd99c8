"""Equal to numpy's own to rounding, and the same bits however many threads BLAS has."""

import os
import subprocess
import sys

import numpy as np
import pytest

from policies.linear import power, product, solved

FIT = """
import hashlib
import numpy as np
from policies.foresight import best_rounds, least_squares

rng = np.random.default_rng(5)
rows = rng.gamma(2.0, 3.0, (6000, 8))
weights = least_squares(rows, rng.gamma(2.0, 40.0, 6000), rng.random(6000))
moves = rng.random((12, 12))
moves /= moves.sum(axis=1, keepdims=True)
rounds = best_rounds(
    moves, rng.gamma(2.0, 40.0, (12, 5)), prices=np.linspace(0.0, 9.0, 15), floor=4, ceiling=40
)
print(hashlib.sha256(weights.tobytes() + rounds.tobytes()).hexdigest())
"""


def test_products_powers_and_solutions_are_those_of_numpy() -> None:
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=(7, 300)), rng.normal(size=(300, 4))
    np.testing.assert_allclose(product(left, right), left @ right, rtol=1e-12)
    np.testing.assert_allclose(product(left, right[:, 0]), left @ right[:, 0], rtol=1e-12)
    square = rng.random((5, 5)) / 3.0
    for exponent in (1, 2, 3, 12, 4096):
        np.testing.assert_allclose(
            power(square, exponent), np.linalg.matrix_power(square, exponent), rtol=1e-9
        )
    positive = left @ left.T
    np.testing.assert_allclose(
        solved(positive, right[:7, 0]), np.linalg.solve(positive, right[:7, 0]), rtol=1e-10
    )
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        solved(np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones(2))


def test_what_is_learned_has_the_same_bits_with_any_number_of_threads() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", FIT],
            env={**os.environ, "OMP_NUM_THREADS": n, "OPENBLAS_NUM_THREADS": n},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for n in ("1", "2", "7")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
